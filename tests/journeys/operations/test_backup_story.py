"""A copy continues on another machine: the queued turn, the open delivery, the job that is lost.

A copy that is not complete is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from command_line import run_command_line
from gateway.config.load import environment_without_ours
from gateway_process import gateway
from small_disks import mount_small_disk
from turn_requests import ALLOWED, is_finished, item_states, poll_until, read_first_event, start_turn
from webhook_receiver import WebhookReceiver, respond, webhook_receiver

MARK = "61.7353"


def end_job() -> None:
    """End the job's processes, as the end of the machine would."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if MARK.encode() in words:
            os.kill(int(entry.name), signal.SIGKILL)


async def supervisor_finished(data: Path) -> None:
    """Wait until the job's supervisor has nothing more to write."""
    async with asyncio.timeout(20):
        while not any((data / "sandboxes").rglob("jobs/*/exit")):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)


async def leave_work_unfinished(data: Path, url: str) -> dict[str, dict[str, Any]]:
    """Run a gateway until a webhook is open, a job runs and a turn is queued, and kill it."""
    async with gateway(data, env=ALLOWED) as process:
        owed = await start_turn(process, "!echo owed", webhook={"url": url})
        await poll_until(process, "/deliveries", lambda found: "retrying" in item_states(found))
        job = await start_turn(process, f"!&sleep {MARK}")
        await poll_until(process, "/jobs", lambda found: bool(found["items"]))
        await process.stop()
        await process.start(env={"DOVECOTE_ROLES": "ingress"})
        queued = await start_turn(process, "!echo queued", conversation="queued")
        await process.kill()
    return {"owed": owed, "job": job, "queued": queued}


async def test_a_copied_directory_goes_on(tmp_path: Path) -> None:
    """On another machine the turn runs, the webhook is called, and the job is reported as ended."""
    async with webhook_receiver(*[respond(503)] * 100) as receiver:
        left = await leave_work_unfinished(tmp_path / "old", receiver.url)
        end_job()
        await supervisor_finished(tmp_path / "old")
        move(tmp_path / "old", tmp_path / "new")
        refused = len(receiver.requests)
        receiver.script.clear()
        await check_restored(tmp_path / "new", left, receiver, refused)


def move(old: Path, new: Path) -> None:
    """Copy a directory as `cp -a` does, without sockets, and delete the first."""
    shutil.copytree(old, new, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    shutil.rmtree(old)


async def check_restored(
    data: Path, left: dict[str, dict[str, Any]], receiver: WebhookReceiver, refused: int
) -> None:
    """Start on the copy and see everything that was left unfinished come to its end."""
    async with gateway(data, env=ALLOWED) as process:
        done = await poll_until(process, f"/status/{left['queued']['turnId']}", is_finished)
        assert done["state"] == "completed"
        assert "queued" in done["output"]
        await poll_until(process, "/deliveries", lambda found: item_states(found) == {"delivered"})
        assert [b"owed" in one.body for one in receiver.requests[refused:]] == [True]
        jobs = await poll_until(process, "/jobs", lambda found: found["items"][0]["state"] != "running")
        assert jobs["items"][0]["state"] in {"failed", "lost"}
        assert jobs["items"][0]["turn"] == left["job"]["turnId"]
        events = await process.events(left["queued"]["conversationId"])
        assert [event["n"] for event in events] == list(range(1, len(events) + 1))


async def back_up(data: Path, target: Path) -> None:
    """Run the command as an operator does."""
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "backup", str(target), "--data", str(data),
        env=environment_without_ours(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await command.communicate()
    assert command.returncode == 0, said


async def test_a_copy_of_a_running_gateway_goes_on(tmp_path: Path) -> None:
    """A backup of a running gateway has the conversation; readers of its stream get a reset."""
    async with gateway(tmp_path / "old") as process:
        said = await start_turn(process, "!echo before > kept; cat kept", conversation="one")
        await poll_until(process, f"/status/{said['turnId']}", is_finished)
        async with process.http() as session, session.get("/conversations/one/snapshot") as answer:
            before = await answer.json()
        await back_up(process.data, tmp_path / "new")
    async with gateway(tmp_path / "new") as process:
        async with process.http() as session, session.get("/conversations/one/snapshot") as answer:
            after = await answer.json()
        assert [one["text"] for one in after["messages"]] == [one["text"] for one in before["messages"]]
        first = await read_first_event(process, f"{before['epoch']}-{before['seq']}")
        assert "event: reset" in first, first
        said = await start_turn(process, "!cat kept", conversation="one")
        done = await poll_until(process, f"/status/{said['turnId']}", is_finished)
        assert "before" in done["output"]
        assert await process.events(said["conversationId"])


async def test_a_database_put_back_beside_a_newer_event_log_goes_on(tmp_path: Path) -> None:
    """The log begins again: readers get the events since then, none is taken for one that came before."""
    async with gateway(tmp_path / "data") as process:
        said = await start_turn(process, "!echo before", conversation="one")
        await poll_until(process, f"/status/{said['turnId']}", is_finished)
        await back_up(process.data, tmp_path / "copy")
        said = await start_turn(process, "!echo forgotten", conversation="one")
        await poll_until(process, f"/status/{said['turnId']}", is_finished)
        assert "forgotten" in str(await process.events(said["conversationId"]))
    for file in process.data.glob("dovecote.db*"):
        file.unlink()
    shutil.copy(tmp_path / "copy" / "dovecote.db", process.data)
    async with gateway(process.data) as process:
        again = await start_turn(process, "!echo again", conversation="one")
        assert again["conversationId"] == said["conversationId"]
        await poll_until(process, f"/status/{again['turnId']}", is_finished)
        events = await process.events(again["conversationId"])
        assert "forgotten" not in str(events)
        assert again["turnId"] in {event.get("turn") for event in events}
        assert [event["n"] for event in events] == [
            events[0]["n"] + index for index, _event in enumerate(events)
        ]
        assert any("stream.created_again" in line for line in process.log)


def test_a_backup_that_does_not_fit_fails_and_leaves_nothing(tmp_path: Path) -> None:
    """The command names the file and the reason, and a second try finds no remains in its way."""
    data = tmp_path / "data"
    assert run_command_line("migrate", "up", "--data", str(data)).exit_code == 0
    (data / "workspaces").mkdir()
    (data / "workspaces" / "large.bin").write_bytes(b"x" * 6_000_000)
    with mount_small_disk(tmp_path / "disk", 4) as disk:
        for _ in range(2):
            failed = run_command_line("backup", str(disk / "copy"), "--data", str(data))
            assert failed.exit_code == 1
            assert "large.bin cannot be copied" in failed.stderr
            assert "No space left on device" in failed.stderr
            assert not (disk / "copy").exists()
    copied = run_command_line("backup", str(tmp_path / "copy"), "--data", str(data))
    assert (tmp_path / "copy" / "dovecote.db").stat().st_mode & 0o777 == 0o600, "also outside its directory"
    assert copied.exit_code == 0
    assert (tmp_path / "copy" / "workspaces" / "large.bin").stat().st_size == 6_000_000


HOLE = 1024**3
UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Begins a command in which permissions of files count, as for a gateway that is not root."""


def write_odd_files(workspace: Path) -> None:
    """Leave what commands in a sandbox can make in a workspace."""
    workspace.mkdir(parents=True)
    os.mkfifo(workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(workspace):
        listener.bind("socket")
    (workspace / "closed").mkdir()
    (workspace / "closed").chmod(0)
    (workspace / "secret").write_text("x")
    (workspace / "secret").chmod(0)
    (workspace / "link").symlink_to("/etc/passwd")
    (workspace / os.fsdecode(b"odd\xff\n")).write_text("odd")
    with (workspace / "image").open("wb") as image:
        image.seek(HOLE)
        image.write(b"end")
        image.truncate(3 * HOLE)


async def run_unprivileged(*words: str) -> tuple[int | None, str]:
    """Run a command for which permissions count; return its exit code and what it wrote."""
    command = await asyncio.create_subprocess_exec(
        *UNPRIVILEGED, sys.executable, "-m", "gateway", *words,
        env=environment_without_ours(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await command.communicate()
    return command.returncode, said.decode()


async def test_no_file_of_a_sandbox_fails_a_backup(tmp_path: Path) -> None:
    """Pipes, sockets and unreadable files are left out and counted; a hole needs no space in the copy."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    assert (await asyncio.to_thread(run_command_line, "migrate", "up", "--data", str(data))).exit_code == 0
    await asyncio.to_thread(write_odd_files, data / "workspaces" / "one")
    code, said = await run_unprivileged("backup", str(copy), "--data", str(data))
    assert (code, "4 files are missing, such as" in said) == (0, True), said
    copied = copy / "workspaces" / "one"
    assert {os.fsencode(path.name) for path in copied.iterdir()} == {b"image", b"link", b"odd\xff\n"}
    image = (copied / "image").stat()
    assert (image.st_size, image.st_mtime_ns) == (
        3 * HOLE,
        (data / "workspaces" / "one" / "image").stat().st_mtime_ns,
    )
    assert image.st_blocks * 512 < HOLE
    with (copied / "image").open("rb") as content:
        content.seek(HOLE - 1)
        assert content.read(5) == b"\0end\0"


async def test_a_key_that_cannot_be_read_fails_a_backup(tmp_path: Path) -> None:
    """Only what commands in sandboxes made may be missing."""
    data = tmp_path / "data"
    assert (await asyncio.to_thread(run_command_line, "migrate", "up", "--data", str(data))).exit_code == 0
    (data / "secret.key").write_text("x")
    (data / "secret.key").chmod(0)
    code, said = await run_unprivileged("backup", str(tmp_path / "copy"), "--data", str(data))
    assert (code, "secret.key cannot be copied: [Errno 13]" in said) == (1, True), said


async def test_a_killed_backup_leaves_no_directory_of_its_name(tmp_path: Path) -> None:
    """What it copied is named as a part, and the next try says to delete it."""
    data, copy, part = tmp_path / "data", tmp_path / "copy", tmp_path / "copy.part"
    assert (await asyncio.to_thread(run_command_line, "migrate", "up", "--data", str(data))).exit_code == 0
    await asyncio.to_thread(write_many_files, data / "workspaces", 20_000)
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "backup", str(copy), "--data", str(data),
        env=environment_without_ours(),
    )  # fmt: skip
    async with asyncio.timeout(60):
        while not (part / "workspaces").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.001)
    command.kill()
    await command.wait()
    assert not copy.exists()
    again = await asyncio.to_thread(run_command_line, "backup", str(copy), "--data", str(data))
    assert again.exit_code == 2
    assert f"{part} is what an interrupted backup left: delete it" in again.stderr
    await asyncio.to_thread(shutil.rmtree, part)
    done = await asyncio.to_thread(run_command_line, "backup", str(copy), "--data", str(data))
    assert (done.exit_code, part.exists(), copy.exists()) == (0, False, True)


def write_many_files(directory: Path, count: int) -> None:
    """Write small files, which take a while to copy."""
    directory.mkdir(parents=True)
    for number in range(count):
        (directory / str(number)).touch()


async def test_a_file_system_that_is_read_only_is_backed_up(tmp_path: Path) -> None:
    """A disk is mounted so after errors, and a volume for the backup alone; no gateway runs."""
    with mount_small_disk(tmp_path / "disk", 64) as disk:
        async with gateway(disk / "data"):
            pass
        remounting = await asyncio.create_subprocess_exec("mount", "-o", "remount,ro", str(disk))
        assert await remounting.wait() == 0
        done = run_command_line("backup", str(tmp_path / "copy"), "--data", str(disk / "data"))
    assert done.exit_code == 0, done.output
    async with gateway(tmp_path / "copy"):
        pass

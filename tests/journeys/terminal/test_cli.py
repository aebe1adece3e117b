"""The command line against a real gateway, as a person at a terminal uses it."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import socket
import sys
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.simulator import simulate
from commands import PIPE, Running, gateway_command
from gateway.config.load import environment_without_ours
from gateway_process import GatewayProcess, gateway


@dataclass(frozen=True, slots=True)
class CliResult:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


async def start(*words: str, directory: Path) -> Running:
    """Start a command without the environment of the test run."""
    env = environment_without_ours()
    return await gateway_command(*words, env=env, cwd=directory, stdin=PIPE, stdout=PIPE, stderr=PIPE)


async def run(process: GatewayProcess, *words: str, typed: str = "") -> CliResult:
    """Run a command towards the gateway, found by its data directory."""
    command = await start(*words, "--data", str(process.data), directory=process.data.parent)
    async with asyncio.timeout(60):
        out, err = await command.communicate(typed.encode())
    assert command.returncode is not None
    return CliResult(command.returncode, out.decode(), err.decode())


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose webhooks may go to loopback."""
    async with gateway(tmp_path / "data", env={"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}) as process:
        yield process


async def test_a_word_and_its_trace(running: GatewayProcess) -> None:
    """One command is answered, its conversation can be read again, and its message can be traced."""
    said = await run(running, "chat", "!echo hello there", "--conversation", "story")
    assert said.code == 0, said.err
    assert "hello there" in said.out
    reported = await run(running, "tail", "story", "--after", "0", "--no-follow", "--json")
    events = [json.loads(line) for line in reported.out.splitlines()]
    assert [event["n"] for event in events if event.get("n")] == list(range(1, len(events) + 1))
    unknown = await run(running, "tail", "stroy")
    assert (unknown.code, "there is no such conversation: stroy" in unknown.err) == (1, True)
    assert "stroy" not in (await run(running, "conversations", "list")).out
    turn = next(event["turn"] for event in events if event["type"] == "turn.completed")
    traced = (await run(running, "trace", turn, "--json")).json
    states = [step["state"] for step in traced["steps"]]
    assert states[0] == "accepted"
    assert "turn.completed" in states
    assert (await run(running, "trace", traced["steps"][0]["id"], "--json")).json["steps"] == traced["steps"]
    logged = (await run(running, "turns", "log", turn)).out
    assert 'bash {"command": "echo hello there"}  [done]' in logged
    assert logged.endswith("[done]\n    hello there\n")


async def test_the_real_command_line_does_the_same(tmp_path: Path) -> None:
    """A gateway and a command that the interpreter starts itself, importing as they go, work alike."""
    env = environment_without_ours()
    async with gateway(tmp_path / "data", started=True) as process:
        for program in ([sys.executable, "-m", "gateway"], [str(Path(sys.executable).parent / "dovecote")]):
            words = ("chat", "!echo hello there", "--data", str(process.data))
            child = await asyncio.create_subprocess_exec(*program, *words, env=env, cwd=tmp_path, stdout=PIPE)
            async with asyncio.timeout(60):
                out, _ = await child.communicate()
            assert child.returncode == 0
            assert b"hello there" in out


async def test_a_conversation_goes_on(running: GatewayProcess) -> None:
    """Lines that are piped in are answered in order, in the conversation of the chat before."""
    assert (await run(running, "chat", "!echo zero > kept")).code == 0
    piped = await run(running, "chat", typed="!cat kept\n!echo two\n")
    assert piped.code == 0, piped.err
    assert re.search(r"zero.*two", piped.out, re.DOTALL)


async def test_a_file_that_cannot_be_sent_is_reported(running: GatewayProcess) -> None:
    """A command with one message prints the notice about it beside the file that is sent."""
    files = "!mkdir outbox; touch outbox/good outbox/$'r\\xe9sum\\xe9'"
    answered = await run(running, "chat", files)
    assert "good /files/" in answered.out
    assert "`outbox/r\ufffdsum\ufffd`: its name is not valid UTF-8: rename it" in answered.out


async def test_jobs_are_watched_and_stopped(running: GatewayProcess) -> None:
    """A background job is listed, its output can be read while it runs, and it can be stopped."""
    assert (await run(running, "chat", "!&echo begun; sleep 300")).code == 0
    (job,) = (await run(running, "jobs", "list", "--json")).json
    assert job["state"] == "running"
    logs = await run(running, "jobs", "logs", job["id"])
    assert logs.code == 0, logs.err
    following = await start(
        "jobs", "logs", job["id"], "--follow", "--data", str(running.data), directory=running.data.parent
    )
    assert following.stdout is not None
    async with asyncio.timeout(60):
        assert await following.stdout.readline() == b"begun\n"
        assert (await run(running, "jobs", "stop", job["id"])).code == 0
        assert await following.wait() == 1
    (job,) = (await run(running, "jobs", "list", "--json")).json
    assert job["state"] == "stopped"
    assert "stopped" in (await run(running, "jobs", "list")).out


async def test_a_job_is_followed_while_the_gateway_restarts(running: GatewayProcess) -> None:
    """The job goes on, and so does its output."""
    wait = "!&echo begun; until [ -e end ]; do sleep 0.1; done; echo over"
    assert (await run(running, "chat", wait)).code == 0
    (job,) = (await run(running, "jobs", "list", "--json")).json
    following = await start(
        "jobs", "logs", job["id"], "--follow", "--data", str(running.data), directory=running.data.parent
    )
    assert following.stdout is not None
    assert following.stderr is not None
    async with asyncio.timeout(60):
        assert await following.stdout.readline() == b"begun\n"
        await running.kill()
        assert b"trying again" in await following.stderr.readline()
        await running.start()
        assert (await run(running, "chat", "!touch end")).code == 0
        assert await following.stdout.readline() == b"over\n"
        assert await following.wait() == 0


async def test_files_of_a_workspace_are_managed(running: GatewayProcess, tmp_path: Path) -> None:
    """They are written from a local file and stdin, listed, searched, moved and removed; never outside."""
    (tmp_path / "local.txt").write_bytes(b"from a file\n")
    assert (await run(running, "files", "put", "default", "a/one.txt", str(tmp_path / "local.txt"))).code == 0
    assert (await run(running, "files", "put", "default", "two.txt", typed="from stdin\n")).code == 0
    assert (await run(running, "files", "mkdir", "default", "empty")).code == 0
    assert (await run(running, "files", "mv", "default", "two.txt", "a/two.txt")).code == 0
    assert (await run(running, "files", "cp", "default", "a", "b")).code == 0
    listed = (await run(running, "files", "ls", "default", "--json")).json
    assert [one["name"] for one in listed] == ["a", "b", "empty"]
    assert (await run(running, "files", "cat", "default", "b/two.txt")).out == "from stdin\n"
    assert (await run(running, "files", "stat", "default", "a/one.txt", "--json")).json["size"] == 12
    found = await run(running, "files", "search", "default", "stdin", "b")
    assert found.out == "b/two.txt:1:from stdin\n"
    large = random.Random(0).randbytes(9 * 1024 * 1024)
    (tmp_path / "large").write_bytes(large)
    put = await run(running, "files", "put", "default", "c/large", str(tmp_path / "large"))
    assert (put.code, put.out) == (0, f"c/large: {len(large)} bytes written\n"), put.err
    stored = running.data / "workspaces"
    assert [path.read_bytes() for path in stored.glob("*/c/large")] == [large]
    assert (await run(running, "files", "rm", "default", "b")).code == 0
    assert (await run(running, "files", "cat", "default", "b/two.txt")).code == 1
    assert (await run(running, "files", "rm", "default", "../..")).code == 2
    assert (await run(running, "workspaces", "show", "default")).code == 0


async def test_files_of_a_turn_are_compared_and_restored(running: GatewayProcess, tmp_path: Path) -> None:
    """A turn's changes are shown and saved, and a file that was changed since is put back."""
    assert (await run(running, "chat", "!mkdir t; echo one >t/one; echo two >t/two")).code == 0
    turn = (await run(running, "turns", "list", "--json")).json[0]["id"]
    assert "+one" in (await run(running, "turns", "files", turn, "--diff")).out
    assert (await run(running, "turns", "files", turn, "--archive", str(tmp_path / "t.gz"))).code == 0
    with tarfile.open(tmp_path / "t.gz") as tar:
        assert sorted(tar.getnames()) == ["t/one", "t/two"]
    assert (await run(running, "files", "put", "default", "t/one", typed="changed\n")).code == 0
    restored = await run(running, "turns", "restore", turn, "t/one")
    assert restored.out == "restored  t/one\n0 files were as they should be\n", restored.err
    assert (await run(running, "files", "cat", "default", "t/one")).out == "one\n"


async def test_webhooks_are_received(running: GatewayProcess) -> None:
    """`webhooks listen` prints the test event of an endpoint after verifying its signature."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    added = await run(running, "webhooks", "add", f"http://127.0.0.1:{port}/", "--json")
    assert added.code == 0, added.err
    options = ("--secret", added.json["secret"], "--port", port)
    listening = await start("webhooks", "listen", *options, directory=running.data.parent)
    assert listening.stderr is not None
    assert listening.stdout is not None
    async with asyncio.timeout(30):
        await listening.stderr.readline()
        assert (await run(running, "webhooks", "test", added.json["id"])).code == 0
        received = (await listening.stdout.readline()).decode()
    assert "webhook.test" in received
    listening.send_signal(signal.SIGINT)
    async with asyncio.timeout(30):
        assert await listening.wait() == 0
    assert added.json["secret"] not in (await run(running, "webhooks", "list", "--json")).out
    for words in (("replay", "--after", "2020-01-01T00:00:00Z"), ("enable",), ("rm",)):
        done = await run(running, "webhooks", words[0], added.json["id"], *words[1:])
        assert done.code == 0, done.err
    assert (await run(running, "webhooks", "list", "--json")).json == []


async def test_keys_come_and_go(running: GatewayProcess) -> None:
    """A new key works until it is revoked; then one line reports it, exit code 1."""
    key = (await run(running, "keys", "create", "ci")).out.strip()
    assert (await run(running, "jobs", "list", "--key", key)).code == 0
    assert (await run(running, "keys", "revoke", "ci")).code == 0
    refused = await run(running, "jobs", "list", "--key", key)
    assert refused.code == 1
    assert len(refused.err.splitlines()) == 1


async def test_the_gateway_goes_away(running: GatewayProcess) -> None:
    """A chat survives a kill -9 of the gateway, and without a gateway commands end with 3."""
    chatting = await start(
        "chat", "!sleep 2; echo still here", "--data", str(running.data), directory=running.data.parent
    )
    assert chatting.stdout is not None
    async with asyncio.timeout(60):
        await chatting.stdout.readuntil(b"sleep 2")
        await running.kill()
        await running.start()
        rest, _ = await chatting.communicate()
    assert b"still here" in rest
    await running.stop()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, not listening: no other process can answer there
        port = silent.getsockname()[1]
        gone = await run(running, "jobs", "list", "--url", f"http://127.0.0.1:{port}")
    assert (gone.code, gone.out) == (3, "")
    assert "no gateway answers" in gone.err


async def test_one_directory_one_gateway(running: GatewayProcess) -> None:
    """A second gateway on a data directory, or one with a wrong setting, ends with a line, no traceback."""
    second = await run(running, "serve", "--port", "0")
    assert second.code == 1
    assert "another instance" in second.err
    wrong = await run(running, "serve", "--port", "99999")
    assert wrong.code == 2
    assert "Traceback" not in second.err + wrong.err


async def test_the_settings_file_is_applied_without_a_restart(running: GatewayProcess) -> None:
    """`apply` shows its plan, makes the records of a running gateway, and the next turn uses them."""
    file = running.data.parent / "dovecote.toml"
    file.write_text(
        '[sandboxes.plain]\nprovider = "host"\n[workspaces.repo]\n'
        '[agents.coder]\nmodel = "builtin:shell"\nsandbox = "plain"\n'
        'workspaces = [{name = "repo", workspaceId = "repo"}]\n'
    )
    planned = await run(running, "apply", "--dry-run")
    assert (planned.code, planned.out.splitlines()[-1]) == (0, "3 to change"), planned.err
    assert "coder" not in (await run(running, "agents", "list")).out
    applied = await run(running, "apply", "--json")
    assert [one["name"] for one in applied.json] == ["plain", "repo", "coder"]
    said = await run(running, "chat", "!echo applied", "--agent", "coder", "--conversation", "file")
    assert (said.code, "applied" in said.out) == (0, True), said.err
    unchanged = (await run(running, "apply")).out
    assert "nothing to change; other settings, such as [agent], take effect when" in unchanged
    assert json.loads((await run(running, "agents", "show", "coder", "--json")).out)["managed"] is True
    file.write_text('[agents.coder]\nmodel = "pigeon"\n')
    wrong = await run(running, "apply")
    assert (wrong.code, "/agents/coder/model" in wrong.err) == (1, True)
    other = await start("apply", "--data", "never-started", directory=file.parent)
    async with asyncio.timeout(60):
        assert b"has not been started on this database yet" in (await other.communicate())[1]
    assert not (file.parent / "never-started").exists()


async def test_more_lines_may_be_piped_than_can_be_in_line(running: GatewayProcess) -> None:
    """`chat` sends the next ones when earlier ones are answered."""
    lines = [f"!echo line-{number}" for number in range(70)]
    done = await run(running, "chat", typed="\n".join(lines))
    assert done.code == 0, done.err
    assert [line for line in done.out.splitlines() if line.startswith("line-")] == [
        line[6:] for line in lines
    ]


async def test_the_log_is_printed_after_the_end(running: GatewayProcess) -> None:
    """`logs` shows what the gateway of a data directory logged, also when it does not run any more."""
    assert (await run(running, "chat", "!echo hi")).code == 0
    await running.kill()
    shown = await run(running, "logs", "--level", "info", "--lines", "10000")
    assert shown.code == 0, shown.err
    assert "turn.completed" in shown.out
    found = [json.loads(line) for line in (await run(running, "logs", "--json")).out.splitlines()]
    assert "ready" in {line["event"] for line in found}
    key = (running.data / "key").read_text().strip()
    assert key not in (running.data / "logs" / "gateway.log").read_text()
    other = await start("logs", "--data", "never-started", directory=running.data.parent)
    async with asyncio.timeout(60):
        assert b"there is no log at" in (await other.communicate())[1]
    assert (await run(running, "logs", "--level", "loud")).code == 2


async def test_anyone_can_try_telegram(tmp_path: Path) -> None:
    """`doctor --simulate telegram` needs no token: a message, a job, and a killed turn are answered."""
    command = await start("doctor", "--simulate", "telegram", "--json", directory=tmp_path)
    async with asyncio.timeout(90):
        out, err = await command.communicate()
    assert command.returncode == 0, (out, err)
    found = json.loads(out)
    assert [check["state"] for check in found] == ["ok"] * 4
    assert "the command ran once, its answer came once" in found[-1]["detail"]


async def test_a_channel_is_tested_before_it_is_used(tmp_path: Path) -> None:
    """`channels test` asks the platform: the right token is well, a wrong one fails with a remedy."""
    async with simulate() as platform:
        table = platform.settings()
        for token, code in ((table["token"], 0), ("1:wrong", 1)):
            given = {**table, "token": token, "kind": "telegram", "agent": "default"}
            lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
            (tmp_path / "dovecote.toml").write_text("\n".join(["[channels.telegram]", *lines]))
            command = await start("channels", "test", "telegram", "--json", directory=tmp_path)
            out, err = await command.communicate()
            assert command.returncode == code, (out, err)
            assert all(finding["ok"] for finding in json.loads(out)) == (code == 0)
            assert b"Traceback" not in err


async def test_a_channel_of_the_gateway_is_tested_there(tmp_path: Path) -> None:
    """`channels test` asks the gateway about a channel that was added to it, whose token only it has."""
    data = tmp_path / "data"
    env = {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}
    async with simulate() as platform, gateway(data, env=env):
        token, url = (platform.settings()[key] for key in ("token", "base_url"))
        for name, given, code in (("good", token, 0), ("bad", "1:wrong", 1)):
            words = f"channels add {name} token={given} base_url={url} --kind telegram --data".split()
            assert await (await start(*words, str(data), directory=tmp_path)).wait() == 0
            command = await start("channels", "test", name, "--json", "--data", str(data), directory=tmp_path)
            out, err = await command.communicate()
            assert command.returncode == code, (out, err)
            assert all(finding["ok"] for finding in json.loads(out)) == (code == 0)
        command = await start("channels", "test", "none", "--data", str(data), directory=tmp_path)
        assert await command.wait() == 1


async def test_conversations_are_listed_and_renamed(running: GatewayProcess) -> None:
    """Conversations have the titles of their first messages, the last active first, and can be renamed."""
    for conversation, text in (("one", "!echo 1"), ("two", "!echo 2"), ("one", "!echo 3")):
        assert (await run(running, "chat", text, "--conversation", conversation)).code == 0
    listed = (await run(running, "conversations", "list", "--json")).json
    assert [(row["name"], row["title"]) for row in listed] == [("one", "!echo 1"), ("two", "!echo 2")]
    renamed = await run(running, "conversations", "rename", "two", "The second")
    assert "is now called: The second" in renamed.out
    again = await run(running, "chat", "/title", "--conversation", "two")
    assert "This conversation is called: The second" in again.out
    async with running.http() as session:
        async with session.get("/conversations?sort=created&limit=1") as answer:
            page = await answer.json()
        assert [row["title"] for row in page["items"]] == ["The second"]
        async with session.get(f"/conversations?cursor={page['next']}") as answer:
            assert answer.status == 422
        async with session.get(f"/conversations?sort=created&cursor={page['next']}") as answer:
            assert [row["name"] for row in (await answer.json())["items"]] == ["one"]
        async with session.get("/conversations?limit=1") as answer:
            newest = await answer.json()
        assert newest["items"][0]["name"] == "two"
        async with session.get(f"/conversations?limit=1&cursor={newest['next']}") as answer:
            assert [row["name"] for row in (await answer.json())["items"]] == ["one"]
        late = f"{'9' * 16}-cnv_1"
        async with session.get(f"/conversations?cursor={late}") as answer:
            assert len((await answer.json())["items"]) == 2
        async with session.get(f"/conversations?cursor=9{late}") as answer:
            assert answer.status == 422
        for refused in ({}, {"title": "\u200b"}, {"title": ""}):
            async with session.patch("/conversations/two", json=refused) as answer:
                assert answer.status == 422
    assert (await run(running, "conversations", "rm", "two")).code == 0
    assert (await run(running, "conversations", "show", "two")).code == 1

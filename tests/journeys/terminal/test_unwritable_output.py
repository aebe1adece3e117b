"""Commands whose standard output cannot be written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fake_gateway import ClientSocket, FakeGateway
from gateway.config.load import environment_without_ours


def run(*words: str, redirect: str, directory: Path) -> tuple[int, str]:
    """Run a command under a shell with a redirection; return its exit code and stderr."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "gateway", *words],
        env=environment_without_ours() | {"HOME": str(directory)},
        cwd=directory, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("redirect", "reason"), [(">&-", "Bad file descriptor"), ("> /dev/full", "No space left on device")]
)
@pytest.mark.parametrize("words", ["--help", "config show", "logs --data ."])
def test_output_that_cannot_be_written_is_an_error(
    words: str, redirect: str, reason: str, tmp_path: Path
) -> None:
    """One line with the reason, and exit code 1; nothing is taken for an error of a file that is read."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "gateway.log").write_text('{"event": "one"}\n')
    code, errors = run(*words.split(), redirect=redirect, directory=tmp_path)
    assert (code, errors) == (1, f"dovecote: the output cannot be written to stdout: {reason}\n")


def test_a_gateway_needs_no_stdout(tmp_path: Path) -> None:
    """A supervisor may close it; a full disk behind it is an error."""
    assert run("serve", "--help", redirect=">&-", directory=tmp_path) == (0, "")
    code, errors = run("serve", "--help", redirect="> /dev/full", directory=tmp_path)
    assert (code, "the output cannot be written to stdout" in errors) == (1, True)


@pytest.mark.parametrize("stdout", ["| true", "> /dev/full"])
def test_a_gateway_runs_on_when_its_stdout_fails(stdout: str, tmp_path: Path) -> None:
    """The address of the console is lost; the log is on stderr, and the gateway runs until it is stopped."""
    words = (sys.executable, "-m", "gateway", "serve", "--data", str(tmp_path / "data"), "--port", "0")
    command = ["bash", "-c", f'exec 3>&2; {{ "$@" 2>&3 3>&-; echo "exit code $?" >&3; }} {stdout}', "bash"]
    env = environment_without_ours() | {"HOME": str(tmp_path)}
    with subprocess.Popen([*command, *words], env=env, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        lines = iter(started.stderr)
        assert any(" ready " in line for line in lines)
        os.kill(int((tmp_path / "data" / "lock").read_text()), signal.SIGTERM)
        said = "".join(lines)
    assert "gateway.stop_requested" in said
    assert said.endswith("exit code 0\n")


def test_a_closed_stderr_and_stdin_are_no_error(tmp_path: Path) -> None:
    """The output is complete without them."""
    assert run("--version", redirect="2>&- <&-", directory=tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("words", "at"),
    [
        ("keys create ci", "/accounts/me/keys"),
        ("webhooks add https://h.example", "/accounts/me/webhooks"),
        ("triggers add {{body}} --conversation c", "/accounts/me/triggers"),
        ("accounts add ada", "/accounts"),
    ],
)
@pytest.mark.parametrize("redirect", [">&-", "> /dev/full"])
def test_nothing_is_kept_without_its_secret(
    gateway: FakeGateway, words: str, at: str, redirect: str, tmp_path: Path
) -> None:
    """What was created is deleted again, and two lines say why and that it is deleted."""
    gateway.responses["POST", at] = (200, {"id": "new_1", "key": "dvk_new", "secret": "whsec_new"})
    gateway.responses["DELETE", f"{at}/new_1"] = (204, "")
    asked = (*words.split(), "--url", gateway.url, "--key", "dvk_x")
    code, errors = run(*asked, redirect=redirect, directory=tmp_path)
    assert (code, len(errors.splitlines())) == (1, 2), errors
    assert "new_1 is deleted again, because nobody saw its secret" in errors
    assert [one[:2] for one in gateway.requests] == [("POST", at), ("DELETE", f"{at}/new_1")]


def test_a_secret_that_cannot_be_taken_back_is_said_to_be_lost(gateway: FakeGateway, tmp_path: Path) -> None:
    """The rotated endpoint has the new secret; the line says what to do."""
    gateway.responses["POST", "/webhooks/whk_1/rotate"] = (200, {"id": "whk_1", "secret": "whsec_new"})
    asked = ("webhooks", "rotate", "whk_1", "--url", gateway.url, "--key", "dvk_x")
    code, errors = run(*asked, redirect="> /dev/full", directory=tmp_path)
    assert (code, "rotate it again" in errors) == (1, True), errors


@pytest.mark.parametrize(
    "words",
    [
        "tail quiet --url URL --key dvk_x",
        "jobs logs job_1 --follow --url URL --key dvk_x",
        "logs --follow --data .",
        "webhooks listen --port 0 --secret whsec_MZ3T3xKWR7Dqm8GGQDQSdAXkHayh+7c+6q/t81KaAHY=",
    ],
)
def test_a_command_that_follows_ends_with_the_reader_of_its_output(
    gateway: FakeGateway, words: str, tmp_path: Path
) -> None:
    """`dovecote tail | head` ends without an error, although nothing more is to be printed."""

    async def say_nothing(socket: ClientSocket) -> None:
        await socket.receive("subscribe")
        await socket.socket.receive()  # returns when the client closes

    gateway.scripts.append(say_nothing)
    gateway.responses["GET", "/conversations/quiet"] = (200, {"id": "cnv_1"})
    gateway.responses["GET", "/jobs/job_1"] = (200, {"id": "job_1", "state": "running"})
    gateway.responses["GET", "/jobs/job_1/logs"] = (200, {"output": ""})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "gateway.log").touch()
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *words.replace("URL", gateway.url).split()],
            env=environment_without_ours() | {"HOME": str(tmp_path)},
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE,
            timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, b"Error" in done.stderr, b"dovecote:" in done.stderr) == (0, False, False)

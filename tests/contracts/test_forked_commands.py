"""A forked command line is the same as one that the interpreter starts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from commands import DEVNULL, PIPE, STDOUT, Forked, Running, can_be_forked, gateway_command
from gateway.config.load import environment_without_ours
from gateway_process import GatewayProcess

SUPPORT = Path(__file__).parents[1] / "support"

both = pytest.mark.parametrize("started", [False, True], ids=["forked", "started"])


async def command(*words: str, directory: Path, started: bool, **env: str) -> Running:
    """Start a command with pipes."""
    given = environment_without_ours() | env
    child = await gateway_command(
        *words, env=given, cwd=directory, stdin=PIPE, stdout=PIPE, stderr=PIPE, started=started
    )
    assert isinstance(child, Forked) is not started
    return child


@both
@pytest.mark.parametrize(
    ("words", "code"),
    [("version", 0), ("--version", 0), ("no-such-command", 2), ("jobs list --url http://127.0.0.1:9", 3)],
)
async def test_exit_codes_and_pipes(tmp_path: Path, started: bool, words: str, code: int) -> None:
    """What is printed goes where it belongs, and the exit code is the command's."""
    child = await command(*words.split(), directory=tmp_path, started=started)
    async with asyncio.timeout(60):
        out, errors = await child.communicate()
    assert (child.returncode, bool(out), bool(errors)) == (code, code == 0, code != 0)


@both
async def test_environment_and_working_directory_are_its_own(tmp_path: Path, started: bool) -> None:
    """Settings come from its environment and from the file in its working directory."""
    (tmp_path / "dovecote.toml").write_text("port = 4242\n")
    child = await command(
        "config", "show", directory=tmp_path, started=started, DOVECOTE_HOST="127.0.0.7", HOME=str(tmp_path)
    )
    async with asyncio.timeout(60):
        out, errors = await child.communicate()
    assert child.returncode == 0, errors
    assert b"4242" in out
    assert b"127.0.0.7" in out


@both
async def test_signals_reach_it_and_end_it(tmp_path: Path, started: bool) -> None:
    """Its process id is the gateway's own; SIGKILL shows in its exit code, SIGTERM ends it politely."""
    process = GatewayProcess(tmp_path / "data", started=started)
    await process.start()
    assert Path(f"/proc/{process.pid}/cwd").samefile(tmp_path)  # noqa: ASYNC240 - procfs answers at once
    assert await process.kill() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    await process.start()
    assert await process.kill(signal.SIGTERM) == 0


@both
async def test_output_and_errors_share_a_pipe_on_request(tmp_path: Path, started: bool) -> None:
    """A complaint comes out of the standard output when both are one."""
    child = await gateway_command(
        "no-such-command", env=environment_without_ours(), cwd=tmp_path,
        stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, started=started,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, errors = await child.communicate()
    assert b"no-such-command" in out
    assert not errors


async def test_what_works_at_the_start_of_the_interpreter_is_not_forked() -> None:
    """A path or a hash seed that the zygote does not have asks for the real command line."""
    assert can_be_forked(environment_without_ours())
    assert not can_be_forked(environment_without_ours() | {"PYTHONPATH": "/elsewhere"})


async def test_streams_of_a_run_whose_output_is_a_file_are_those_of_a_pipe(tmp_path: Path) -> None:
    """The zygote of such a run can position its output; what it forks cannot, and must not try."""
    program = (
        f"import os, sys; sys.path.insert(0, {str(SUPPORT)!r}); import zygote; os.dup2(2, 1);"
        "zygote.open_standard_streams(); sys.stdout.reconfigure(errors='replace'); print('whole')"
    )
    with (tmp_path / "output").open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=DEVNULL, stdout=output, stderr=PIPE
        )
        _, errors = await child.communicate()
    assert errors == b"whole\n"

"""Commands in a remote sandbox, with a real shell on this machine in its place."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from pathlib import Path

import pytest

from sandbox.errors import ProviderUnreachable, UnsafePath
from sandbox.exec.exec_sandbox import ExecSandbox
from sandbox.model import ExecRequest
from sandbox.testing.processes import processes_with, unique_sleep_seconds

SHELLS = [shell for shell in ("/bin/dash", "/bin/bash") if Path(shell).exists()]


class LocalShellExec:
    """A vendor's exec: a shell of this machine."""

    def __init__(self, directory: Path, shell: str) -> None:
        self.directory = directory
        self.shell = shell

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a program; its file of input is removed by the program itself."""
        given = ""
        if stdin:
            path = self.directory / secrets.token_hex(4)
            path.write_bytes(stdin)
            given = str(path)
        program = self.directory / "program"
        program.write_text(f"input={shlex.quote(given)}\n{text}", encoding="utf-8", errors="surrogateescape")
        child = await asyncio.create_subprocess_exec(
            self.shell, str(program), stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        try:
            async with asyncio.timeout(timeout):
                answer, _ = await child.communicate()
        except TimeoutError as error:
            raise ProviderUnreachable from error
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return answer


@pytest.fixture(params=SHELLS)
def exec_sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> ExecSandbox:
    """Return a sandbox with each shell."""
    env = {"GREETING": "hello 'w\u00f6rld'\n2", "PATH": "/nowhere"}
    return ExecSandbox(
        exec=LocalShellExec(tmp_path, request.param),
        mount=str(tmp_path / "work"),
        home="/root",
        user="root",
        env=env,
    )


async def test_a_result_is_returned_byte_for_byte(exec_sandbox: ExecSandbox) -> None:
    """Exit code, every byte of both streams, and stdin come through."""
    every = bytes(range(256)) * 4
    result = await exec_sandbox.run(ExecRequest(script="cat; echo err >&2; exit 3", stdin=every))
    assert (result.exit_code, result.stdout, result.stderr) == (3, every, b"err\n")
    assert (await exec_sandbox.run(ExecRequest(script="true"))).ok


async def test_the_environment_is_what_was_given(exec_sandbox: ExecSandbox) -> None:
    """Declared variables arrive, the runtime's own win, and none of the sandbox's own does."""
    os.environ["CANARY"] = "seen"
    try:
        result = await exec_sandbox.run(ExecRequest(script='echo "$GREETING"; env | cut -d= -f1 | sort; pwd'))
    finally:
        del os.environ["CANARY"]
    text = result.stdout.decode()
    assert text.startswith("hello 'w\u00f6rld'\n2\n")
    assert "CANARY" not in text
    assert "/nowhere" not in text
    assert text.rstrip().endswith(exec_sandbox.mount)


async def test_output_beyond_the_limit_is_dropped_and_said(exec_sandbox: ExecSandbox) -> None:
    """Exactly the limit is whole, one byte more is cut, and a flood does not last."""
    whole = await exec_sandbox.run(ExecRequest(script="printf %100s x", output_limit=100))
    cut = await exec_sandbox.run(ExecRequest(script="printf %101s x >&2", output_limit=100))
    flood = await exec_sandbox.run(ExecRequest(script="head -c 20000000 /dev/zero", output_limit=100))
    assert (len(whole.stdout), whole.stdout_truncated) == (100, False)
    assert (len(cut.stderr), cut.stderr_truncated) == (100, True)
    assert (len(flood.stdout), flood.stdout_truncated, flood.exit_code) == (100, True, 0)


async def test_a_time_out_ends_the_whole_tree(exec_sandbox: ExecSandbox) -> None:
    """What left the session and what was reparented is dead when run returns."""
    nap = unique_sleep_seconds()
    script = f"(setsid sleep {nap} &); setsid sleep {nap} & echo begun; sleep {nap}"
    result = await exec_sandbox.run(ExecRequest(script=script, timeout=0.5))
    assert (result.timed_out, result.exit_code, result.stdout) == (True, 137, b"begun\n")
    assert processes_with(nap) == []


async def test_what_a_command_leaves_behind_dies_with_it(exec_sandbox: ExecSandbox) -> None:
    """A daemon without descriptors in its own session ends with its run; one of ours may stay."""
    nap = unique_sleep_seconds()
    daemon = f"setsid bash -c 'exec sleep {nap} <&- >&- 2>&-' & echo done"
    assert (await exec_sandbox.run(ExecRequest(script=daemon))).stdout == b"done\n"
    assert processes_with(nap) == []
    await exec_sandbox.run_internal(ExecRequest(script=f"setsid sleep {nap} </dev/null >/dev/null 2>&1 &"))
    left = processes_with(nap)
    assert len(left) == 1
    os.kill(left[0], 9)


@pytest.mark.parametrize(("ending", "code"), [("sleep 30", 137), ("exit 3", 3)])
async def test_what_cleared_its_environment_ends_too_if_it_holds_the_output(
    exec_sandbox: ExecSandbox, ending: str, code: int
) -> None:
    """A process that left, and has no mark, is found by the output that it holds open: no result waits."""
    seconds = unique_sleep_seconds()
    script = f"echo begun; (env -i setsid sleep {seconds} &); {ending}"
    async with asyncio.timeout(25):
        result = await exec_sandbox.run(ExecRequest(script=script, timeout=2))
    assert (result.exit_code, result.timed_out) == (code, code == 137)
    assert result.stdout == b"begun\n"
    assert processes_with(f"sleep\x00{seconds}") == []


async def test_cancelling_leaves_no_orphan(exec_sandbox: ExecSandbox) -> None:
    """When the caller is cancelled everything is dead before the cancellation arrives."""
    nap = unique_sleep_seconds()
    task = asyncio.ensure_future(exec_sandbox.run(ExecRequest(script=f"setsid sleep {nap} & sleep {nap}")))
    async with asyncio.timeout(10):
        while len(processes_with(f"sleep\0{nap}")) < 2:  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert processes_with(f"sleep\0{nap}") == []


async def test_what_cannot_be_passed_on_is_refused(exec_sandbox: ExecSandbox) -> None:
    """NUL and a script longer than an argument may be."""
    for script in ("echo \0", "x" * 200_000):
        with pytest.raises(UnsafePath):
            await exec_sandbox.run(ExecRequest(script=script))

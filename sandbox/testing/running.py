"""What a provider promises about commands: their output, time-outs, ends and environment."""

from __future__ import annotations

import asyncio
import signal

import pytest

from sandbox.errors import SandboxError
from sandbox.model import ExecRequest, ExecResult
from sandbox.port import Feature, Provider, Sandbox
from sandbox.testing.processes import processes_with
from sandbox.testing.rig import ProviderRig
from sandbox.testing.waiting import until

RUNTIMES_OWN = {"PATH", "HOME", "TMPDIR", "PWD", "SHELL", "USER", "LOGNAME", "LANG", "TERM", "SHLVL", "_"}
RUNTIMES_OWN |= {
    "DOVECOTE_TASK",
    "PIP_BREAK_SYSTEM_PACKAGES",
    "NPM_CONFIG_PREFIX",
    "DOVECOTE_CALLBACK",
    "DOVECOTE_WORKSPACE",
}


async def _has(sandbox: Sandbox, name: str) -> bool:
    try:
        await sandbox.read(name, limit=1)
    except FileNotFoundError:
        return False
    return True


class RunContract:
    """What a provider promises about commands."""

    async def test_a_result_has_exit_code_and_both_streams(self, sandbox: Sandbox) -> None:
        """A result has the exit code, stdout and stderr of a script."""
        result = await sandbox.run(ExecRequest(script="echo out; echo err >&2; exit 3"))
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert not result.ok
        assert not result.timed_out
        assert result.runtime == "bash"

    async def test_a_signal_shows_in_the_exit_code(self, sandbox: Sandbox) -> None:
        """A command that a signal ends has exit code 128 + its number."""
        result = await sandbox.run(ExecRequest(script="kill -SEGV $$"))
        assert result.exit_code == 128 + signal.SIGSEGV

    async def test_only_cut_output_is_truncated(self, sandbox: Sandbox) -> None:
        """Output of exactly the limit is complete; with one byte more it is marked as truncated."""
        exact = await sandbox.run(ExecRequest(script="printf %1024s x", output_limit=1024))
        assert (len(exact.stdout), exact.stdout_truncated) == (1024, False)
        over = await sandbox.run(ExecRequest(script="printf %1025s x >&2", output_limit=1024))
        assert (len(over.stderr), over.stderr_truncated, over.stdout_truncated) == (1024, True, False)

    async def test_output_is_passed_on_while_a_command_runs(self, sandbox: Sandbox, rig: ProviderRig) -> None:
        """The command waits for a file that is written when its first output has arrived."""
        if Feature.LIVE_OUTPUT not in rig.plugin.features:
            pytest.skip("the provider does not declare LIVE_OUTPUT")
        received, arrived = {"stdout": b"", "stderr": b""}, asyncio.Event()

        def listen(stream: str, content: bytes) -> None:
            received[stream] += content
            arrived.set()

        script = "echo first; until [ -e go ]; do sleep 0.05; done; echo second; echo failed >&2"
        command = ExecRequest(script=script, output_limit=12, timeout=60, on_output=listen)
        running = asyncio.create_task(sandbox.run(command))
        async with asyncio.timeout(60):
            await arrived.wait()
            assert received["stdout"].startswith(b"first")
            await sandbox.write("go", b"")
            result = await running
        assert result.stdout_truncated
        assert received == {"stdout": b"first\nsecond", "stderr": b"failed\n"}

    async def test_a_time_out_kills_the_whole_tree(self, sandbox: Sandbox, sleep_seconds: str) -> None:
        """After a time-out no process of the command is alive, not even in other sessions."""
        script = f"(setsid sleep {sleep_seconds} &) ; setsid sleep {sleep_seconds} & sleep {sleep_seconds}"
        result = await sandbox.run(ExecRequest(script=f"echo begun; {script}", timeout=1))
        assert result.timed_out
        assert result.exit_code == 137
        assert result.stdout == b"begun\n"
        assert processes_with(sleep_seconds) == []

    async def test_a_daemon_ends_with_its_command(self, sandbox: Sandbox, sleep_seconds: str) -> None:
        """A daemon that closed its descriptors and left the session does not outlive the run."""
        daemon = f"setsid bash -c 'exec sleep {sleep_seconds} <&- >&- 2>&-' & "
        result = await sandbox.run(ExecRequest(script=f"{daemon} echo done"))
        assert result.stdout == b"done\n"
        assert processes_with(sleep_seconds) == []

    async def test_cancelling_leaves_no_orphan(self, sandbox: Sandbox, sleep_seconds: str) -> None:
        """When the caller is cancelled, all processes are dead before the cancellation is raised."""
        task = asyncio.ensure_future(sandbox.run(ExecRequest(script=f"touch begun; sleep {sleep_seconds}")))

        await until(lambda: _has(sandbox, "begun"))
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert processes_with(sleep_seconds) == []

    async def test_cancelling_at_once_leaves_no_orphan(
        self, sandbox: Sandbox, rig: ProviderRig, sleep_seconds: str
    ) -> None:
        """A cancellation while the command starts leaves no process either."""
        for _ in range(10 if rig.mounts else 2):
            task = asyncio.ensure_future(sandbox.run(ExecRequest(script=f"sleep {sleep_seconds}")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled()
        assert processes_with(sleep_seconds) == []

    async def test_destroying_ends_a_running_command(
        self, provider: Provider, sandbox: Sandbox, rig: ProviderRig, sleep_seconds: str
    ) -> None:
        """A command ends with its sandbox, as an error or without success, and leaves no process."""
        if not rig.isolated:
            pytest.skip("commands are plain processes of this machine")
        task = asyncio.ensure_future(sandbox.run(ExecRequest(script=f"touch begun; sleep {sleep_seconds}")))
        await until(lambda: _has(sandbox, "begun"))
        await provider.destroy(sandbox.id)
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, SandboxError) or (isinstance(outcome, ExecResult) and not outcome.ok)
        assert processes_with(sleep_seconds) == []

    async def test_the_environment_is_what_was_given(self, provider: Provider, rig: ProviderRig) -> None:
        """A run has the declared variables and the runtime's fixed ones, which take precedence."""
        spec = rig.spec(
            env={"GREETING": "hello wörld\n2", "PATH": "/nowhere", "HOME": "/nowhere", "EMPTY": ""}
        )
        sandbox = await provider.create(spec)
        result = await sandbox.run(ExecRequest(script="env -0"))
        seen = dict(entry.split("=", 1) for entry in result.stdout.decode().split("\0") if entry)
        assert set(seen) - RUNTIMES_OWN == {"GREETING", "EMPTY"}
        assert seen["GREETING"] == "hello wörld\n2"
        assert "/nowhere" not in (seen["PATH"], seen["HOME"])

    async def test_a_command_may_ignore_its_input(self, sandbox: Sandbox) -> None:
        """Input that is not read neither blocks nor fails the run."""
        result = await sandbox.run(ExecRequest(script="echo fine", stdin=b"x" * 1_000_000))
        assert result.stdout == b"fine\n"

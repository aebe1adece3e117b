"""Commands in any remote Linux instance: the port's guarantees on top of a vendor's plain exec.

`sandbox/exec/scripts/run.sh` adds what a vendor's exec lacks: an environment that begins empty, stdout and
stderr separately and byte for byte, output limits at the source, and a time-out and a cleanup that kill the
process tree. Processes are recognised by a mark in their environment, by their session and by descent; one
that removes all three lives until the instance is suspended.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sandbox.errors import ProviderUnreachable, SandboxGone, UnsafePath, repeatable
from sandbox.exec.background_jobs import MAX_SCRIPT_BYTES
from sandbox.exec.scripts import program
from sandbox.model import ExecRequest, ExecResult

GRACE_SECONDS = 20.0
"""Seconds beyond a command's time-out within which the instance must return the result."""

CLEANUP_SECONDS = 15.0
CLEANUP_PAUSE_SECONDS = 0.2

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Exec(Protocol):
    """A vendor's way to run a shell program in its instance."""

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run the program `text` with /bin/sh or bash; return its stdout, at most a few megabytes of ASCII.

        A non-empty `stdin` is first written to a file of mode 0600 in the instance; the variable `input`
        holds its path. Raises SandboxGone before the program has begun and CommandInterrupted afterwards,
        if the sandbox is gone; raises ProviderUnreachable, ProviderRefused, ProviderUnauthorized;
        ProviderUnreachable too if the program is not done after `timeout` seconds.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSandbox:
    """Runs commands in an instance: in the directory `mount`, as the user whose HOME is `home`."""

    exec: Exec
    mount: str
    home: str
    user: str
    path: str = PATH
    env: Mapping[str, str] = field(default_factory=dict)

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run an account's command; none of its processes is left when this returns or is cancelled."""
        return await self._run(command, sweep=True)

    async def run_internal(self, command: ExecRequest) -> ExecResult:
        """Run a program of ours and keep its background processes (`background_jobs.RunScript`)."""
        with repeatable():
            return await self._run(command, sweep=False)

    async def _run(self, command: ExecRequest, *, sweep: bool) -> ExecResult:
        validate_script(command.script)
        key, started = secrets.token_hex(8), time.monotonic()
        text = self.program_for(command, key, sweep=sweep)
        # A separate task, because an SDK's handling of cancellation on Python 3.11 is not reliable.
        execution = asyncio.create_task(
            self.exec(text, stdin=command.stdin, timeout=command.timeout + GRACE_SECONDS)
        )
        try:
            await asyncio.wait({execution})
            output = execution.result()
        except BaseException:  # cancelled, or the connection broke: kill the command's processes
            await self._clean_up(key, execution, sweep=sweep)
            raise
        return parse_result(output, command, int((time.monotonic() - started) * 1000))

    def program_for(self, command: ExecRequest, key: str, *, sweep: bool) -> str:
        """Return the shell program that runs a command and prints its result for `parse_result`."""
        words = {
            "key": key,
            "mount": self.mount,
            "limit": str(command.output_limit),
            "seconds": f"{command.timeout:g}",
            "sweeping": "yes" if sweep else "",
            "script": command.script,
        }
        lines = [f"{name}={shlex.quote(value)}" for name, value in words.items()]
        given = " ".join(shlex.quote(f"{name}={value}") for name, value in self.environment().items())
        return "\n".join([*lines, f"set -- {given}", program("jobs.sh"), program("run.sh")])

    def environment(self) -> Mapping[str, str]:
        """Return a run's environment: declared variables, overridden by the runtime's own."""
        return {
            **self.env,
            "PATH": f"{self.home}/.local/bin:{self.path}",
            "HOME": self.home,
            "USER": self.user,
            "LOGNAME": self.user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": "/tmp",  # noqa: S108 - inside the box
            "DOVECOTE_WORKSPACE": self.mount,
        }

    async def _clean_up(self, key: str, execution: asyncio.Task[bytes], *, sweep: bool) -> None:
        """Kill a command's remaining processes until its exec has ended too.

        In an instance that does not answer, the command's own time-out ends it.
        """
        text = f"{program('jobs.sh')}\nended={key}\nkin={'-1' if sweep else ''}\n{program('clean.sh')}"
        deadline = asyncio.get_running_loop().time() + CLEANUP_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            cleaning = asyncio.create_task(self.exec(text, stdin=b"", timeout=CLEANUP_SECONDS))
            await asyncio.wait({cleaning}, timeout=CLEANUP_SECONDS)
            if (
                _failed_or_cancelled(cleaning)
                or (await asyncio.wait({execution}, timeout=CLEANUP_PAUSE_SECONDS))[0]
            ):
                break
        execution.cancel()
        await asyncio.wait({execution}, timeout=CLEANUP_PAUSE_SECONDS)
        _failed_or_cancelled(execution)


def _failed_or_cancelled(task: asyncio.Task[bytes]) -> bool:
    """Return whether a task failed or did not end; its exception counts as retrieved."""
    if not task.done():
        task.cancel()
        return True
    return task.cancelled() or task.exception() is not None


def validate_script(script: str) -> None:
    """Raise UnsafePath for a script that cannot be passed on."""
    if "\0" in script:
        raise UnsafePath("a script must not contain NUL")
    if len(script.encode("utf-8", "surrogateescape")) > MAX_SCRIPT_BYTES:
        raise UnsafePath(
            f"a script has at most {MAX_SCRIPT_BYTES} bytes: put it into a file of the workspace"
        )


def parse_result(output: bytes, command: ExecRequest, duration_ms: int) -> ExecResult:
    """Return the result that a program of `program_for` printed; raises SandboxGone, ProviderUnreachable."""
    head, _, rest = output.partition(b"\n")
    if head.strip() == b"gone":
        raise SandboxGone("the workspace's directory cannot be made in the sandbox")
    out, _, err = rest.partition(b"\n.\n") if not rest.startswith(b".\n") else (b"", b"", rest[2:])
    try:
        code, late = head.split()
        stdout, stderr = base64.b64decode(out), base64.b64decode(err)
        return ExecResult(
            exit_code=int(code),
            stdout=stdout[: command.output_limit],
            stderr=stderr[: command.output_limit],
            timed_out=late == b"yes",
            stdout_truncated=len(stdout) > command.output_limit,
            stderr_truncated=len(stderr) > command.output_limit,
            duration_ms=duration_ms,
        )
    except (ValueError, binascii.Error) as error:
        raise ProviderUnreachable(f"invalid result from the sandbox: {output[:200]!r}") from error

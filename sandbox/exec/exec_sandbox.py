"""Commands in any Linux box elsewhere that can run a shell program: our promises on top of a plain exec.

What a vendor's exec leaves open is done inside the box by `sandbox/exec/scripts/run.sh`: an environment that
begins empty, stdout and stderr apart and byte for byte, caps at the source, a time-out and a sweep that end
the whole tree. Processes are known by a mark in their environment, by their session and by descent; one that
gets rid of all three lives on until the box sleeps.
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

from sandbox.errors import Gone, Unreachable, Unsafe
from sandbox.exec.background_jobs import LONGEST_SCRIPT
from sandbox.exec.scripts import program
from sandbox.model import Command, Result

GRACE = 20.0
"""Seconds beyond a command's own time-out that the box has for saying what came of it."""

CLEANING = 15.0
BREATH = 0.2

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Exec(Protocol):
    """A vendor's way to run a shell program in its box."""

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run the program `text` by /bin/sh or bash and return its stdout, at most some megabytes of ASCII.

        Where `stdin` is not empty it is put into a file of mode 0600 in the box first, whose path the program
        finds in the variable `input`. Raises Gone, Unreachable, Refused, Unauthorized; Unreachable when the
        program is not done after `timeout` seconds.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxed:
    """Runs commands in a box: in the directory `mount`, as somebody whose HOME is `home`."""

    exec: Exec
    mount: str
    home: str
    user: str
    env: Mapping[str, str] = field(default_factory=dict)

    async def run(self, command: Command) -> Result:
        """Run an account's command; when this returns or is cancelled nothing of it lives."""
        return await self._run(command, sweeping=True)

    async def run_ours(self, command: Command) -> Result:
        """Run a program of ours, which may leave something behind (see `sandbox.exec.background_jobs.Run`)."""
        return await self._run(command, sweeping=False)

    async def _run(self, command: Command, *, sweeping: bool) -> Result:
        check(command.script)
        key, begun = secrets.token_hex(8), time.monotonic()
        text = self._program(command, key, sweeping=sweeping)
        # A task of its own: what an SDK makes of a cancellation on Python 3.11 is not to be relied on.
        asking = asyncio.create_task(self.exec(text, stdin=command.stdin, timeout=command.timeout + GRACE))
        try:
            await asyncio.wait({asking})
            answer = asking.result()
        except BaseException:  # cancelled, or the exchange broke off: nothing of the command may live on
            await self._clean_up(key, asking)
            raise
        return _result(answer, command, int((time.monotonic() - begun) * 1000))

    def _program(self, command: Command, key: str, *, sweeping: bool) -> str:
        words = {
            "key": key,
            "mount": self.mount,
            "limit": str(command.output_limit),
            "seconds": f"{command.timeout:g}",
            "sweeping": "yes" if sweeping else "",
            "script": command.script,
        }
        lines = [f"{name}={shlex.quote(value)}" for name, value in words.items()]
        given = " ".join(shlex.quote(f"{name}={value}") for name, value in self.environment().items())
        return "\n".join([*lines, f"set -- {given}", program("jobs.sh"), program("run.sh")])

    def environment(self) -> Mapping[str, str]:
        """Return what a run sees: the declared variables, over which the runtime's own win."""
        return {
            **self.env,
            "PATH": f"{self.home}/.local/bin:{PATH}",
            "HOME": self.home,
            "USER": self.user,
            "LOGNAME": self.user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "TMPDIR": "/tmp",  # noqa: S108 - inside the box
            "DOVECOTE_WORKSPACE": self.mount,
        }

    async def _clean_up(self, key: str, asking: asyncio.Task[bytes]) -> None:
        """End what is left of a command until its exec has ended too; in a box that does not answer its own
        time-out does it."""
        text = f"{program('jobs.sh')}\nended={key}\n{program('clean.sh')}"
        deadline = asyncio.get_running_loop().time() + CLEANING
        while asyncio.get_running_loop().time() < deadline:
            cleaning = asyncio.create_task(self.exec(text, stdin=b"", timeout=CLEANING))
            await asyncio.wait({cleaning}, timeout=CLEANING)
            if _is_over(cleaning) or (await asyncio.wait({asking}, timeout=BREATH))[0]:
                break
        asking.cancel()
        await asyncio.wait({asking}, timeout=BREATH)
        _is_over(asking)


def _is_over(task: asyncio.Task[bytes]) -> bool:
    """Say whether a task failed or did not end; its exception counts as seen."""
    if not task.done():
        task.cancel()
        return True
    return task.cancelled() or task.exception() is not None


def check(script: str) -> None:
    """Raise Unsafe for a script that cannot be passed on."""
    if "\0" in script:
        raise Unsafe("a script must not contain NUL")
    if len(script.encode("utf-8", "surrogateescape")) > LONGEST_SCRIPT:
        raise Unsafe(f"a script has at most {LONGEST_SCRIPT} bytes: put it into a file of the workspace")


def _result(answer: bytes, command: Command, duration_ms: int) -> Result:
    head, _, rest = answer.partition(b"\n")
    if head.strip() == b"gone":
        raise Gone("the workspace's directory cannot be made in the sandbox")
    out, _, err = rest.partition(b"\n.\n") if not rest.startswith(b".\n") else (b"", b"", rest[2:])
    try:
        code, late = head.split()
        stdout, stderr = base64.b64decode(out), base64.b64decode(err)
        return Result(
            exit_code=int(code),
            stdout=stdout[: command.output_limit],
            stderr=stderr[: command.output_limit],
            timed_out=late == b"yes",
            stdout_truncated=len(stdout) > command.output_limit,
            stderr_truncated=len(stderr) > command.output_limit,
            duration_ms=duration_ms,
        )
    except (ValueError, binascii.Error) as error:
        raise Unreachable(f"the sandbox says of its command: {answer[:200]!r}") from error

"""Run programs of any length at AgentRun, whose commands end after 30 seconds.

A program is started in the background under a name of its own, and calls that wait for less than that ask for
its end. Starting the same name twice starts it once, and an answer is removed only after it has arrived: a
call whose answer was lost is repeated, and the program still runs once. Only the description of a sandbox
says that it is gone: its own calls pass proxies and programs that answer 404 for other reasons.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandbox.agentrun.api import ENDED_STATES, AgentRunApi, CommandOutput
from sandbox.errors import (
    CommandInterrupted,
    ProviderRefused,
    ProviderUnreachable,
    SandboxGone,
    outcome_unknown,
)
from sandbox.model import SandboxId

MAX_ARGUMENT_BYTES = 64 * 1024
"""The most bytes of a program in a command, which Linux limits; a longer one is uploaded."""
PIECE_BYTES = 256 * 1024
TRIES, PAUSE_SECONDS = 3, 0.2
_STEP_SECONDS = 0.05
_ENDED = re.compile(r"ended (\d{1,3}) +(\d{1,12})\n([A-Za-z0-9+/=]*)\n")

Returned = TypeVar("Returned")

_START = """\
{forget}d=/tmp/dovecote-{key}
if mkdir -m 700 "$d" 2>/dev/null; then
  {place}
  setsid sh -c 'sh "$0/program" >"$0/output" 2>"$0/errors"
echo $? >"$0/code.new"; mv "$0/code.new" "$0/code"' "$d" </dev/null >/dev/null 2>&1 &
fi
"""
_WAIT = """\
d=/tmp/dovecote-{key}; n=0
[ -d "$d" ] || {{ echo lost; exit 0; }}
while [ ! -e "$d/code" ] && [ $n -lt {steps} ]; do sleep {step}; n=$((n+1)); done
[ -e "$d/code" ] || {{ echo running; exit 0; }}
echo "ended $(cat "$d/code") $(wc -c <"$d/output")"
tail -c 500 "$d/errors" | base64 | tr -d '\\n'; echo
tail -c +{first} "$d/output" | head -c {piece} | base64 | tr -d '\\n'
"""


class AgentRunHandle:
    """Runs programs in one sandbox (`sandbox.exec.exec_sandbox.Exec`)."""

    def __init__(self, api: AgentRunApi, sandbox_id: SandboxId, *, wait_seconds: float) -> None:
        self._api = api
        self._wait_seconds = wait_seconds
        self.id = sandbox_id
        self._forgotten: list[str] = []

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program and return its stdout."""
        given = await self._upload(stdin) if stdin else ""
        return await self.shell(f"input={given}\n{text}", timeout=timeout)

    async def shell(self, text: str, *, timeout: float) -> bytes:
        """Run a shell program; raises OutcomeUnknown if it has not ended after `timeout` seconds.

        Raises SandboxGone before the program can have begun, and CommandInterrupted afterwards.
        """
        key = secrets.token_hex(8)
        start = _START.format(forget=self._forget(), key=key, place=await self._placing(text))
        with outcome_unknown():
            code, output, errors = await self._run(start, key, timeout)
        self._forgotten.append(key)
        if code != 0:
            raise ProviderRefused(f"agentrun: a program ended with {code}: {errors}")
        return output

    async def _run(self, start: str, key: str, timeout: float) -> tuple[int, bytes, str]:
        """Start a program; return its exit code, its output and the end of its errors."""
        deadline = time.monotonic() + timeout
        command = start + _waiting(key, 0, min(self._wait_seconds, timeout))
        answer = await self._command(command, begun=False)
        is_late = False  # asked once more afterwards: a gateway that was paused has an old answer
        while answer.stdout.startswith("running"):
            if is_late:
                raise ProviderUnreachable(f"agentrun: a program is not done after {timeout:g} seconds")
            is_late = time.monotonic() > deadline
            answer = await self._command(_waiting(key, 0, 0.0 if is_late else self._wait_seconds))
        code, size, output = _parsed(answer)
        while len(output) < size:
            _code, _size, piece = _parsed(await self._command(_waiting(key, len(output), self._wait_seconds)))
            if not piece:
                raise ProviderUnreachable("agentrun: the output of a program is incomplete")
            output += piece
        return code, output, _errors(answer)

    def _forget(self) -> str:
        """Return the command that removes the answers which have arrived."""
        keys, self._forgotten = self._forgotten, []
        names = " ".join(f"/tmp/dovecote-{key}" for key in keys)  # noqa: S108 - inside the sandbox
        return f"rm -rf {names}\n" if names else ""

    async def _placing(self, text: str) -> str:
        """Return the command that writes a program into its directory."""
        content = text.encode("utf-8", "surrogateescape")
        if len(content) > MAX_ARGUMENT_BYTES:
            return f'mv {await self._upload(content)} "$d/program"'
        return f"printf %s '{base64.b64encode(content).decode()}' | base64 -d >\"$d/program\""

    async def _upload(self, content: bytes) -> str:
        path = f"/tmp/dovecote-{secrets.token_hex(8)}.input"  # noqa: S108 - inside the sandbox
        await self._repeated(lambda: self._api.upload(self.id, path, content))
        return shlex.quote(path)

    async def _command(self, command: str, *, begun: bool = True) -> CommandOutput:
        """Run a command of ours; `begun`: whether the program has certainly begun before."""
        return await self._repeated(lambda: self._api.run(self.id, command), begun=begun, starts=True)

    async def _repeated(
        self, call: Callable[[], Awaitable[Returned]], *, begun: bool = False, starts: bool = False
    ) -> Returned:
        """Make a call that may be repeated; repeat it if the service does not answer.

        A call that `starts` the program may have started it although no answer came.
        """
        for number in range(1, TRIES + 1):
            try:
                return await self._call(call)
            except SandboxGone as error:
                if begun:
                    raise CommandInterrupted from error
                raise
            except ProviderUnreachable:
                if number == TRIES:
                    raise
                begun = begun or starts
                await asyncio.sleep(PAUSE_SECONDS * 2**number)
        raise AssertionError("unreachable")

    async def _call(self, call: Callable[[], Awaitable[Returned]]) -> Returned:
        """Make a call of the sandbox; raises SandboxGone only if the service describes it as ended."""
        try:
            return await call()
        except SandboxGone as error:
            if (await self._api.get(self.id)).status in ENDED_STATES:
                raise
            raise ProviderUnreachable(str(error)) from error


def _waiting(key: str, offset: int, seconds: float) -> str:
    steps = max(1, int(seconds / _STEP_SECONDS))
    return _WAIT.format(key=key, steps=steps, step=_STEP_SECONDS, first=offset + 1, piece=PIECE_BYTES)


def _parsed(answer: CommandOutput) -> tuple[int, int, bytes]:
    """Return the exit code, the whole size and a piece of the output; raises ProviderUnreachable."""
    found = _ENDED.match(answer.stdout)
    if answer.stdout.startswith("lost"):
        raise ProviderUnreachable(
            "agentrun: the directory of the program in the sandbox's /tmp is gone, or could not be made:"
            " check that /tmp is writable, has space, and that no command empties it"
        )
    if found is None:
        shown = (answer.stdout or answer.stderr)[:200]
        raise ProviderUnreachable(f"agentrun: invalid answer of a program: {shown!r}")
    try:
        return int(found[1]), int(found[2]), base64.b64decode(answer.stdout[found.end() :])
    except binascii.Error as error:
        raise ProviderUnreachable("agentrun: the answer of a program was truncated") from error


def _errors(answer: CommandOutput) -> str:
    found = _ENDED.match(answer.stdout)
    return base64.b64decode(found[3] if found else "").decode(errors="replace").strip()

"""A sandbox at E2B: one virtual machine, reached through the SDK and resumed if it was paused."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from e2b import AsyncCommandHandle, AsyncSandbox, CommandExitException, CommandResult
from e2b.exceptions import (
    RateLimitException,
    SandboxNotRunningException,
    SandboxUnreachableException,
    ServiceBusyException,
)

from sandbox.e2b.errors import translate_errors
from sandbox.errors import ProviderRefused, as_interrupted, outcome_unknown
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.exec.shell_sandbox import ShellSandbox
from sandbox.model import SandboxId, SandboxSpec

MAX_ARGUMENT_BYTES = 64 * 1024
"""The most bytes of a program passed as an argument (half of what Linux allows); a longer one is uploaded."""

_PROXY_ANSWERS = ("was not found", "port is not open")
"""What E2B's proxy says in place of a sandbox that is paused or gone, or whose own server is away."""

Returned = TypeVar("Returned")


class E2bHandle:
    """The SDK's handle of one sandbox; a call that finds it paused resumes it and is repeated once."""

    def __init__(self, sandbox: AsyncSandbox, *, timeout: int, user: str, options: Mapping[str, Any]) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self._options = options
        self._expires_at = time.monotonic() + timeout
        self.user = user

    @property
    def id(self) -> SandboxId:
        """Return E2B's id of the sandbox."""
        return SandboxId(self._sandbox.sandbox_id)

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program as the account's user (see `sandbox.exec.exec_sandbox.Exec`)."""
        given = await self._upload(stdin) if stdin else ""
        return await self.shell(f"input={given}\n{text}", timeout=timeout)

    async def shell(self, text: str, *, timeout: float, user: str = "") -> bytes:
        """Run a shell program and return its output."""
        if len(text) > MAX_ARGUMENT_BYTES:
            text = f". {await self._upload(text.encode('utf-8', 'surrogateescape'))}"
        running = await self._with_resume(lambda: self._start(text, timeout=timeout, user=user or self.user))
        return str((await _wait_for_exit(running)).stdout).encode()

    async def _start(self, text: str, *, timeout: float, user: str) -> AsyncCommandHandle:
        """Start a program; raises OutcomeUnknown if it may have begun, and the SDK's error if it has not."""
        try:
            return await self._sandbox.commands.run(
                text, background=True, user=user, cwd="/", timeout=timeout
            )
        except Exception as error:
            if _was_refused(error):
                raise
            with outcome_unknown(), as_interrupted(), translate_errors():
                raise

    async def _upload(self, content: bytes) -> str:
        path = f"/tmp/.dovecote-{secrets.token_hex(8)}"  # noqa: S108 - inside the sandbox
        await self._with_resume(lambda: self._sandbox.files.write(path, content, user=self.user))
        return shlex.quote(path)

    async def _with_resume(self, call: Callable[[], Awaitable[Returned]]) -> Returned:
        with translate_errors():
            if time.monotonic() > self._expires_at - self._timeout / 2:
                await self.set_timeout(self._timeout)
            try:
                return await call()
            except (SandboxNotRunningException, SandboxUnreachableException) as error:
                if not _was_refused(error):
                    with as_interrupted(), translate_errors():
                        raise
            await self.resume()
            return await call()

    async def resume(self) -> None:
        """Resume the sandbox; raises SandboxGone."""
        with translate_errors():
            self._sandbox = await AsyncSandbox.connect(str(self.id), timeout=self._timeout, **self._options)
        self._expires_at = time.monotonic() + self._timeout

    async def set_timeout(self, seconds: int) -> None:
        """Reset E2B's own timer; a paused sandbox is resumed."""
        await self.resume()
        if seconds > self._timeout:
            with translate_errors():
                await self._sandbox.set_timeout(seconds, **self._options)
            self._expires_at = time.monotonic() + seconds

    async def pause(self) -> None:
        """Pause the sandbox; files, memory and processes are kept."""
        with translate_errors():
            await self._sandbox.pause(**self._options)
        self._expires_at = 0.0

    def host(self, port: int) -> str:
        """Return the host name under which E2B forwards a port."""
        return self._sandbox.get_host(port)


async def _wait_for_exit(command: AsyncCommandHandle) -> CommandResult:
    """Wait for a program's end; raises SandboxError, also if the stream breaks."""
    (outcome,) = await asyncio.gather(command.wait(), return_exceptions=True)
    if isinstance(outcome, CommandExitException):
        message = str(outcome.stderr)[-500:].strip()
        raise ProviderRefused(f"e2b: a program ended with {outcome.exit_code}: {message}") from outcome
    if isinstance(outcome, BaseException):
        with outcome_unknown(), as_interrupted(), translate_errors():
            raise outcome
    return outcome


def _was_refused(error: Exception) -> bool:
    """Return whether E2B answered in place of the sandbox, so that nothing was executed.

    An error of the SDK that has a cause is what a probe found later: the request itself was in flight. So it
    was if nothing says why the sandbox is unreachable.
    """
    if isinstance(error, RateLimitException | ServiceBusyException):
        return True
    if not isinstance(error, SandboxNotRunningException | SandboxUnreachableException):
        return False
    return error.__cause__ is None and any(answer in str(error) for answer in _PROXY_ANSWERS)


class E2bSandbox(ShellSandbox):
    """One sandbox; several objects in several processes may represent it."""

    def __init__(self, handle: E2bHandle, spec: SandboxSpec, callback: CompletionCallback) -> None:
        home = f"/home/{handle.user}"
        super().__init__(handle.id, handle, spec, user=handle.user, home=home, callback=callback)
        self._handle = handle

    async def prepare(self) -> None:
        """Create the workspace's directory, as root."""
        mount, user = shlex.quote(self._spec.mount), self._handle.user
        text = f"[ -d {mount} ] || install -d -o {user} -g {user} {mount}"
        await self._handle.shell(text, timeout=30.0, user="root")

    async def suspend(self) -> None:
        """Pause the sandbox with memory and processes; raises ProviderRefused while a job runs."""
        if await self._jobs.count_running():
            raise ProviderRefused("a sandbox with a running job is not suspended")
        await self._handle.pause()

    async def keep_alive(self, seconds: float) -> None:
        """Reset E2B's timer."""
        await self._handle.set_timeout(int(seconds))

    async def expose(self, port: int) -> str:
        """Return the URL under which E2B forwards a port."""
        return f"https://{self._handle.host(port)}"

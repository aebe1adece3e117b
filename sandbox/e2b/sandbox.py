"""A sandbox at E2B: one virtual machine, reached through the SDK's data plane, woken when it was paused."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from e2b import AsyncCommandHandle, AsyncSandbox, CommandExitException, CommandResult
from e2b.exceptions import SandboxNotRunningException, SandboxUnreachableException

from sandbox.e2b.errors import folded
from sandbox.errors import Refused, Unreachable
from sandbox.exec.background_jobs import Callback, Detached
from sandbox.exec.exec_sandbox import Boxed
from sandbox.exec.shell_files import ShellFiles
from sandbox.model import Command, Job, JobReport, Result, SandboxId, Spec
from sandbox.port import Sandbox

LONGEST_ARGUMENT = 64 * 1024
"""Bytes of program that go as an argument; Linux takes twice as much, a longer one goes as a file."""

Returned = TypeVar("Returned")


class Machine:
    """The SDK's handle of one sandbox. A call that finds it paused wakes it and is made once more."""

    def __init__(
        self, machine: AsyncSandbox, *, patience: int, user: str, options: Mapping[str, Any]
    ) -> None:
        self._machine = machine
        self._patience = patience
        self._options = options
        self._until = time.monotonic() + patience
        self.user = user

    @property
    def id(self) -> SandboxId:
        """The service's id of it."""
        return SandboxId(self._machine.sandbox_id)

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program as the account's user (see `sandbox.exec.exec_sandbox.Exec`)."""
        given = await self._put(stdin) if stdin else ""
        return await self.shell(f"input={given}\n{text}", timeout=timeout)

    async def shell(self, text: str, *, timeout: float, user: str = "") -> bytes:
        """Run a shell program and return what it printed."""
        if len(text) > LONGEST_ARGUMENT:
            text = f". {await self._put(text.encode('utf-8', 'surrogateescape'))}"
        running = await self._awake(
            lambda: self._machine.commands.run(
                text, background=True, user=user or self.user, cwd="/", timeout=timeout
            )
        )
        return str((await _ended(running)).stdout).encode()

    async def _put(self, content: bytes) -> str:
        path = f"/tmp/.dovecote-{secrets.token_hex(8)}"  # noqa: S108 - inside the sandbox
        await self._awake(lambda: self._machine.files.write(path, content, user=self.user))
        return shlex.quote(path)

    async def _awake(self, call: Callable[[], Awaitable[Returned]]) -> Returned:
        with folded():
            if time.monotonic() > self._until - self._patience / 2:
                await self.stay(self._patience)
            try:
                return await call()
            except (SandboxNotRunningException, SandboxUnreachableException) as error:
                if not _was_refused(error):
                    raise
            await self.resume()
            return await call()

    async def resume(self) -> None:
        """Wake it, or find that it is gone; raises Gone."""
        with folded():
            self._machine = await AsyncSandbox.connect(str(self.id), timeout=self._patience, **self._options)
        self._until = time.monotonic() + self._patience

    async def stay(self, seconds: int) -> None:
        """Let the service's own timer begin anew; a paused one is woken."""
        await self.resume()
        if seconds > self._patience:
            with folded():
                await self._machine.set_timeout(seconds, **self._options)
            self._until = time.monotonic() + seconds

    async def pause(self) -> None:
        """Stop costing; files, memory and processes are kept."""
        with folded():
            await self._machine.pause(**self._options)
        self._until = 0.0

    def host(self, port: int) -> str:
        """Return the name under which the service passes a port on."""
        return self._machine.get_host(port)


async def _ended(running: AsyncCommandHandle) -> CommandResult:
    """Wait for a program's end. A stream that breaks off leaves the SDK as a bare Exception."""
    (outcome,) = await asyncio.gather(running.wait(), return_exceptions=True)
    if isinstance(outcome, CommandExitException):
        said = str(outcome.stderr)[-500:].strip()
        raise Refused(f"e2b: a program ended with {outcome.exit_code}: {said}") from outcome
    if type(outcome) is Exception:
        raise Unreachable(f"e2b: {outcome}") from outcome
    if isinstance(outcome, BaseException):
        with folded():
            raise outcome
    return outcome


def _was_refused(error: Exception) -> bool:
    """Whether the service's proxy answered instead of the sandbox, so that nothing was carried out."""
    return "in flight" not in str(error) and "health probe failed" not in str(error)


class E2bSandbox(Sandbox):
    """One sandbox; any number of these objects in any number of processes may stand for it."""

    def __init__(self, machine: Machine, spec: Spec, callback: Callback) -> None:
        self.id = machine.id
        self._machine = machine
        self._spec = spec
        self._box = Boxed(
            exec=machine, mount=spec.mount, home=f"/home/{machine.user}", user=machine.user, env=spec.env
        )
        self._jobs = Detached(run=self._box.run_ours, callback=callback)
        self._files = ShellFiles(run=self._box.run_ours, root=spec.mount)

    async def prepare(self) -> None:
        """Make the directory of the workspace, which only root may."""
        mount, user = shlex.quote(self._spec.mount), self._machine.user
        text = f"[ -d {mount} ] || install -d -o {user} -g {user} {mount}"
        await self._machine.shell(text, timeout=30.0, user="root")

    async def run(self, command: Command) -> Result:
        """Run a script; when a run is over nothing of it lives."""
        return await self._box.run(command)

    async def spawn(self, job: Job) -> None:
        """Start a job under a supervisor inside, once per id."""
        await self._jobs.spawn(job)

    async def report(self, job_id: str) -> JobReport:
        """Say how a job is doing."""
        return await self._jobs.report(job_id)

    async def stop(self, job_id: str) -> None:
        """End a job and wait for its end."""
        await self._jobs.stop(job_id)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file."""
        return await self._files.read(path, limit=limit)

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file durably."""
        if self._spec.read_only:
            raise PermissionError(f"{path}: the workspace is read-only")
        await self._files.write(path, content)

    async def suspend(self) -> None:
        """Pause it, memory and processes included; not while a job runs, which would stand still."""
        if await self._jobs.running():
            raise Refused("a sandbox with a running job is not suspended")
        await self._machine.pause()

    async def keep_alive(self, seconds: float) -> None:
        """Let the service's timer begin anew."""
        await self._machine.stay(int(seconds))

    async def expose(self, port: int) -> str:
        """Return the URL under which the service passes a port on."""
        return f"https://{self._machine.host(port)}"

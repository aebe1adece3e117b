"""A sandbox at Daytona: one box, reached through its toolbox, started when it was stopped."""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Awaitable, Callable
from typing import TypeVar

from daytona import AsyncSandbox
from daytona.common import errors as vendor

from sandbox.daytona.errors import folded
from sandbox.errors import Gone, Refused, Unreachable
from sandbox.exec.background_jobs import Callback, Detached
from sandbox.exec.exec_sandbox import Boxed
from sandbox.exec.shell_files import ShellFiles
from sandbox.model import Command, Job, JobReport, JobState, Result, SandboxId, Spec
from sandbox.port import Sandbox

LONGEST_ARGUMENT = 64 * 1024
"""Bytes of program that go as an argument; Linux takes twice as much, a longer one goes as a file."""

STARTABLE = frozenset({"stopped", "archived", "paused", "stopping", "archiving", "pausing"})
SOON = frozenset({"creating", "restoring", "starting", "pulling_snapshot", "resuming", "pending_build"})

Returned = TypeVar("Returned")


class Machine:
    """The SDK's handle of one sandbox. A call that finds it stopped starts it and is made once more."""

    def __init__(self, machine: AsyncSandbox, *, stop_after: int, patience: float) -> None:
        self._machine = machine
        self._stop_after = stop_after
        self._patience = patience

    @property
    def id(self) -> SandboxId:
        """The service's id of it."""
        return SandboxId(self._machine.id)

    @property
    def user(self) -> str:
        """Who commands run as."""
        return self._machine.user

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program (see `sandbox.exec.exec_sandbox.Exec`). The service tells stdout and stderr as one."""
        given = await self._put(stdin) if stdin else ""
        return await self.shell(f"exec 2>/dev/null\ninput={given}\n{text}", timeout=timeout)

    async def shell(self, text: str, *, timeout: float) -> bytes:
        """Run a program by sh, whatever the service's own shell is, and return what it printed."""
        command = f"sh -c {shlex.quote(text)}"
        if len(command) > LONGEST_ARGUMENT:
            command = f"sh {await self._put(text.encode('utf-8', 'surrogateescape'))}"
        answer = await self._awake(
            lambda: self._machine.process.exec(command, cwd="/", timeout=max(1, math.ceil(timeout)))
        )
        if answer.exit_code != 0:
            raise Refused(f"daytona: a program ended with {answer.exit_code}: {answer.result[-500:]}")
        return answer.result.encode()

    async def _put(self, content: bytes) -> str:
        path = f"/tmp/.dovecote-{secrets.token_hex(8)}"  # noqa: S108 - inside the sandbox
        await self._awake(lambda: self._machine.fs.upload_file(content, path))
        return shlex.quote(path)

    async def _awake(self, call: Callable[[], Awaitable[Returned]]) -> Returned:
        """Make a call; when it failed because the sandbox does not run, start it and make it once more."""
        with folded():
            try:
                return await call()
            except vendor.DaytonaTimeoutError:
                raise
            except vendor.DaytonaError:
                if not await self.wake():
                    raise
            return await call()

    async def wake(self) -> bool:
        """Start it if it does not run; says whether it did not. Raises Gone."""
        with folded():
            await self._machine.refresh_data()
            state = str(getattr(self._machine.state, "value", self._machine.state))
            if state == "started":
                return False
            if state in SOON:
                await self._machine.wait_for_sandbox_start(timeout=self._patience)
            elif state in STARTABLE:
                await self._machine.start(timeout=self._patience)
            elif state == "error" and self._machine.recoverable:
                await self._machine.recover(timeout=self._patience)
            elif state == "error":
                raise Unreachable(f"daytona: the sandbox is in error: {self._machine.error_reason}")
            else:
                raise Gone(f"daytona: the sandbox is {state}")
        return True

    async def home(self) -> str:
        """Return the home directory of its user."""
        return str(await self._awake(self._machine.get_user_home_dir))

    async def stop(self) -> None:
        """Stop costing; files are kept, processes are not."""
        with folded():
            await self._machine.stop(timeout=self._patience)

    async def active(self) -> None:
        """Let the service's own idle timer begin anew."""
        await self._awake(self._machine.refresh_activity)

    async def idle_timer(self, *, on: bool) -> None:
        """Switch the service's own idle timer off while a job runs, and on afterwards."""
        await self._awake(lambda: self._machine.set_autostop_interval(self._stop_after if on else 0))

    async def preview(self, port: int) -> str:
        """Return a URL that reaches a port, signed for a day."""
        made = await self._awake(
            lambda: self._machine.create_signed_preview_url(port, expires_in_seconds=86_400)
        )
        return str(made.url)


class DaytonaSandbox(Sandbox):
    """One sandbox; any number of these objects in any number of processes may stand for it."""

    def __init__(self, machine: Machine, spec: Spec, home: str, callback: Callback) -> None:
        self.id = machine.id
        self._machine = machine
        self._spec = spec
        self._box = Boxed(exec=machine, mount=spec.mount, home=home, user=machine.user, env=spec.env)
        self._jobs = Detached(run=self._box.run_ours, callback=callback)
        self._files = ShellFiles(run=self._box.run_ours, root=spec.mount)

    async def prepare(self) -> None:
        """Make the directory of the workspace; where only root may, by sudo."""
        mount, user = shlex.quote(self._spec.mount), shlex.quote(self._machine.user)
        text = (
            f"mkdir -p {mount} 2>/dev/null || sudo -n install -d -o {user} {mount}\n"
            f"[ -w {mount} ] || {{ echo cannot make {mount}: the user needs sudo; exit 1; }}"
        )
        await self._machine.shell(text, timeout=30.0)

    async def run(self, command: Command) -> Result:
        """Run a script; when a run is over nothing of it lives."""
        return await self._box.run(command)

    async def spawn(self, job: Job) -> None:
        """Start a job under a supervisor inside, once per id; the service does not stop the box meanwhile."""
        if not job.rests:
            await self._machine.idle_timer(on=False)
        await self._jobs.spawn(job)

    async def report(self, job_id: str) -> JobReport:
        """Say how a job is doing; after the last one the service's idle timer is on again."""
        report = await self._jobs.report(job_id)
        if report.state is not JobState.RUNNING and not await self._jobs.running():
            await self._machine.idle_timer(on=True)
        return report

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
        """Stop it; not while a job runs, which would end."""
        if await self._jobs.running():
            raise Refused("a sandbox with a running job is not suspended")
        await self._machine.stop()

    async def keep_alive(self, seconds: float) -> None:
        """Let the service's timer begin anew."""
        del seconds
        await self._machine.active()

    async def expose(self, port: int) -> str:
        """Return a signed preview URL of a port."""
        return await self._machine.preview(port)

"""A sandbox at Daytona, reached through its toolbox and started if it was stopped."""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import TypeVar

from daytona import AsyncSandbox
from daytona.common import errors as vendor

from sandbox.daytona.errors import translate_call_errors, translate_errors, was_refused
from sandbox.errors import OutcomeUnknown, ProviderRefused, ProviderUnreachable, SandboxGone, as_interrupted
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.exec.shell_sandbox import ShellSandbox
from sandbox.model import (
    BackgroundJob,
    BackgroundJobState,
    JobReport,
    SandboxId,
    SandboxSpec,
)

MAX_ARGUMENT_BYTES = 64 * 1024
"""The most bytes of a program passed as an argument (half of what Linux allows); a longer one is uploaded."""

STARTABLE_STATES = frozenset({"stopped", "archived", "paused", "stopping", "archiving", "pausing"})
STARTING_STATES = frozenset(
    {"creating", "restoring", "starting", "pulling_snapshot", "resuming", "pending_build"}
)

_STOPPED = "the sandbox stopped during the call and was started again"

Returned = TypeVar("Returned")


class DaytonaHandle:
    """The SDK's handle of one sandbox; a call that finds it stopped starts it and is repeated once.

    A program is repeated only if it certainly did not run.

    Without `autostop_minutes` the sandbox is external: its own idle timer is reset and never changed.
    """

    def __init__(self, sandbox: AsyncSandbox, *, autostop_minutes: int | None, timeout: float) -> None:
        self._sandbox = sandbox
        self._autostop_minutes = autostop_minutes
        self._timeout = timeout

    @property
    def id(self) -> SandboxId:
        """Return Daytona's id of the sandbox."""
        return SandboxId(self._sandbox.id)

    @property
    def user(self) -> str:
        """Return the user that commands run as."""
        return self._sandbox.user

    async def __call__(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        """Run a shell program (see `sandbox.exec.exec_sandbox.Exec`); Daytona merges stdout and stderr."""
        given = await self._upload(stdin) if stdin else ""
        return await self.shell(f"exec 2>/dev/null\ninput={given}\n{text}", timeout=timeout)

    async def shell(self, text: str, *, timeout: float) -> bytes:
        """Run a program with sh and return its output.

        If the program may have run, it is not repeated: OutcomeUnknown says so. A stopped sandbox is
        started then too.
        """
        command = f"sh -c {shlex.quote(text)}"
        if len(command) > MAX_ARGUMENT_BYTES:
            command = f"sh {await self._upload(text.encode('utf-8', 'surrogateescape'))}"
        response = await self._with_restart(
            lambda: self._sandbox.process.exec(command, cwd="/", timeout=max(1, math.ceil(timeout))),
            may_repeat=was_refused,
        )
        if response.exit_code != 0:
            raise ProviderRefused(
                f"daytona: a program ended with {response.exit_code}: {response.result[-500:]}"
            )
        return response.result.encode()

    async def _upload(self, content: bytes) -> str:
        path = f"/tmp/.dovecote-{secrets.token_hex(8)}"  # noqa: S108 - inside the sandbox
        await self._with_restart(lambda: self._sandbox.fs.upload_file(content, path))
        return shlex.quote(path)

    async def _with_restart(
        self,
        call: Callable[[], Awaitable[Returned]],
        *,
        may_repeat: Callable[[vendor.DaytonaError], bool] = lambda _error: True,
    ) -> Returned:
        """Make a call; if it failed because the sandbox does not run, start it and repeat once.

        Raises SandboxGone if the control plane reports so; CommandInterrupted instead if the call may not be
        repeated.
        """
        with translate_call_errors():
            try:
                return await call()
            except vendor.DaytonaTimeoutError as error:
                if may_repeat(error):
                    raise
                raise OutcomeUnknown(f"daytona: {str(error)[:400]}") from error
            except vendor.DaytonaError as error:
                repeats = may_repeat(error)
                with nullcontext() if repeats else as_interrupted():
                    was_started = await self.ensure_started()
                if not repeats:
                    why = _STOPPED if was_started else str(error)[:400]
                    raise OutcomeUnknown(f"daytona: {why}") from error
                if not was_started:
                    raise
            return await call()

    async def ensure_started(self) -> bool:
        """Start the sandbox unless it runs; return whether it was started. Raises SandboxGone."""
        with translate_errors():
            await self._sandbox.refresh_data()
            state = str(getattr(self._sandbox.state, "value", self._sandbox.state))
            if state == "started":
                return False
            if state in STARTING_STATES:
                await self._sandbox.wait_for_sandbox_start(timeout=self._timeout)
            elif state in STARTABLE_STATES:
                await self._sandbox.start(timeout=self._timeout)
            elif state == "error" and self._sandbox.recoverable:
                await self._sandbox.recover(timeout=self._timeout)
            elif state == "error":
                raise ProviderUnreachable(f"daytona: the sandbox is in error: {self._sandbox.error_reason}")
            else:
                raise SandboxGone(f"daytona: the sandbox is {state}")
        return True

    async def home(self) -> str:
        """Return the home directory of its user."""
        return str(await self._with_restart(self._sandbox.get_user_home_dir))

    async def stop(self) -> None:
        """Stop the sandbox; files are kept, processes end."""
        with translate_errors():
            await self._sandbox.stop(timeout=self._timeout)

    async def refresh_activity(self) -> None:
        """Reset Daytona's own idle timer."""
        await self._with_restart(self._sandbox.refresh_activity)

    async def set_autostop(self, *, on: bool) -> None:
        """Disable Daytona's own idle timer while a job runs, and enable it afterwards."""
        minutes = self._autostop_minutes
        if minutes is None:
            await self.refresh_activity()
            return
        await self._with_restart(lambda: self._sandbox.set_autostop_interval(minutes if on else 0))

    async def preview(self, port: int) -> str:
        """Return a URL that reaches a port, signed for a day."""
        created = await self._with_restart(
            lambda: self._sandbox.create_signed_preview_url(port, expires_in_seconds=86_400)
        )
        return str(created.url)


class DaytonaSandbox(ShellSandbox):
    """One sandbox; several objects in several processes may represent it."""

    def __init__(
        self, handle: DaytonaHandle, spec: SandboxSpec, home: str, callback: CompletionCallback
    ) -> None:
        super().__init__(handle.id, handle, spec, user=handle.user, home=home, callback=callback)
        self._handle = handle

    async def prepare(self) -> None:
        """Create the workspace's directory, with sudo if necessary."""
        mount, user = shlex.quote(self._spec.mount), shlex.quote(self._handle.user)
        text = (
            f"mkdir -p {mount} 2>/dev/null || sudo -n install -d -o {user} {mount}\n"
            f"[ -w {mount} ] || {{ echo cannot make {mount}: the user needs sudo; exit 1; }}"
        )
        await self._handle.shell(text, timeout=30.0)

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job under a supervisor inside, once per id, and disable Daytona's idle timer."""
        if not job.sleeps_with_sandbox:
            await self._handle.set_autostop(on=False)
        await self._jobs.spawn(job)

    async def report(self, job_id: str) -> JobReport:
        """Return a job's state; after the last job Daytona's idle timer is enabled again."""
        report = await self._jobs.report(job_id)
        if self._spec.external:
            await self._handle.refresh_activity()
        elif report.state is not BackgroundJobState.RUNNING and not await self._jobs.count_running():
            await self._handle.set_autostop(on=True)
        return report

    async def suspend(self) -> None:
        """Stop the sandbox; raises ProviderRefused while a job runs, which would end."""
        if await self._jobs.count_running():
            raise ProviderRefused("a sandbox with a running job is not suspended")
        await self._handle.stop()

    async def keep_alive(self, seconds: float) -> None:
        """Reset Daytona's idle timer."""
        del seconds
        await self._handle.refresh_activity()

    async def expose(self, port: int) -> str:
        """Return a signed preview URL of a port."""
        return await self._handle.preview(port)

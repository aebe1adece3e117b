"""A sandbox in a container: runs and jobs are processes in it; the workspace is mounted."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.docker import container, home_archive
from sandbox.docker.container import ContainerDefaults
from sandbox.docker.engine import Engine, ExecSpec
from sandbox.docker.errors import translate_errors
from sandbox.docker.execution import Execution, output_cap
from sandbox.errors import (
    CommandInterrupted,
    FeatureUnsupported,
    OutcomeUnknown,
    ProviderRefused,
    ProviderUnreachable,
    SandboxError,
    SandboxGone,
    UnsafePath,
    repeatable,
)
from sandbox.exec.background_jobs import MAX_SCRIPT_BYTES, BackgroundJobs, CompletionCallback
from sandbox.exec.command_timeout import command_timeout
from sandbox.exec.shielded import shielded
from sandbox.model import (
    BackgroundJob,
    BackgroundJobState,
    ExecRequest,
    ExecResult,
    JobReport,
    Network,
    SandboxId,
    SandboxSpec,
)
from sandbox.port import CALLBACK_SOCKET, Sandbox, proxy_environment
from sandbox.workspaces import local_files
from sandbox.workspaces.disk_quota import is_over_quota, quota_of, run_with_quota

KILLED = 137
SIGNALLED = 128
_SWEEP_START_SECONDS = 60.0
"""Seconds within which an engine starts a cleanup. A slow engine is no reason to kill the sandbox's jobs."""

_SWEEP_SECONDS = 10.0
"""Seconds for a cleanup that has started; without a free process slot it fails at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHandle:
    """A container with its spec; the image's own variables are read once."""

    engine: Engine
    defaults: ContainerDefaults
    sandbox_id: SandboxId
    spec: SandboxSpec
    image: Mapping[str, str]
    check_network: Callable[[], Awaitable[None]]
    """Raises SandboxOutdated if the container has lost its network."""

    def exec_spec(self, argv: list[str], task: str, *, attached: bool = False, limit: int = 4096) -> ExecSpec:
        """Return how to start a process in it."""
        return ExecSpec(
            argv=argv,
            environment=self.environment(task),
            directory=self.spec.mount,
            stdin=attached,
            output_limit=limit,
        )

    def environment(self, task: str) -> list[str]:
        """Return the environment of its processes."""
        directory = self.defaults.callbacks.directory(self.sandbox_id)
        is_proxied = self.spec.network is Network.RESTRICTED
        proxy = proxy_environment(directory, container.CALLBACKS) if is_proxied else {}
        return container.environment(self.spec, self.image, task, proxy)

    async def start(self, exec_spec: ExecSpec, *, resume: bool = True) -> Execution:
        """Start a process in it; raises SandboxGone."""
        user = self.defaults.user
        with translate_errors():
            return await self.engine.start(self.sandbox_id, user=user, exec_spec=exec_spec, resume=resume)

    async def run(self, command: ExecRequest, *, mode: str, limit: int) -> ExecResult:
        """Run a script; after a time-out, a cancellation, or in mode sweep, its processes are dead.

        Before the script has begun, raises SandboxGone and ProviderUnreachable; afterwards CommandInterrupted
        and OutcomeUnknown.
        """
        started: list[Execution] = []
        try:
            return await self._run(command, started, mode=mode, limit=limit)
        except ProviderUnreachable as error:
            if not started:
                raise
            raise OutcomeUnknown(error) from error

    async def _run(
        self, command: ExecRequest, started: list[Execution], *, mode: str, limit: int
    ) -> ExecResult:
        task = f"{mode}-{secrets.token_hex(8)}"
        unset = container.image_variables(self.environment(task), self.image)
        script = container.awaiting_forwarder(self.spec, command.script)
        argv = container.run_command(mode, script, command.stdin, unset)
        attached = mode == "sweep" or bool(command.stdin)
        spec = self.exec_spec(argv, task, attached=attached, limit=limit)
        clean = False
        try:
            async with command_timeout(command.timeout):
                await shielded(self._begin(spec, started))
                if command.on_output is not None:
                    started[0].listen(command.on_output)
                code = await started[0].wait(command.stdin)
            clean = mode == "keep" or code < SIGNALLED
        except TimeoutError:
            code = None
        except SandboxGone as error:
            if not started:
                raise
            raise CommandInterrupted from error
        finally:
            await shielded(self._close(task, started, clean=clean))
        return started[0].result(KILLED if code is None else code, timed_out=code is None)

    async def _begin(self, exec_spec: ExecSpec, started: list[Execution]) -> None:
        """Start the process without interruption: an abandoned start could happen after the cleanup."""
        started.append(await self.start(exec_spec))

    async def _close(self, task: str, started: list[Execution], *, clean: bool) -> None:
        for execution in started:
            try:
                if not clean:
                    await execution.drain_while(self._kill_remaining(task, execution))
            finally:
                await execution.close()

    async def _kill_remaining(self, task: str, execution: Execution) -> None:
        """Kill a run's remaining processes by its mark, else all in the container, else the container.

        A run that has all process slots of the container leaves none for the cleanup. It first loses its
        connection: `run.sh` then kills its session and all below it without another process.
        """
        await execution.wait_started()
        if await self._sweep(task) or task.startswith("keep-"):
            return  # a program of ours ends by itself
        await execution.disconnect()
        if await self._sweep(task):
            return
        await self.engine.signal(self.sandbox_id, "SIGUSR1")
        if await self._sweep(task):
            return
        await self.engine.signal(self.sandbox_id, "SIGKILL")

    async def _sweep(self, task: str) -> bool:
        """Run the cleanup inside and return whether it worked; a container that is gone is clean."""
        spec = self.exec_spec(container.cleanup_command(task), f"sweep-{task}")
        execution = None
        try:
            async with asyncio.timeout(_SWEEP_START_SECONDS):
                execution = await self.start(spec, resume=False)
                await execution.wait_started(_SWEEP_START_SECONDS)
            async with asyncio.timeout(_SWEEP_SECONDS):
                return await execution.wait(b"") == 0
        except SandboxGone:
            return True
        except (TimeoutError, SandboxError):
            return False
        finally:
            if execution is not None:
                await execution.close()


class DockerSandbox(Sandbox):
    """One sandbox; several objects in several processes may represent it."""

    def __init__(self, handle: ContainerHandle) -> None:
        self.id = handle.sandbox_id
        self._handle = handle
        self._spec = handle.spec
        self._quota = quota_of(handle.spec, handle.defaults.settings.workspace_bytes)
        callback = CompletionCallback(
            socket=f"{container.CALLBACKS}/{CALLBACK_SOCKET}",
            timeout_seconds=handle.defaults.settings.callback_patience,
        )
        self._jobs = BackgroundJobs(run=self._run_internal, callback=callback)

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script in the container; none of its processes is left afterwards."""
        self._check(command.script)
        await self._check_network()
        limit = output_cap(command.output_limit)
        result = await run_with_quota(
            self._quota, lambda: self._handle.run(command, mode="sweep", limit=limit)
        )
        if result.exit_code == KILLED and not result.timed_out:
            await self._check_not_removed()
        if self._spec.persistent and self._spec.workspace is not None:
            await asyncio.to_thread(_sync, self._spec.workspace)
        return result

    async def _check_network(self) -> None:
        """Raise SandboxOutdated if the network is lost, unless the sandbox is used as it is."""
        if not self._spec.as_created:
            await self._handle.check_network()

    async def _check_not_removed(self) -> None:
        """Raise CommandInterrupted if a command was killed because its container was removed."""
        try:
            await self._handle.engine.check_not_removed(self.id)
        except SandboxGone as error:
            raise CommandInterrupted from error

    async def _run_internal(self, command: ExecRequest) -> ExecResult:
        """Run a program of ours and keep its background processes; repeat it if a cleanup killed it."""
        with repeatable():
            result = await self._handle.run(command, mode="keep", limit=command.output_limit)
            if result.exit_code >= SIGNALLED and not result.timed_out:
                result = await self._handle.run(command, mode="keep", limit=command.output_limit)
        return result

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job under a supervisor of its own inside the container, once per id."""
        self._check(job.script)
        await self._check_network()
        await self._jobs.spawn(job)

    async def report(self, job_id: str) -> JobReport:
        """Return a job's state and output so far."""
        report = await self._jobs.report(job_id)
        if report.state is BackgroundJobState.RUNNING and await is_over_quota(self._quota):
            return replace(report, over_quota=True)
        return report

    async def stop(self, job_id: str) -> None:
        """Stop a job and wait for its end."""
        await self._jobs.stop(job_id)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file from outside; the kernel keeps the path inside."""
        workspace = await self._workspace()
        return await asyncio.to_thread(
            local_files.read, workspace, local_files.relative_path(path, self._spec.mount), limit
        )

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file from outside; the kernel keeps the path inside."""
        workspace = await self._workspace()
        if self._spec.read_only:
            raise PermissionError(f"{path}: the workspace is read-only")
        if self._quota is not None:
            await asyncio.to_thread(self._quota.check_fits, path, len(content))
        await asyncio.to_thread(
            local_files.write, workspace, local_files.relative_path(path, self._spec.mount), content
        )

    async def suspend(self) -> None:
        """Stop or pause the container; any later call resumes it."""
        engine = self._handle.engine
        state = (await engine.inspect(self.id))["State"]
        if state.get("Paused") or not state.get("Running"):
            return
        if await self._jobs.count_running():
            raise ProviderRefused("a sandbox with a running job is not suspended")
        await engine.suspend(self.id)

    async def expose(self, port: int) -> str:
        """Return the URL of a published port; the operator configures which ports are published."""
        settings = self._handle.defaults.settings
        if self._spec.network is not Network.ALLOW_ALL:
            raise ProviderRefused("only a sandbox with network.mode allow-all has ports that can be reached")
        if port not in settings.ports:
            known = ", ".join(map(str, settings.ports)) or "none"
            raise ProviderRefused(f"port {port} is not published ([sandbox.docker] ports: {known})")
        await self._handle.engine.ensure_running(self.id)
        filtered = container.is_filtered(self._spec, settings)
        owner = container.keeper_id(self.id) if filtered else self.id
        details = await self._handle.engine.inspect(owner)
        bound = (details["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp") or []
        if not bound:
            raise ProviderRefused(f"the engine has not published port {port}")
        return f"http://{settings.public_host or settings.publish_address}:{bound[0]['HostPort']}"

    def save(self) -> AsyncIterator[bytes]:
        """Yield HOME and the changed files of the image."""
        return home_archive.save(self._handle.engine, self.id, persistent=self._spec.persistent)

    async def stamp(self) -> str | None:
        """Return a digest of what `save` packs, found by a program in the container."""
        if not self._spec.persistent:
            raise FeatureUnsupported("only a reserved sandbox is saved after a turn")
        try:
            return await home_archive.stamp(
                self._handle.engine,
                self.id,
                lambda script: self._run_internal(ExecRequest(script=script, timeout=60.0)),
            )
        except ProviderRefused:  # `save` says why
            return None

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Unpack what `save` yielded; the engine confines it and unsafe members are rejected."""
        await self._handle.engine.ensure_running(self.id)
        await home_archive.restore(self._handle.engine, self.id, self._handle.defaults.user, archive)

    def _check(self, script: str) -> None:
        if self._spec.workspace is not None and not self._spec.workspace.is_dir():
            raise SandboxGone("the workspace's directory no longer exists")
        if "\0" in script:
            raise UnsafePath("a script must not contain NUL")
        if len(script.encode("utf-8", "surrogateescape")) > MAX_SCRIPT_BYTES:
            raise UnsafePath(
                f"a script has at most {MAX_SCRIPT_BYTES} bytes: put it into a file of the workspace"
            )

    async def _workspace(self) -> Path:
        self._check("")
        if self._spec.workspace is None:
            raise UnsafePath("this sandbox has no workspace")
        return self._spec.workspace


def _sync(directory: Path) -> None:
    """Sync the written files to disk; shell redirections do not."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)

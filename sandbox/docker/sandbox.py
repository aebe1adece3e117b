"""A sandbox in a container: runs and jobs are processes started in it, files are the workspace's own."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandbox.docker import container, home_archive
from sandbox.docker.container import Ground
from sandbox.docker.engine import Engine, Order
from sandbox.docker.errors import folded
from sandbox.docker.execution import Execution, cap
from sandbox.errors import Gone, Refused, SandboxError, Unsafe
from sandbox.exec.background_jobs import LONGEST_SCRIPT, Callback, Detached
from sandbox.exec.shielded import finished
from sandbox.model import Command, Job, JobReport, JobState, Network, Result, SandboxId, Spec
from sandbox.port import Sandbox
from sandbox.workspaces import local_files
from sandbox.workspaces.disk_quota import overfull, quota_of, watched

KILLED = 137
SIGNALLED = 128
_SWEEP = 5.0
"""Seconds for one attempt to sweep: where there is no room for it, it fails at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A container as it was found: the image's own variables are known once."""

    engine: Engine
    ground: Ground
    sandbox_id: SandboxId
    spec: Spec
    image: Mapping[str, str]

    def order(self, argv: list[str], task: str, *, attached: bool = False, limit: int = 4096) -> Order:
        """Return how to start a process in it."""
        return Order(
            argv=argv,
            environment=container.environment(self.spec, self.image, task),
            directory=self.spec.mount,
            stdin=attached,
            output_limit=limit,
        )

    async def start(self, order: Order, *, waking: bool = True) -> Execution:
        """Start a process in it; raises Gone."""
        user = self.ground.user
        with folded():
            return await self.engine.start(self.sandbox_id, user=user, order=order, waking=waking)

    async def run(self, command: Command, *, mode: str, limit: int) -> Result:
        """Run a script; on time-out and cancellation all of it is dead on return, in mode sweep always."""
        task = f"{mode}-{secrets.token_hex(8)}"
        unset = container.foreign(container.environment(self.spec, self.image, task), self.image)
        argv = container.running(mode, command.script, command.stdin, unset)
        attached = mode == "sweep" or bool(command.stdin)
        order = self.order(argv, task, attached=attached, limit=limit)
        started: list[Execution] = []
        clean = False
        try:
            async with asyncio.timeout(command.timeout):
                await finished(self._begin(order, started))
                code = await started[0].see_through(command.stdin)
            clean = mode == "keep" or code < SIGNALLED
        except TimeoutError:
            code = None
        finally:
            await finished(self._close(task, started, clean=clean))
        return started[0].result(KILLED if code is None else code, timed_out=code is None)

    async def _begin(self, order: Order, started: list[Execution]) -> None:
        """Start to the end: a start that nobody waits for would come after the sweep."""
        started.append(await self.start(order))

    async def _close(self, task: str, started: list[Execution], *, clean: bool) -> None:
        for execution in started:
            try:
                if not clean:
                    await execution.reading_on(self._contain(task, execution))
            finally:
                await execution.close()

    async def _contain(self, task: str, execution: Execution) -> None:
        """End what is left of a run: by its mark; else everybody in the container; else the container."""
        await execution.begun()
        if await self._swept(task, _SWEEP):
            return
        await self.engine.signal(self.sandbox_id, "SIGUSR1")
        if await self._swept(task, _SWEEP):
            return
        await self.engine.signal(self.sandbox_id, "SIGKILL")

    async def _swept(self, task: str, patience: float) -> bool:
        """Sweep inside and say whether that worked; a container that is gone is clean."""
        try:
            async with asyncio.timeout(patience):
                order = self.order(container.sweeping(task), f"sweep-{task}")
                execution = await self.start(order, waking=False)
                try:
                    return await execution.see_through(b"") == 0
                finally:
                    await execution.close()
        except Gone:
            return True
        except (TimeoutError, SandboxError):
            return False


class DockerSandbox(Sandbox):
    """One sandbox; any number of these objects in any number of processes may stand for it."""

    def __init__(self, box: Box) -> None:
        self.id = box.sandbox_id
        self._box = box
        self._spec = box.spec
        self._quota = quota_of(box.spec, box.ground.settings.workspace_bytes)
        callback = Callback(
            socket=f"{container.CALLBACKS}/{container.SOCKET}",
            patience=box.ground.settings.callback_patience,
        )
        self._jobs = Detached(run=self._keep, callback=callback)

    async def run(self, command: Command) -> Result:
        """Run a script in the container; when a run is over nothing of it lives."""
        self._check(command.script)
        limit = cap(command.output_limit)
        result = await watched(self._quota, lambda: self._box.run(command, mode="sweep", limit=limit))
        if result.exit_code == KILLED and not result.timed_out:
            await self._box.engine.stays(self.id)
        if self._spec.persistent and self._spec.workspace is not None:
            await asyncio.to_thread(_sync, self._spec.workspace)
        return result

    async def _keep(self, command: Command) -> Result:
        """Run a program of ours, which may leave something running; one that was swept away is run again."""
        result = await self._box.run(command, mode="keep", limit=command.output_limit)
        if result.exit_code >= SIGNALLED and not result.timed_out:
            result = await self._box.run(command, mode="keep", limit=command.output_limit)
        return result

    async def spawn(self, job: Job) -> None:
        """Start a job under a supervisor of its own inside the container, once per id."""
        self._check(job.script)
        await self._jobs.spawn(job)

    async def report(self, job_id: str) -> JobReport:
        """Say how a job is doing."""
        report = await self._jobs.report(job_id)
        if report.state is JobState.RUNNING and await overfull(self._quota):
            return replace(report, overfull=True)
        return report

    async def stop(self, job_id: str) -> None:
        """End a job and wait for its end."""
        await self._jobs.stop(job_id)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file from outside, kept inside by the kernel."""
        workspace = await self._workspace()
        return await asyncio.to_thread(
            local_files.read, workspace, local_files.relative(path, self._spec.mount), limit
        )

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file from outside, kept inside by the kernel."""
        workspace = await self._workspace()
        if self._spec.read_only:
            raise PermissionError(f"{path}: the workspace is read-only")
        if self._quota is not None:
            await asyncio.to_thread(self._quota.admit, path, len(content))
        await asyncio.to_thread(
            local_files.write, workspace, local_files.relative(path, self._spec.mount), content
        )

    async def suspend(self) -> None:
        """Stop or pause the container; any later call wakes it."""
        engine = self._box.engine
        state = (await engine.show(self.id))["State"]
        if state.get("Paused") or not state.get("Running"):
            return
        if await self._jobs.running():
            raise Refused("a sandbox with a running job is not suspended")
        await engine.rest(self.id)

    async def expose(self, port: int) -> str:
        """Return the URL of a published port; which ones are is the operator's to say."""
        settings = self._box.ground.settings
        if self._spec.network is not Network.ALLOW_ALL:
            raise Refused("only a sandbox with network.mode allow-all has ports that can be reached")
        if port not in settings.ports:
            known = ", ".join(map(str, settings.ports)) or "none"
            raise Refused(f"port {port} is not published ([sandbox.docker] ports: {known})")
        await self._box.engine.wake(self.id)
        shown = await self._box.engine.show(self.id)
        bound = (shown["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp") or []
        if not bound:
            raise Refused(f"the engine has not published port {port}")
        return f"http://{settings.public_host or settings.publish_address}:{bound[0]['HostPort']}"

    def save(self) -> AsyncIterator[bytes]:
        """Yield HOME and what commands changed of the image's own files."""
        return home_archive.save(self._box.engine, self.id, persistent=self._spec.persistent)

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Unpack what `save` yielded; the engine keeps it inside, and we keep it harmless."""
        await self._box.engine.wake(self.id)
        await home_archive.restore(self._box.engine, self.id, self._box.ground.user, archive)

    def _check(self, script: str) -> None:
        if self._spec.workspace is not None and not self._spec.workspace.is_dir():
            raise Gone("the workspace's directory no longer exists")
        if "\0" in script:
            raise Unsafe("a script must not contain NUL")
        if len(script.encode("utf-8", "surrogateescape")) > LONGEST_SCRIPT:
            raise Unsafe(f"a script has at most {LONGEST_SCRIPT} bytes: put it into a file of the workspace")

    async def _workspace(self) -> Path:
        self._check("")
        if self._spec.workspace is None:
            raise Unsafe("this sandbox has no workspace")
        return self._spec.workspace


def _sync(directory: Path) -> None:
    """Bring what commands wrote to the disk; shell redirections do not do it themselves."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    finally:
        os.close(descriptor)

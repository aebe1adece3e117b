"""A sandbox on the host: a workspace, a place for its own things, and namespaces made anew for every run."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from sandbox.errors import Gone, Refused, Unsafe, Unsupported
from sandbox.host import home_snapshot
from sandbox.host.isolation.cgroup import Group
from sandbox.host.isolation.cgroups import Cage
from sandbox.host.jobs.jobs import Jobs, key_of
from sandbox.host.run.execution import Launch, Run, Vanished, execute
from sandbox.host.run.host_environment import LONGEST_SCRIPT, Machine, Place
from sandbox.host.run.prewarmed import WAIT, Standbys
from sandbox.model import Command, Job, JobReport, JobState, Result, SandboxId, Spec
from sandbox.port import Sandbox
from sandbox.workspaces import local_files
from sandbox.workspaces.disk_quota import overfull, quota_of, watched


class HostSandbox(Sandbox):
    """One sandbox; any number of these objects in any number of processes may stand for it."""

    def __init__(
        self, sandbox_id: SandboxId, spec: Spec, machine: Machine, place: Place, standbys: Standbys
    ) -> None:
        self.id = sandbox_id
        self._spec = spec
        self._machine = machine
        self._place = place
        self._standbys = standbys
        self._cage = Cage(layout=machine.layout, name=sandbox_id)
        self._jobs = Jobs(machine=machine, place=place)
        self._quota = quota_of(spec, machine.settings.workspace_bytes)
        self._cage.bound(spec)

    async def run(self, command: Command) -> Result:
        """Run a script in fresh namespaces; when a run is over nothing of it lives."""
        self._check(command.script)
        await self._awake()
        result = await watched(self._quota, lambda: self._executed(command))
        if self._spec.persistent and self._spec.workspace is not None:
            await asyncio.to_thread(_sync, self._spec.workspace)
        return result

    async def _executed(self, command: Command) -> Result:
        try:
            return await self._execute(command)
        except Vanished:  # another process of ours was just leaving; the command has not run
            self._cage.bound(self._spec)
            return await self._execute(command)

    async def spawn(self, job: Job) -> None:
        """Start a job under a supervisor of its own, once per id."""
        self._check(job.script)
        await self._awake()
        if self._jobs.known(job.id):
            return
        self._machine.surroundings.checkpoint("sandbox.spawn.before")
        self._cage.bound(self._spec)
        group = self._cage.plan(f"job-{key_of(job.id)}")
        launch = self._machine.launch(self._spec, self._place, group, job.script)
        await self._jobs.start(job, launch)
        self._machine.surroundings.checkpoint("sandbox.spawn.after")

    async def report(self, job_id: str) -> JobReport:
        """Say how a job is doing, from its files."""
        report = await asyncio.to_thread(self._jobs.report, job_id)
        if report.state is JobState.RUNNING and await overfull(self._quota):
            return replace(report, overfull=True)
        return report

    async def stop(self, job_id: str) -> None:
        """End a job and wait for its end."""
        await self._awake()
        await self._jobs.stop(job_id)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file from outside, kept inside by the kernel."""
        workspace = self._workspace()
        return await asyncio.to_thread(
            local_files.read, workspace, local_files.relative(path, self._spec.mount), limit
        )

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file from outside, kept inside by the kernel."""
        workspace = self._workspace()
        if self._spec.read_only:
            raise PermissionError(f"{path}: the workspace is read-only")
        if self._quota is not None:
            await asyncio.to_thread(self._quota.admit, path, len(content))
        await asyncio.to_thread(
            local_files.write, workspace, local_files.relative(path, self._spec.mount), content
        )

    async def suspend(self) -> None:
        """Have what may rest stand still; else nothing lives between runs. Never while a job runs."""
        self._check("")
        if self._jobs.running():
            raise Refused("a sandbox with a running job is not suspended")
        await self._standbys.drop(self.id)
        await asyncio.to_thread(self._jobs.rest)

    async def _awake(self) -> None:
        if self._place.asleep.exists():
            await asyncio.to_thread(self._jobs.wake)

    async def save(self) -> AsyncIterator[bytes]:
        """Yield HOME, as it is at this moment; a sandbox that is not reserved has none that lasts."""
        self._check("")
        if not self._spec.persistent:
            raise Unsupported("only a reserved sandbox has anything to save")
        async for chunk in home_snapshot.save(self._place.home, self._place.directory):
            yield chunk

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Put HOME back as it was saved, in the place of what is there now."""
        self._check("")
        await self._standbys.drop(self.id)
        await home_snapshot.restore(archive, self._place.home, self._place.directory)

    async def _execute(self, command: Command) -> Result:
        """Run in the namespaces that wait, or in new ones; those of the next command are made afterwards."""
        ground = self._ground()
        run = self._standbys.take(self.id, self._spec, ground, command) if ground else None
        group = self._cage.open_run(self._spec) if run is None else run.group
        try:
            if run is None:
                run = Run(self._launch(group, command.script), stdin=bool(command.stdin))
            return await execute(run, command)
        finally:
            group.remove()
            if ground:
                self._prepare(ground)

    def _launch(self, group: Group, script: str) -> Launch:
        return self._machine.launch(self._spec, self._place, group, script)

    def _prepare(self, ground: tuple[tuple[int, int], ...]) -> None:
        """Make the next command's namespaces once this command's result is on its way."""

        def launch() -> Launch:
            return self._launch(self._cage.open_run(self._spec), WAIT)

        loop = asyncio.get_running_loop()
        loop.call_soon(self._standbys.prepare, self.id, self._spec, ground, launch)

    def _ground(self) -> tuple[tuple[int, int], ...]:
        """Return which directories a run is bound to; none where no run is to wait."""
        if not self._spec.persistent or self._machine.binary is None:
            return ()
        places = (self._place.home, self._spec.workspace or self._place.home)
        return tuple((status.st_dev, status.st_ino) for status in map(os.stat, places))

    def _check(self, script: str) -> None:
        """Raise Gone when the sandbox or its workspace is, Unsafe when the script cannot be passed on."""
        if not self._place.label.exists():
            raise Gone
        if self._spec.workspace is not None and not self._spec.workspace.is_dir():
            raise Gone("the workspace's directory no longer exists")
        if "\0" in script:
            raise Unsafe("a script must not contain NUL")
        if len(script.encode("utf-8", "surrogateescape")) > LONGEST_SCRIPT:
            raise Unsafe(f"a script has at most {LONGEST_SCRIPT} bytes: put it into a file of the workspace")

    def _workspace(self) -> Path:
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

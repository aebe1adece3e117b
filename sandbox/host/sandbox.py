"""A sandbox on the host: a workspace, directories of its own, and new namespaces for every run."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from sandbox.errors import FeatureUnsupported, ProviderRefused, SandboxGone, SandboxOutdated, UnsafePath
from sandbox.exec.shielded import shielded_call, shielded_outcome
from sandbox.host import home_snapshot
from sandbox.host.isolation.cgroups import SandboxCgroups
from sandbox.host.jobs.jobs import HostJobs, job_key
from sandbox.host.run.command_starts import CommandStarts
from sandbox.host.run.execution import CgroupRemoved, Run, execute, start_run
from sandbox.host.run.host_environment import MAX_SCRIPT_BYTES, HostEnvironment, SandboxPaths
from sandbox.host.run.prewarmed import READ_SCRIPT, PrewarmedRun, PrewarmedRuns
from sandbox.host.run.running_commands import RunningCommands
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
from sandbox.port import Sandbox
from sandbox.workspaces import local_files
from sandbox.workspaces.disk_quota import is_over_quota, quota_of, run_with_quota


class HostSandbox(Sandbox):
    """One sandbox; several objects in several processes may represent it."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        spec: SandboxSpec,
        host: HostEnvironment,
        paths: SandboxPaths,
        *,
        prewarmed: PrewarmedRuns,
        running: RunningCommands,
    ) -> None:
        self.id = sandbox_id
        self._spec = spec
        self._host = host
        self._paths = paths
        self._prewarmed = prewarmed
        self._running = running
        self._cgroups = SandboxCgroups(layout=host.layout, name=sandbox_id, account=spec.account)
        self._jobs = HostJobs(host=host, paths=paths)
        self._executor = host.context.executor
        self._starts = CommandStarts(host.context.starts)
        self._quota = quota_of(spec, host.settings.workspace_bytes)

    def set_limits(self) -> None:
        """Create the control groups and write the limits of the spec, whatever runs, in a thread."""
        self._cgroups.apply_limits(self._spec)

    def apply_limits(self) -> None:
        """Create the control groups and write the limits of the spec, in a thread; raises SandboxOutdated.

        A limit that is lowered could end a running job, so the job keeps those that it began with. The kernel
        changes control groups under one lock, and may make a caller wait for tens of milliseconds.
        """
        if self._jobs.count_running() and self._cgroups.would_lower(self._spec):
            if self._spec.as_created:
                return
            raise SandboxOutdated("a job runs in it with higher limits")
        self.set_limits()

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script in new namespaces; none of its processes is left afterwards."""
        self._check(command.script)
        await self._thaw()
        result = await run_with_quota(self._quota, lambda: self._execute_with_retry(command))
        if self._spec.persistent and self._spec.workspace is not None:
            await asyncio.to_thread(_sync, self._spec.workspace)
        return result

    async def _execute_with_retry(self, command: ExecRequest) -> ExecResult:
        try:
            return await self._execute(command)
        except CgroupRemoved:  # the group was removed by an ending run of ours; the command has not run
            await shielded_call(self._executor, self.apply_limits)
            return await self._execute(command)

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job under a supervisor of its own, once per id."""
        self._check(job.script)
        await self._thaw()
        if self._jobs.exists(job.id):
            return
        self._host.context.checkpoint("sandbox.spawn.before")
        await shielded_call(self._executor, self.apply_limits)
        group = self._cgroups.cgroup_for(f"job-{job_key(job.id)}")
        launch = self._host.launch(self._spec, self._paths, group, job.script)
        await self._jobs.start(job, launch, proxied=self._spec.network is Network.RESTRICTED)
        self._host.context.checkpoint("sandbox.spawn.after")

    async def report(self, job_id: str) -> JobReport:
        """Return a job's state from its files."""
        report = await asyncio.to_thread(self._jobs.report, job_id)
        if report.state is BackgroundJobState.RUNNING and await is_over_quota(self._quota):
            return replace(report, over_quota=True)
        return report

    async def stop(self, job_id: str) -> None:
        """Stop a job and wait for its end."""
        await self._thaw()
        await self._jobs.stop(job_id)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file from outside; the kernel keeps the path inside."""
        workspace = self._workspace()
        return await asyncio.to_thread(
            local_files.read, workspace, local_files.relative_path(path, self._spec.mount), limit
        )

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file from outside; the kernel keeps the path inside."""
        workspace = self._workspace()
        if self._spec.read_only:
            raise PermissionError(f"{path}: the workspace is read-only")
        if self._quota is not None:
            await asyncio.to_thread(self._quota.check_fits, path, len(content))
        await asyncio.to_thread(
            local_files.write, workspace, local_files.relative_path(path, self._spec.mount), content
        )

    async def suspend(self) -> None:
        """Freeze the jobs that sleep with the sandbox; raises ProviderRefused while another job runs."""
        self._check("")
        if self._jobs.count_running():
            raise ProviderRefused("a sandbox with a running job is not suspended")
        await self._prewarmed.stop(self.id)
        await asyncio.to_thread(self._jobs.freeze)

    async def _thaw(self) -> None:
        if self._paths.frozen_marker.exists():
            await asyncio.to_thread(self._jobs.thaw)

    async def save(self) -> AsyncIterator[bytes]:
        """Yield the present HOME; raises ProviderRefused if the sandbox is not reserved."""
        self._check("")
        if not self._spec.persistent:
            raise FeatureUnsupported("only a reserved sandbox has anything to save")
        async for chunk in home_snapshot.save(self._paths.home, self._paths.directory):
            yield chunk

    async def stamp(self) -> str | None:
        """Return a digest of names, sizes and times in HOME."""
        self._check("")
        if not self._spec.persistent:
            raise FeatureUnsupported("only a reserved sandbox has anything to save")
        return await asyncio.to_thread(home_snapshot.stamp, self._paths.home)

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Replace HOME by the saved one."""
        self._check("")
        await self._prewarmed.stop(self.id)
        await home_snapshot.restore(archive, self._paths.home, self._paths.directory)

    async def _execute(self, command: ExecRequest) -> ExecResult:
        """Run in the prewarmed namespaces or in new ones; the next ones are prepared afterwards.

        While other commands wait to start, none are prepared.
        """
        directory_ids = self._directory_ids()
        run = self._prewarmed.acquire(self.id, self._spec, directory_ids, command) if directory_ids else None
        try:
            if run is not None:
                return await self._run_to_end(run, command)
            async with self._starts.admit() as leave_soon:
                run = await self._start(command.script, stdin=bool(command.stdin))
                leave_soon()
                return await self._run_to_end(run, command)
        finally:
            if directory_ids and not self._starts.is_contended:
                self._prewarmed.prepare(self.id, partial(self._start_prewarmed, directory_ids))

    async def _run_to_end(self, run: Run, command: ExecRequest) -> ExecResult:
        with self._running.track(self.id, run):
            self._kill_if_destroyed(run)
            return await execute(run, command)

    def _kill_if_destroyed(self, run: Run) -> None:
        """Kill a run that was started while the sandbox was destroyed, which begins with its label."""
        if not self._paths.label.exists():
            run.kill()

    async def _start(self, script: str, *, stdin: bool, reads_script: bool = False) -> Run:
        """Start a run in a new control group."""
        create = partial(self._cgroups.create_run_cgroup, self._spec)
        creating = asyncio.get_running_loop().run_in_executor(self._executor, create)
        group, cancelled = await shielded_outcome(creating)
        if cancelled is not None:
            await shielded_call(self._executor, group.remove)
            raise cancelled
        try:
            launch = self._host.launch(self._spec, self._paths, group, script)
            return await start_run(launch, self._executor, stdin=stdin, reads_script=reads_script)
        except BaseException:
            await shielded_call(self._executor, group.remove)
            raise

    async def _start_prewarmed(self, directory_ids: object) -> PrewarmedRun:
        run = await self._start(READ_SCRIPT, stdin=True, reads_script=True)
        return PrewarmedRun(run=run, spec=self._spec, directory_ids=directory_ids)

    def _directory_ids(self) -> tuple[tuple[int, int], ...]:
        """Return the directories that a run is bound to, or none if it must not be prewarmed."""
        if not self._spec.persistent or self._host.binary is None:
            return ()
        directories = (self._paths.home, self._spec.workspace or self._paths.home)
        return tuple((status.st_dev, status.st_ino) for status in map(os.stat, directories))

    def _check(self, script: str) -> None:
        """Raise SandboxGone without sandbox or workspace, UnsafePath for a script that cannot be passed."""
        if not self._paths.label.exists():
            raise SandboxGone
        if self._spec.workspace is not None and not self._spec.workspace.is_dir():
            raise SandboxGone("the workspace's directory no longer exists")
        if "\0" in script:
            raise UnsafePath("a script must not contain NUL")
        if len(script.encode("utf-8", "surrogateescape")) > MAX_SCRIPT_BYTES:
            raise UnsafePath(
                f"a script has at most {MAX_SCRIPT_BYTES} bytes: put it into a file of the workspace"
            )

    def _workspace(self) -> Path:
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

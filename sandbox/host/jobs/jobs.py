"""Background jobs on this host: start a supervisor, read its files, stop it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox.errors import ProviderRefused, ProviderUnreachable
from sandbox.host.isolation.cgroup import Cgroup
from sandbox.host.isolation.freezer import freeze, thaw
from sandbox.host.isolation.process_tree import descendants, kill_tree
from sandbox.host.jobs import completion_report
from sandbox.host.jobs.boot_id import boot_id
from sandbox.host.jobs.supervisor import ALREADY_STARTED, GRACE_SECONDS, READY
from sandbox.host.run.execution import KILLED, execute, start_run, wait_until_killed
from sandbox.host.run.host_environment import HostEnvironment, SandboxPaths, program_argv
from sandbox.host.run.job_spec import (
    EXIT,
    OUTPUT,
    STARTED,
    TRUNCATED,
    CompletionRequest,
    JobSpec,
    is_supervised,
)
from sandbox.host.run.launch import Launch
from sandbox.host.run.pipes import ProcessWatcher
from sandbox.labels import key_of
from sandbox.model import OUTPUT_CAP, BackgroundJob, BackgroundJobState, ExecRequest, JobReport

START_TIMEOUT_SECONDS = 20.0
STOP_TIMEOUT_SECONDS = GRACE_SECONDS + 5.0


def job_key(job_id: str) -> str:
    """Return the name of a job's directory and group; ids are hashed, so that none of them can be a path."""
    return key_of("job", job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostJobs:
    """The jobs of one sandbox."""

    host: HostEnvironment
    paths: SandboxPaths

    def directory(self, job_id: str) -> Path:
        """Return the directory of a job."""
        return self.paths.jobs / job_key(job_id)

    def exists(self, job_id: str) -> bool:
        """Return whether the job has ever been started."""
        return (self.directory(job_id) / STARTED).exists()

    async def start(self, job: BackgroundJob, launch: Launch, *, proxied: bool) -> None:
        """Start the job's supervisor and wait until it has accepted the job. Idempotent.

        `proxied`: its sandbox is restricted, so that the proxy is its only way out.
        """
        directory = self.directory(job.id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        encoded_spec = self._job_spec(job, launch, proxied=proxied).encode()
        launcher = Launch(
            prefix=program_argv("sandbox.host.jobs.supervisor"),
            program=[str(directory)],
            suffix=[],
            environment={},
            group=Cgroup(),
        )
        run = await start_run(launcher, self.host.context.executor, stdin=True)
        done = await execute(run, ExecRequest(script="", stdin=encoded_spec, timeout=START_TIMEOUT_SECONDS))
        if done.timed_out:
            raise ProviderUnreachable("the job's supervisor did not become ready")
        if done.stdout not in {READY, ALREADY_STARTED}:
            raise ProviderRefused(
                f"the job's supervisor did not start: {done.stderr.decode(errors='replace')[-2000:]}"
            )

    def report(self, job_id: str) -> JobReport:
        """Return a job's state and output so far.

        Without an exit code and without a supervisor the job was killed from outside. In the current boot
        that is reported as exit code 137; in an earlier one the job was lost with the instance.
        """
        directory = self.directory(job_id)
        if not (directory / STARTED).exists():
            return JobReport(state=BackgroundJobState.UNKNOWN)
        alive = is_supervised(directory)
        output, truncated = _read(directory / OUTPUT), (directory / TRUNCATED).exists()
        ended = _read(directory / EXIT)
        if ended:
            code = int(json.loads(ended)["exit_code"])
            return JobReport(
                state=BackgroundJobState.EXITED, exit_code=code, output=output, truncated=truncated
            )
        if alive:
            return JobReport(state=BackgroundJobState.RUNNING, output=output, truncated=truncated)
        if self._read_started(directory)["boot"] != boot_id():
            return JobReport(state=BackgroundJobState.RECREATED, output=output, truncated=truncated)
        return JobReport(
            state=BackgroundJobState.EXITED,
            exit_code=KILLED,
            output=output,
            truncated=truncated,
            unrecorded=True,
        )

    async def stop(self, job_id: str) -> None:
        """Stop a job and wait until it has ended."""
        directory = self.directory(job_id)
        if not (directory / STARTED).exists():
            return
        supervisor = int(self._read_started(directory)["pid"])
        deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
        signalled = False
        while is_supervised(directory) and not (directory / EXIT).exists():
            if not signalled:
                signalled = _signal(supervisor, signal.SIGTERM)
            if time.monotonic() > deadline:
                _signal(supervisor, signal.SIGKILL)
            await asyncio.sleep(0.02)

    async def kill_all(self) -> None:
        """Kill every job with its supervisor, so that none reports its end: the sandbox is destroyed."""
        self.thaw()
        for directory in sorted(self.paths.jobs.glob("*/")):
            while (directory / STARTED).exists() and is_supervised(directory):
                await _kill_tree(int(self._read_started(directory)["pid"]))
                await asyncio.sleep(0.02)

    def count_running(self) -> int:
        """Return how many running jobs keep the sandbox awake."""
        return sum(not started.get("rests") for started in self._list_running())

    def has_proxied(self) -> bool:
        """Return whether a running job has no network but the proxy, as its sandbox was restricted."""
        return any(started.get("proxied") for started in self._list_running())

    def freeze(self) -> None:
        """Freeze the running jobs that sleep with the sandbox."""
        resting = [started for started in self._list_running() if started.get("rests")]
        if resting:
            self.paths.frozen_marker.touch()
        for started in resting:
            freeze(int(started["pid"]), _group(started))

    def thaw(self) -> None:
        """Thaw the frozen jobs."""
        if not self.paths.frozen_marker.exists():
            return
        for started in self._list_running():
            thaw(int(started["pid"]), _group(started))
        self.paths.frozen_marker.unlink(missing_ok=True)

    def _list_running(self) -> Iterator[dict[str, Any]]:
        """Yield the record of each running job."""
        for directory in self.paths.jobs.glob("*/"):
            if (
                (directory / STARTED).exists()
                and not (directory / EXIT).exists()
                and is_supervised(directory)
            ):
                yield self._read_started(directory)

    def _job_spec(self, job: BackgroundJob, launch: Launch, *, proxied: bool) -> JobSpec:
        argv, secret = self.host.completion_argv(completion_report.program_path(), self.paths.callbacks)
        post = CompletionRequest(
            argv=argv,
            secret=secret,
            socket=self.host.callback_socket(self.paths.callbacks),
            path=f"/sandbox-jobs/{job.id}/complete",
            token=job.token,
            patience=self.host.settings.callback_patience,
        )
        return JobSpec(
            prefix=list(launch.prefix),
            program=list(launch.program),
            secret=list(launch.secret),
            suffix=list(launch.suffix),
            environment=launch.environment,
            directory=launch.directory,
            joins=[str(path) for path in launch.group.joins],
            group=str(launch.group.own) if launch.group.own else None,
            timeout=job.timeout,
            output_limit=min(job.output_limit, OUTPUT_CAP),
            boot=boot_id(),
            rests=job.sleeps_with_sandbox,
            proxied=proxied,
            post=post,
        )

    @staticmethod
    def _read_started(directory: Path) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads((directory / STARTED).read_bytes())
        return fields


def _group(started: dict[str, Any]) -> Path | None:
    return Path(started["group"]) if started["group"] else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


async def _kill_tree(root: int) -> None:
    """Kill a process and its descendants, and wait until they are gone; raises ProviderUnreachable."""
    below = await asyncio.to_thread(lambda: tuple(descendants(root)))
    watchers = [ProcessWatcher(pid) for pid in (*below, root)]
    try:
        await asyncio.to_thread(kill_tree, root)
        await wait_until_killed(watchers)
    finally:
        for watcher in watchers:
            watcher.close()


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True

"""Background jobs from the gateway's side: starting a supervisor, asking its files, telling it to stop."""

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

from sandbox.errors import Refused, Unreachable
from sandbox.host.isolation.freezer import freeze, thaw
from sandbox.host.jobs import completion_report
from sandbox.host.jobs.boot_id import boot_id
from sandbox.host.jobs.supervisor import GRACE, KNOWN, READY
from sandbox.host.run.execution import KILLED, Launch
from sandbox.host.run.host_environment import Machine, Place, neighbour
from sandbox.host.run.job_spec import EXIT, OUTPUT, STARTED, TRUNCATED, Order, Post, supervised
from sandbox.labels import digest
from sandbox.model import OUTPUT_CAP, Job, JobReport, JobState

STARTING = 20.0
LEAVING = GRACE + 5.0


def key_of(job_id: str) -> str:
    """Return the name of a job's directory and group; ids are hashed, so that none of them can be a path."""
    return digest("job", job_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The jobs of one sandbox."""

    machine: Machine
    place: Place

    def directory(self, job_id: str) -> Path:
        """Return the directory of a job."""
        return self.place.jobs / key_of(job_id)

    def known(self, job_id: str) -> bool:
        """Whether the job has been started, ever."""
        return (self.directory(job_id) / STARTED).exists()

    async def start(self, job: Job, launch: Launch) -> None:
        """Start the job's supervisor and wait until it has the job in hand; a second one finds it started."""
        directory = self.directory(job.id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        order = self._order(job, launch).dump()
        launcher = await asyncio.create_subprocess_exec(
            *neighbour("sandbox.host.jobs.supervisor"),
            str(directory),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(STARTING):
                answer, complaint = await launcher.communicate(order)
        except TimeoutError:
            launcher.kill()
            raise Unreachable("the job's supervisor does not come up") from None
        if answer not in {READY, KNOWN}:
            raise Refused(f"the job's supervisor did not start: {complaint.decode(errors='replace')[-2000:]}")

    def report(self, job_id: str) -> JobReport:
        """Say how a job is doing.

        Without an exit code and without a supervisor it was killed from outside: in this life of the machine
        that is exit code 137, in an earlier one it went with the machine.
        """
        directory = self.directory(job_id)
        if not (directory / STARTED).exists():
            return JobReport(state=JobState.UNKNOWN)
        alive = supervised(directory)
        output, truncated = _read(directory / OUTPUT), (directory / TRUNCATED).exists()
        ended = _read(directory / EXIT)
        if ended:
            code = int(json.loads(ended)["exit_code"])
            return JobReport(state=JobState.EXITED, exit_code=code, output=output, truncated=truncated)
        if alive:
            return JobReport(state=JobState.RUNNING, output=output, truncated=truncated)
        if self._started(directory)["boot"] != boot_id():
            return JobReport(state=JobState.RECREATED, output=output, truncated=truncated)
        return JobReport(state=JobState.EXITED, exit_code=KILLED, output=output, truncated=truncated)

    async def stop(self, job_id: str) -> None:
        """End a job and wait until it has ended."""
        directory = self.directory(job_id)
        if not (directory / STARTED).exists():
            return
        supervisor = int(self._started(directory)["pid"])
        deadline = time.monotonic() + LEAVING
        told = False
        while supervised(directory) and not (directory / EXIT).exists():
            if not told:
                told = _signal(supervisor, signal.SIGTERM)
            if time.monotonic() > deadline:
                _signal(supervisor, signal.SIGKILL)
            await asyncio.sleep(0.02)

    async def silence(self) -> None:
        """End every job and its supervisor, telling nobody any more: the sandbox is being destroyed."""
        self.wake()
        for directory in sorted(self.place.jobs.glob("*/")):
            while (directory / STARTED).exists() and supervised(directory):
                _signal(int(self._started(directory)["pid"]), signal.SIGKILL)
                await asyncio.sleep(0.02)

    def running(self) -> int:
        """Return how many jobs are running that keep the sandbox awake."""
        return sum(not started.get("rests") for started in self._alive())

    def rest(self) -> None:
        """Have those that are running, and may, stand still until somebody wakes them."""
        resting = [started for started in self._alive() if started.get("rests")]
        if resting:
            self.place.asleep.touch()
        for started in resting:
            freeze(int(started["pid"]), _group(started))

    def wake(self) -> None:
        """Have go on what stands still."""
        if not self.place.asleep.exists():
            return
        for started in self._alive():
            thaw(int(started["pid"]), _group(started))
        self.place.asleep.unlink(missing_ok=True)

    def _alive(self) -> Iterator[dict[str, Any]]:
        """Yield what is known of each job that runs."""
        for directory in self.place.jobs.glob("*/"):
            if (directory / STARTED).exists() and not (directory / EXIT).exists() and supervised(directory):
                yield self._started(directory)

    def _order(self, job: Job, launch: Launch) -> Order:
        argv, secret = self.machine.poster(completion_report.program())
        post = Post(
            argv=argv,
            secret=secret,
            socket=self.machine.callback_socket(),
            path=f"/sandbox-jobs/{job.id}/complete",
            token=job.token,
            patience=self.machine.settings.callback_patience,
        )
        return Order(
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
            rests=job.rests,
            post=post,
        )

    @staticmethod
    def _started(directory: Path) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads((directory / STARTED).read_bytes())
        return fields


def _group(started: dict[str, Any]) -> Path | None:
    return Path(started["group"]) if started["group"] else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True

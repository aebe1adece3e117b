"""Which replica a background job belongs to, if its sandbox exists on one machine only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.store.turns.jobs import Job
from sandbox.errors import ProviderUnreachable


class RunsElsewhere(ProviderUnreachable):
    """The job runs on the machine of another replica, which alone can reach it."""


async def _may_run(_replica: str) -> bool:
    """Return True: without a list of the replicas that run, each may be one of them."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReplicas:
    """Assigns jobs of `local_provider` to this replica. Without a `replica`, all replicas reach all jobs.

    `replica` names the data directory on its machine. A restarted process keeps the name; a directory that
    was restored, or moved to another machine, has a new one. If `alone`, no other gateway uses the database,
    so that the jobs of all names are this one's. The owner is recorded even then, because a second replica
    may be added while a job runs. `is_running` returns whether a replica runs; True if that is unknown.
    """

    replica: str | None = None
    local_provider: str = ""
    alone: bool = False
    is_running: Callable[[str], Awaitable[bool]] = _may_run

    def owner(self, provider: str) -> str | None:
        """Return the replica that a new job of a provider belongs to; None if it belongs to all."""
        return self.replica if provider == self.local_provider else None

    async def is_away(self, job: Job) -> bool:
        """Return whether a job belongs to another replica that does not run."""
        return job.replica not in (None, self.replica) and not await self.is_running(job.replica)

    def check(self, job: Job) -> None:
        """Raise RunsElsewhere for a job of another replica."""
        if self.alone:
            return
        if self.replica is not None and job.replica not in (None, self.replica):
            raise RunsElsewhere(
                f"the job {job.id} runs in a sandbox in the data directory of the replica {job.replica}: "
                "ask again when that replica answers, or start it again on its data directory. If that is "
                "gone, as after a restore, start one gateway alone with replicas = 1"
            )


ANY_REPLICA = JobReplicas()
"""Every job may be reached from every replica."""

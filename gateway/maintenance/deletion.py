"""Erasure: a deleted conversation is gone everywhere, also when the broker was away at that moment.

Its rows go in one transaction, which leaves a mark; the mark goes when the stream's subjects have been purged
a minute later, when nobody can still be appending what it took from the outbox before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from delivery.database.clock import utc_now
from delivery.database.engine import Database, Unavailable
from delivery.errors import DeliveryError
from delivery.events.port import Stream
from gateway.jobs.jobs import Jobs
from gateway.store.accounts import audit_log, deletion
from gateway.store.turns import jobs as job_store
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

EVERY = 5.0
SETTLED = timedelta(seconds=60)
"""How long somebody may still be appending events that were taken from the outbox before."""
STOPPING = 10.0
"""Seconds that a deletion waits for the conversation's jobs to end."""


class Erasure:
    """Deletes conversations, and sees to it that nothing of them stays in the stream."""

    def __init__(self, database: Database, stream: Stream, jobs: Jobs, *, every: float = EVERY) -> None:
        self._database = database
        self._stream = stream
        self._jobs = jobs
        self._every = every

    async def erase(self, account: str, conversation: str) -> None:
        """Stop its jobs, delete its rows, purge its events. Raises Unavailable; then nothing was deleted."""
        await self._end_jobs(account, conversation)
        async with self._database.begin() as connection:
            await deletion.remove_conversation(connection, account, conversation)
            await audit_log.begin_erasure(connection, conversation)
        with suppress(DeliveryError):  # the round does it when the broker is back
            await self._stream.forget(conversation)

    async def _end_jobs(self, account: str, conversation: str) -> None:
        async with self._database.read() as connection:
            running = await job_store.listed(
                connection, account, conversation=conversation, state="running", limit=1000
            )
        try:
            async with asyncio.timeout(STOPPING):
                for job in running:
                    await self._jobs.stop(job)
        except (TimeoutError, SandboxError, Unavailable) as error:
            log.warning("erasure.jobs_not_stopped", conversation=conversation, error=str(error))

    async def run(self, stop: asyncio.Event) -> None:
        """Finish what was begun, until stopped."""
        while not stop.is_set():
            try:
                await self.look(utc_now())
            except (DeliveryError, Unavailable) as error:
                log.warning("erasure.waits", error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await stop.wait()

    async def look(self, now: datetime) -> None:
        """Purge every conversation that has a mark, and take the marks away that are old enough."""
        async with self._database.read() as connection:
            begun = await audit_log.open_erasures(connection)
        for conversation, since in begun:
            await self._stream.forget(conversation)
            if now - since > SETTLED:
                async with self._database.begin() as connection:
                    await audit_log.end_erasure(connection, conversation)

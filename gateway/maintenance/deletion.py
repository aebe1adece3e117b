"""Deletion: the end of what is in progress; rows at once; events also if the broker is down at that moment.

One transaction deletes the rows and schedules a purge of the stream. The purge is repeated for a minute,
because another process may still append events that it had read from the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from delivery.background import log_errors
from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, DatabaseUnavailable
from delivery.database.lock_timeouts import run_with_lock_timeout
from delivery.deliveries.queries import has_unsent
from delivery.deliveries.rendering import ACCOUNT_DELETED, CONVERSATION_DELETED
from delivery.deliveries.transactions import Transactions
from delivery.errors import DeliveryError
from delivery.events.port import EventStream
from delivery.events.read_barrier import wait_until_published
from gateway.jobs.jobs import Jobs
from gateway.store.accounts import audit_log, deletion
from gateway.store.turns import jobs as job_store
from gateway.store.turns import turns as turn_store
from gateway.store.turns.jobs import Job
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

INTERVAL = 5.0
APPEND_GRACE = timedelta(seconds=60)
"""How long a process may still append events that it had read from the outbox."""
STOP_TIMEOUT = 10.0
"""Seconds that a deletion waits for turns to end, and for jobs to stop."""
DELIVERY_TIMEOUT = 5.0
"""Seconds that a deletion waits until the ends of turns and jobs are published and sent."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """What is deleted: a conversation, or with None all of an account; and the reason that turns end with."""

    account: str
    conversation: str | None
    reason: str


class ConversationDeletion:
    """Deletes conversations, with their jobs and events, and ends the work of accounts."""

    def __init__(
        self,
        transactions: Transactions,
        stream: EventStream,
        jobs: Jobs,
        *,
        cancel: Callable[[str], None],
        interval: float = INTERVAL,
    ) -> None:
        self._transactions = transactions
        self._database = transactions.database
        self._cancel = cancel
        self._stream = stream
        self._jobs = jobs
        self._interval = interval

    async def delete(self, account: str, conversation: str) -> None:
        """End its turns, stop its jobs, delete its rows, purge its events.

        Whoever waits for a turn or a job gets its end, also in a chat and at a webhook, if that answers
        within DELIVERY_TIMEOUT. On DatabaseUnavailable nothing was deleted.
        """

        async def delete_rows(connection: Connection) -> None:
            await deletion.delete_conversation(connection, account, conversation)
            await audit_log.schedule_purge(connection, account, conversation)

        await self._end_work(_Scope(account=account, conversation=conversation, reason=CONVERSATION_DELETED))
        await run_with_lock_timeout(self._database, delete_rows)
        with suppress(DeliveryError):  # `run` purges it when the broker is back
            await self._stream.purge(conversation, account=account)

    async def end_work(self, account: str) -> None:
        """End the turns and jobs of an account that will be deleted, as `delete` does for a conversation."""
        await self._end_work(_Scope(account=account, conversation=None, reason=ACCOUNT_DELETED))

    async def _end_work(self, scope: _Scope) -> None:
        """End turns and jobs, and wait a limited time until readers, chats and webhooks have their ends."""
        ended = await self._end_turns(scope)
        if stopped := await self._stop_jobs(scope):
            ended |= stopped | await self._end_turns(scope)  # those that follow the jobs
        if scope.conversation is not None:
            ended.add(scope.conversation)
        await self._wait_until_delivered(scope, ended)

    async def _end_turns(self, scope: _Scope) -> set[str]:
        """Cancel the open turns, wait a limited time for their ends, and return their conversations."""
        async with self._transactions.begin("turn.cancel") as tx:
            cancelled = await self._list_open(tx.connection, scope)
            for turn, conversation in cancelled.items():
                await turn_store.request_cancel(tx.connection, turn, reason=scope.reason)
                tx.wake(WorkQueue.TURN, conversation, account=scope.account)
        for turn in cancelled:
            self._cancel(turn)
        still_open = set(cancelled)
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                while still_open:
                    await asyncio.sleep(_POLL_SECONDS)
                    async with self._database.read() as connection:
                        still_open &= (await self._list_open(connection, scope)).keys()
        except TimeoutError:
            log.warning("deletion.turns_not_ended", **_ids(scope), turns=len(still_open))
        return set(cancelled.values())

    async def _list_open(self, connection: Connection, scope: _Scope) -> dict[str, str]:
        return await turn_store.list_open_ids(connection, scope.account, conversation=scope.conversation)

    async def _stop_jobs(self, scope: _Scope) -> set[str]:
        """Stop the jobs within a limited time, and return their conversations.

        Those of other replicas are stopped by these, which read the request within seconds.
        """
        running = await self._list_running(scope)
        stopping: set[str] = set()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                for job in running:
                    if await self._stop_job(job):
                        stopping.add(job.id)
                while stopping:
                    await asyncio.sleep(_POLL_SECONDS)
                    stopping &= {job.id for job in await self._list_running(scope)}
        except (TimeoutError, DatabaseUnavailable) as error:
            reason = str(error) or f"not within {STOP_TIMEOUT:g} s"
            log.warning("deletion.jobs_not_stopped", **_ids(scope), error=reason)
        return {job.conversation for job in running}

    async def _list_running(self, scope: _Scope) -> list[Job]:
        async with self._database.read() as connection:
            return await job_store.list_for_account(
                connection, scope.account, conversation=scope.conversation, state="running", limit=1000
            )

    async def _stop_job(self, job: Job) -> bool:
        """Stop a job, or ask its replica to; False if its sandbox cannot be reached."""
        try:
            await self._jobs.stop(job)
        except SandboxError as error:
            log.warning("deletion.job_not_stopped", account=job.account, job=job.id, error=str(error))
            return False
        return True

    async def _wait_until_delivered(self, scope: _Scope, ended: set[str]) -> None:
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT):
                for conversation in ended:
                    await self._wait_until_published(scope.account, conversation)
                    while await self._has_unsent(conversation):  # noqa: ASYNC110 - sent by any replica
                        await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            log.warning("deletion.not_delivered", **_ids(scope))

    async def _wait_until_published(self, account: str, conversation: str) -> None:
        with suppress(DeliveryError):
            await wait_until_published(
                self._database, self._stream, conversation, account=account, timeout=DELIVERY_TIMEOUT
            )

    async def _has_unsent(self, conversation: str) -> bool:
        async with self._database.read() as connection:
            return await has_unsent(connection, conversation)

    async def run(self, stop: asyncio.Event) -> None:
        """Complete scheduled purges until stopped."""
        while not stop.is_set():
            with log_errors("deletion.purge"):
                await self.run_once(utc_now())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await stop.wait()

    async def run_once(self, now: datetime) -> None:
        """Purge every scheduled conversation, and complete the purges that are older than APPEND_GRACE."""
        async with self._database.read() as connection:
            pending = await audit_log.list_pending_purges(connection)
        for account, conversation, since in pending:
            await self._stream.purge(conversation, account=account)
            if now - since > APPEND_GRACE:
                async with self._database.begin() as connection:
                    await audit_log.complete_purge(connection, conversation)


def _ids(scope: _Scope) -> dict[str, str]:
    """Return what a log entry says of a scope."""
    return {"conversation": scope.conversation} if scope.conversation else {"account": scope.account}

"""Deletion of conversations: rows at once, events also if the broker is down at that moment.

One transaction deletes the rows and schedules a purge of the stream. The purge is repeated for a minute,
because another process may still append events that it had read from the outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import structlog

from delivery.background import log_errors
from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.database.engine import Connection, DatabaseUnavailable
from delivery.database.lock_timeouts import run_with_lock_timeout
from delivery.deliveries.queries import has_unsent
from delivery.deliveries.rendering import CONVERSATION_DELETED
from delivery.deliveries.transactions import Transactions
from delivery.errors import DeliveryError
from delivery.events.port import EventStream
from delivery.events.read_barrier import wait_until_published
from gateway.jobs.jobs import Jobs
from gateway.store.accounts import audit_log, deletion
from gateway.store.turns import jobs as job_store
from gateway.store.turns import turns as turn_store
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

INTERVAL = 5.0
APPEND_GRACE = timedelta(seconds=60)
"""How long a process may still append events that it had read from the outbox."""
STOP_TIMEOUT = 10.0
"""Seconds that a deletion waits for the conversation's turns to end, and for its jobs to stop."""
DELIVERY_TIMEOUT = 5.0
"""Seconds that a deletion waits until the ends of turns and jobs are published and sent."""
_POLL_SECONDS = 0.05


class ConversationDeletion:
    """Deletes conversations, with their jobs and events."""

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

        await self._end_turns(account, conversation)
        if await self._stop_jobs(account, conversation):
            await self._end_turns(account, conversation)  # those that follow the jobs
        await self._wait_until_delivered(account, conversation)
        await run_with_lock_timeout(self._database, delete_rows)
        with suppress(DeliveryError):  # `run` purges it when the broker is back
            await self._stream.purge(conversation, account=account)

    async def _end_turns(self, account: str, conversation: str) -> None:
        """Cancel the open turns, and wait a limited time until they have ended."""
        async with self._transactions.begin("turn.cancel") as tx:
            running = await turn_store.list_open(tx.connection, conversation)
            for turn in running:
                await turn_store.request_cancel(tx.connection, turn.id, reason=CONVERSATION_DELETED)
            if not running:
                return
            tx.wake(WorkQueue.TURN, conversation, account=account)
        for turn in running:
            self._cancel(turn.id)
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                while running:
                    await asyncio.sleep(_POLL_SECONDS)
                    async with self._database.read() as connection:
                        running = await turn_store.list_open(connection, conversation)
        except TimeoutError:
            log.warning("deletion.turns_not_ended", conversation=conversation, turns=len(running))

    async def _wait_until_delivered(self, account: str, conversation: str) -> None:
        """Wait a limited time until readers have all events, and chats and webhooks what is sent to them."""
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT):
                with suppress(DeliveryError):
                    await wait_until_published(
                        self._database, self._stream, conversation, account=account, timeout=DELIVERY_TIMEOUT
                    )
                while await self._has_unsent(conversation):  # noqa: ASYNC110 - sent by any replica
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            log.warning("deletion.not_delivered", conversation=conversation)

    async def _has_unsent(self, conversation: str) -> bool:
        async with self._database.read() as connection:
            return await has_unsent(connection, conversation)

    async def _stop_jobs(self, account: str, conversation: str) -> bool:
        """Stop the jobs within a limited time, and return whether there are any."""
        async with self._database.read() as connection:
            running = await job_store.list_for_account(
                connection, account, conversation=conversation, state="running", limit=1000
            )
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                for job in running:
                    await self._jobs.stop(job)
        except (TimeoutError, SandboxError, DatabaseUnavailable) as error:
            log.warning("deletion.jobs_not_stopped", conversation=conversation, error=str(error))
        return bool(running)

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

"""The read barrier: a reader of the stream waits for the events that are recorded but not yet published."""

from __future__ import annotations

import asyncio

from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.port import EventStream

POLL_SECONDS = 0.01


async def wait_until_published(
    database: Database, stream: EventStream, conversation: str, *, account: str, timeout: float
) -> bool:
    """Wait up to `timeout` seconds until the stream has all events that are recorded now; False: it has not.

    A client that has read the end of a turn from SQL then finds the turn's events in the stream, whichever
    replica publishes them. Raises BrokerUnreachable.
    """
    async with database.read() as connection:
        unpublished = await outbox.unpublished_up_to(connection, conversation)
    if unpublished is None:
        return True
    try:
        async with asyncio.timeout(timeout):
            while await _published_n(stream, conversation, account) < unpublished:  # noqa: ASYNC110 - by any replica
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        return False
    return True


async def _published_n(stream: EventStream, conversation: str, account: str) -> int:
    tail = await stream.tail(conversation, account=account)
    return tail.n if tail is not None else 0

"""Read a room's history: page by page, and for a new channel only what is still to be answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

Raw = Mapping[str, Any]

IsOwn = Callable[[Raw], bool]
"""Return whether a message is the bot's."""


async def read_pages(
    read: Callable[[int], Awaitable[Sequence[Raw]]], after: int, *, size: int, limit: int
) -> AsyncIterator[Raw]:
    """Yield the messages after an id, in order, from so many pages at most; a short page is the last."""
    for _ in range(limit):
        page = await read(after)
        for message in page:
            yield message
        if len(page) < size:
            break
        after = int(page[-1]["id"])


async def after_own(messages: AsyncIterator[Raw], is_own: IsOwn) -> AsyncIterator[Raw]:
    """Yield the messages after the bot's last one: an earlier channel of the bot has answered the others."""
    found: list[Raw] = []
    async for message in messages:
        if is_own(message):
            found.clear()
        else:
            found.append(message)
    for message in found:
        yield message


def messages_of(page: object) -> list[Raw]:
    """Return the messages of a page in the order of their ids, which are numbers; skip other values."""
    messages = [one for one in page if _is_message(one)] if isinstance(page, list) else []
    return sorted(messages, key=lambda one: int(one["id"]))


def _is_message(raw: object) -> bool:
    return isinstance(raw, dict) and isinstance(raw.get("id"), str) and raw["id"].isdecimal()

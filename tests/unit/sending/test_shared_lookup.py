"""Lookups of one key are shared until they begin."""

from __future__ import annotations

import asyncio
import gc

import pytest

from delivery.webhooks.shared_lookup import SharedLookup


class Store:
    """A store that answers when `answer` is set, and counts its reads."""

    def __init__(self) -> None:
        self.value, self.reads = "old", 0
        self.answer, self.asked = asyncio.Event(), asyncio.Event()

    async def read(self, key: str) -> str:
        """Return the value as it is now, later."""
        found, self.reads = f"{key}: {self.value}", self.reads + 1
        self.asked.set()
        await self.answer.wait()
        return found


async def test_requests_at_the_same_time_share_one_lookup() -> None:
    """Other keys have their own."""
    store = Store()
    store.answer.set()
    shared = SharedLookup(store.read)
    found = await asyncio.gather(*(shared.get(key) for key in ("a", "a", "b", "a")))
    assert found == ["a: old", "a: old", "b: old", "a: old"]
    assert store.reads == 2


async def test_a_lookup_that_has_begun_is_not_shared() -> None:
    """Its result may be older than the request."""
    store = Store()
    shared = SharedLookup(store.read)
    first = asyncio.create_task(shared.get("a"))
    await store.asked.wait()
    store.value = "new"
    second = asyncio.create_task(shared.get("a"))
    store.answer.set()
    assert [await first, await second] == ["a: old", "a: new"]


async def test_an_error_that_no_request_waits_for_is_dropped() -> None:
    """Asyncio would report it as an exception that was never retrieved."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    asked, answer = asyncio.Event(), asyncio.Event()

    async def fail(key: str) -> str:
        asked.set()
        await answer.wait()
        raise LookupError(key)

    request = asyncio.create_task(SharedLookup(fail).get("a"))
    await asked.wait()
    request.cancel()
    await asyncio.wait({request})
    answer.set()
    for _ in range(5):
        await asyncio.sleep(0)
    gc.collect()
    assert reported == []


async def test_a_request_that_is_cancelled_cancels_no_other() -> None:
    """The first one starts the lookup, which belongs to no single request."""
    store = Store()
    shared = SharedLookup(store.read)
    first, second = (asyncio.create_task(shared.get("a")) for _ in range(2))
    await store.asked.wait()
    first.cancel()
    store.answer.set()
    assert await second == "a: old"
    with pytest.raises(asyncio.CancelledError):
        await first

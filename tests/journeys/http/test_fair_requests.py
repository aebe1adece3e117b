"""Requests of one account do not wait for those of another: the time of the event loop is shared."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from api_server import ApiClient, open_api_server
from delivery.fair_event_loop import FairEventLoop

CLIENTS = 60
REQUESTS = 20
PATH = "/accounts/me/agents"


async def count_answers(data: Path) -> int:
    """Return how many requests of sixty busy clients are answered during twenty of another account."""
    connector = aiohttp.TCPConnector(limit=0)
    async with open_api_server(data) as server, aiohttp.ClientSession(connector=connector) as session:
        busy = ApiClient(session=session, url=server.url, key=server.mine.key)
        answered = 0

        async def ask_without_pause() -> None:
            nonlocal answered
            while True:
                assert (await busy.call("GET", PATH)).status == 200
                answered += 1

        async with asyncio.timeout(60):
            asking = [asyncio.create_task(ask_without_pause()) for _ in range(CLIENTS)]
            while answered < 2 * CLIENTS:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.01)
            before = answered
            for _ in range(REQUESTS):
                assert (await server.other.call("GET", PATH)).status == 200
            between = answered - before
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return between


def test_a_request_waits_for_few_requests_of_another_account(tmp_path: Path) -> None:
    """In the order of arrival each of its requests would wait for one of each busy client."""
    with asyncio.Runner(loop_factory=FairEventLoop) as runner:
        between = runner.run(count_answers(tmp_path))
    assert between < CLIENTS * REQUESTS / 3

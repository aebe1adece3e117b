"""Sandbox starts: each provider has its own places, so that one that hangs delays only its own sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from gateway.app import RunningGateway
from in_process_gateway import gateway_in_process
from silent_service import e2b_at, silent_service


async def test_a_provider_that_hangs_delays_no_other_provider(tmp_path: Path) -> None:
    """While the only place for starts of one provider is taken, another one creates a sandbox at once."""
    async with silent_service() as (url, called, over):
        data = tmp_path / "data"
        async with gateway_in_process(data, e2b_at(url)) as running, _client(running, data) as http:
            await _create_far_agent(http)
            waiting = await _post(http, "/agents/far/turns", input="!echo far")
            async with asyncio.timeout(60):
                await called.wait()
                near = await _post(http, "/agents/default/turns", input="!echo near")
                ended = await _wait_for_end(http, near["statusUrl"])
            still = await _get(http, waiting["statusUrl"])
            over.set()
            await _post(http, f"/turns/{waiting['turnId']}/cancel")
    assert (ended["state"], "near" in ended["output"]) == ("completed", True)
    assert still["state"] == "running"


async def test_a_start_that_takes_long_is_shown_to_people(tmp_path: Path) -> None:
    """An event says what the turn waits for, once, while it waits; a start at once has no such event."""
    async with silent_service() as (url, _called, over):
        data = tmp_path / "data"
        async with gateway_in_process(data, e2b_at(url)) as running, _client(running, data) as http:
            await _create_far_agent(http)
            waiting = await _post(http, "/agents/far/turns", input="!echo far")
            near = await _post(http, "/agents/default/turns", input="!echo near")
            async with asyncio.timeout(60):
                while not (found := await _waits(http, waiting)):  # noqa: ASYNC110 - over HTTP
                    await asyncio.sleep(0.05)
                await _wait_for_end(http, near["statusUrl"])
            still = await _get(http, waiting["statusUrl"])
            over.set()
            await _post(http, f"/turns/{waiting['turnId']}/cancel")
            await _wait_for_end(http, waiting["statusUrl"])
            assert await _waits(http, waiting) == found
            assert await _waits(http, near) == []
    assert still["state"] == "running"
    assert found == [{"attempt": 1, "reason": "starting the sandbox"}]


async def _create_far_agent(http: ClientSession) -> None:
    record = await _post(http, "/accounts/me/sandboxes", name="far", config={"provider": "e2b"})
    config = {"model": "builtin:shell", "sandbox": record["id"]}
    await _post(http, "/accounts/me/agents", name="far", config=config)


async def _waits(http: ClientSession, turn: Any) -> list[Any]:
    """Return what the events of a turn say that it waits for."""
    page = await _get(http, f"/conversations/{turn['conversationId']}/events")
    events = [one.get("event", one) for one in page["items"]]
    return [one["data"] for one in events if one["type"] == "turn.waiting"]


@asynccontextmanager
async def _client(running: RunningGateway, data: Path) -> AsyncIterator[ClientSession]:
    headers = {"Authorization": f"Bearer {(data / 'key').read_text().strip()}"}
    async with ClientSession(running.url, headers=headers) as http:
        yield http


async def _post(http: ClientSession, path: str, **body: Any) -> Any:
    async with http.post(path, json=body or None) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json() if answer.content_type == "application/json" else None


async def _get(http: ClientSession, url: str) -> Any:
    async with http.get(url) as answer:
        return await answer.json()


async def _wait_for_end(http: ClientSession, url: str) -> Any:
    while (status := await _get(http, url))["state"] in {"queued", "running"}:  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.05)
    return status

"""Asking the default agent of a gateway over HTTP, and waiting for what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp

from gateway_process import GatewayProcess

ALLOWED = {
    "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
    "DOVECOTE_RECONCILE_INTERVAL": "1",
    "DOVECOTE_WEBHOOK_SCHEDULE": ",".join(["2"] * 20),
}
"""Settings with which webhooks on loopback are called, again after 2 s, and lost jobs are soon noticed."""


async def start_turn(process: GatewayProcess, text: str, **more: Any) -> dict[str, Any]:
    """Ask the default agent."""
    async with (
        process.http() as session,
        session.post("/agents/default/turns", json={"input": text, **more}) as answer,
    ):
        assert answer.status == 202, await answer.text()
        return dict(await answer.json())


async def poll_until(
    process: GatewayProcess, path: str, wanted: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Poll a path until the response is as wanted, and return it."""
    async with asyncio.timeout(40), process.http() as session:
        while True:
            async with session.get(path) as answer:
                found = dict(await answer.json())
            if wanted(found):
                return found
            await asyncio.sleep(0.1)


def is_finished(status: dict[str, Any]) -> bool:
    """Say whether a turn has ended."""
    return status["finished_at"] is not None


def item_states(found: dict[str, Any]) -> set[str]:
    """Return the states of what is listed."""
    return {one["state"] for one in found["items"]}


async def read_first_event(process: GatewayProcess, cursor: str) -> str:
    """Return the first event a reader gets that comes back with a cursor."""
    headers = {"Last-Event-ID": cursor, "Accept": "text/event-stream"}
    url = "/conversations/one/events"
    async with process.http() as session, session.get(url, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return await _read_event(answer)


async def _read_event(answer: aiohttp.ClientResponse) -> str:
    text = ""
    async with asyncio.timeout(20):
        async for line in answer.content:
            text += line.decode()
            if line.startswith(b"event:"):
                return text
    return text

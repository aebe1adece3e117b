"""A dead-lettered turn is listed, counted, and retried once."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_process import GatewayProcess, gateway

GIVEN_UP = "given up: this turn was interrupted 5 times before it finished"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway."""
    async with gateway(tmp_path / "data") as process:
        yield process


async def call(session: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Call the gateway, return status and answer."""
    async with session.request(method, path, json=body) as answer:
        return answer.status, await answer.json()


async def ended(session: aiohttp.ClientSession, turn: str) -> dict[str, Any]:
    """Wait for a turn's end and return its state."""
    async with asyncio.timeout(30):
        while True:
            _, status = await call(session, "GET", f"/status/{turn}")
            if status["finished_at"] is not None:
                return dict(status)
            await asyncio.sleep(0.02)


async def give_up(running: GatewayProcess, turn: str) -> None:
    """Leave a turn as its fifth crash would; a gateway that really dies five times is tried elsewhere."""
    await running.stop()
    with closing(sqlite3.connect(running.data / "dovecote.db")) as database, database:
        sql = "UPDATE turns SET state = 'failed', output = NULL, error = ? WHERE id = ?"
        assert database.execute(sql, (GIVEN_UP, turn)).rowcount == 1
    await running.start()


async def test_a_turn_given_up_is_asked_again_once(running: GatewayProcess) -> None:
    """It is listed and counted as dead; a retry is one new turn, however often it is asked for."""
    async with running.http() as session:
        status, taken = await call(session, "POST", "/agents/default/turns", {"input": "!echo pigeon"})
        assert status == 202
        await ended(session, taken["turnId"])
        assert (await call(session, "POST", f"/turns/{taken['turnId']}/retry"))[0] == 409
    await give_up(running, taken["turnId"])
    async with running.http() as session:
        _, dead = await call(session, "GET", "/turns?dead=true")
        assert [(one["id"], one["dead"], one["error"]) for one in dead["items"]] == [
            (taken["turnId"], True, GIVEN_UP)
        ]
        retries = [await call(session, "POST", f"/turns/{taken['turnId']}/retry") for _ in range(3)]
        assert {status for status, _ in retries} == {202}
        (new,) = {turn["id"] for _, turn in retries}
        again = await ended(session, new)
        assert again["state"] == "completed"
        assert "pigeon" in again["output"]
        assert again["conversationId"] == taken["conversationId"]
        assert (await call(session, "GET", "/turns?dead=true"))[1]["items"] == []
        _, failed = await call(session, "GET", "/turns?state=failed&limit=1")
        assert [(one["retried_as"], one["dead"]) for one in failed["items"]] == [(new, False)]
        assert (await call(session, "POST", "/turns/trn_0/retry"))[0] == 404
        async with session.get("/metrics") as answer:
            text = await answer.text()
    route = 'method="POST",route="/turns/{id}/retry"'
    assert f'dovecote_http_requests_total{{{route},status="202"}} 3.0' in text
    assert "dovecote_broker_up 1.0" in text
    assert "dovecote_database_up 1.0" in text


async def test_lists_of_turns_have_pages(running: GatewayProcess) -> None:
    """Turns are listed newest first, page by page."""
    async with running.http() as session:
        asked = [
            (await call(session, "POST", "/agents/default/turns", {"input": f"!echo {n}"}))[1]["turnId"]
            for n in range(3)
        ]
        _, first = await call(session, "GET", "/turns?limit=2")
        _, second = await call(session, "GET", f"/turns?limit=2&cursor={first['next']}")
    assert [one["id"] for one in first["items"] + second["items"]] == asked[::-1]
    assert second["next"] is None

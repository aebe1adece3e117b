"""A conversation whose events have all expired says so to a reader that starts at the beginning."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gateway_process import GatewayProcess, gateway
from turn_requests import is_finished, poll_until, start_turn


async def read_page(process: GatewayProcess) -> dict[str, Any]:
    """Return the first page of the events."""
    async with process.http() as session, session.get("/conversations/one/events?after=0") as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def test_a_reader_gets_a_gap_for_expired_events(tmp_path: Path) -> None:
    """In a page and on a WebSocket; a conversation without events has no gap."""
    async with gateway(tmp_path / "data", env={"DOVECOTE_EVENT_MAX_AGE": "3"}) as process:
        turn = await start_turn(process, "!echo hi", conversation="one")
        await poll_until(process, f"/status/{turn['turnId']}", is_finished)
        page = await read_page(process)
        last = page["items"][-1]["seq"]
        async with asyncio.timeout(60):
            while page["items"] or "gap" not in page:  # neither: they expired while the page was read
                assert "gap" not in page or page["gap"]["to"] < last
                page = await read_page(process)
        assert (page["gap"]["from"], page["gap"]["to"]) == (1, last)
        assert page["gap"]["snapshot"]

        async with process.http() as session, session.ws_connect("/ws") as socket:
            for name, expected in (("one", "gap"), ("new", "caught_up")):
                await socket.send_str(json.dumps({"type": "subscribe", "conversation": name, "after": "0"}))
                kinds: list[str] = []
                async with asyncio.timeout(30):
                    while "caught_up" not in kinds:
                        kinds += [frame["type"] for frame in _frames(await socket.receive_str())]
                assert next(kind for kind in kinds if kind in ("gap", "caught_up")) == expected, kinds


def _frames(text: str) -> list[dict[str, Any]]:
    found = json.loads(text)
    return found if isinstance(found, list) else [found]

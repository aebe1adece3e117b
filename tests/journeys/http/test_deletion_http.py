"""What is deleted is gone."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import aiohttp

from api_server import ADMIN_KEY, ApiClient
from gateway_process import gateway


async def _until_status(client: ApiClient, path: str, *states: str) -> None:
    async with asyncio.timeout(30):
        while (await client.call("GET", path)).body.get("state") not in states:  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.02)


async def test_a_deleted_conversation_leaves_nothing_behind(tmp_path: Path) -> None:
    """Turn, job, events and deliveries are gone at once, its webhook is disabled, and its name is free."""
    env = {"DOVECOTE_ADMIN_KEY": ADMIN_KEY}
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        other = await operator.call("POST", "/accounts", {"name": "other"})
        outsider = ApiClient(session=session, url=process.url, key=other.body["key"])
        said = {"input": "!& sleep 60; echo canary-words", "conversation": "secret talk"}
        taken = (await mine.call("POST", "/agents/default/turns", said)).body
        await _until_status(mine, f"/status/{taken['turnId']}", "completed")
        job = (await mine.call("GET", "/jobs")).body["items"][0]["resultId"]
        one = f"/conversations/{taken['conversationId']}"
        hook = {"url": "https://example.com/hook", "events": ["*"], "conversation": taken["conversationId"]}
        hooks = "/accounts/me/webhooks"
        bound = (await mine.call("POST", hooks, hook)).body["id"]

        assert (await outsider.call("DELETE", one)).status == 404
        assert (await mine.call("DELETE", one)).status == 204

        for path in (
            one,
            f"{one}/snapshot",
            f"{one}/events?after=0",
            f"/status/{taken['turnId']}",
            f"/jobs/{job}",
        ):
            assert (await mine.call("GET", path)).status == 404, path
        assert (await mine.call("GET", "/jobs")).body["items"] == []
        disabled = (await mine.call("GET", f"{hooks}/{bound}")).body
        assert (disabled["enabled"], disabled["disabled_why"]) == (False, "its conversation was deleted")
        assert (await mine.call("PATCH", f"{hooks}/{bound}", {"enabled": True})).status == 409
        fresh = {"input": "!true", "conversation": "secret talk"}
        again = (await mine.call("POST", "/agents/default/turns", fresh)).body
        assert again["conversationId"] != taken["conversationId"]
        await process.stop()
    with closing(sqlite3.connect(tmp_path / "data" / "dovecote.db")) as database:
        assert not [line for line in database.iterdump() if "canary-words" in line]


async def test_a_turn_that_no_process_runs_is_deleted(tmp_path: Path) -> None:
    """A request that waits for it fails at the next heartbeat: its events have no end."""
    env = {"DOVECOTE_ROLES": "ingress,delivery"}
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        asked = {"model": "default", "messages": [{"role": "user", "content": "!true"}]}
        waiting = asyncio.create_task(mine.call("POST", "/v1/chat/completions", asked))
        async with asyncio.timeout(60):
            while not (found := (await mine.call("GET", "/conversations")).body["items"]):  # noqa: ASYNC110 - the gateway is another process
                await asyncio.sleep(0.05)
            assert (await mine.call("DELETE", f"/conversations/{found[0]['id']}")).status == 204
            answer = await waiting
        assert answer.status == 424
        assert "was deleted" in answer.body["detail"]


async def test_every_response_has_the_remaining_requests(tmp_path: Path) -> None:
    """A key's quota is in the headers; beyond it requests are refused, and another key is not affected."""
    env = {"DOVECOTE_REQUESTS_PER_MINUTE": "20"}
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        made = await mine.call("POST", "/accounts/me/keys", {"name": "second"})
        assert made.headers["RateLimit-Policy"] == '"default";q=20;w=60'
        answers = [await mine.call("GET", "/accounts/me") for _ in range(25)]
        refused = [answer for answer in answers if answer.status == 429]
        assert 4 <= len(refused) <= 6
        assert int(refused[0].headers["Retry-After"]) >= 1
        assert "DOVECOTE_REQUESTS_PER_MINUTE" in refused[0].body["detail"]
        second = ApiClient(session=session, url=process.url, key=made.body["key"])
        assert (await second.call("GET", "/accounts/me")).status == 200


async def test_a_message_is_traced_from_acceptance_to_its_answer(tmp_path: Path) -> None:
    """The story of one message names its acceptance and its turn's end; another account's is 404."""
    env = {"DOVECOTE_ADMIN_KEY": ADMIN_KEY}
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        other = await operator.call("POST", "/accounts", {"name": "other"})
        outsider = ApiClient(session=session, url=process.url, key=other.body["key"])
        taken = (await mine.call("POST", "/agents/default/turns", {"input": "!echo traced"})).body
        await _until_status(mine, f"/status/{taken['turnId']}", "completed")
        snapshot = (await mine.call("GET", f"/conversations/{taken['conversationId']}/snapshot")).body
        path = f"/messages/{snapshot['messages'][0]['id']}/trace"
        steps = (await mine.call("GET", path)).body["steps"]
        assert steps[0]["state"] == "accepted"
        assert "turn.completed" in [step["state"] for step in steps]
        assert (await outsider.call("GET", path)).status == 404

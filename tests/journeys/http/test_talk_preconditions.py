"""Versions of conversations and memories over HTTP, in a gateway that changes them at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api_server import ApiClient, ApiResponse
from gateway_process import gateway

TALK = "/conversations/talk"
MEMORIES = "/accounts/me/memories"


@pytest.fixture
async def mine(tmp_path: Path) -> AsyncIterator[ApiClient]:
    """A client of a gateway's account."""
    async with gateway(tmp_path / "data") as process, process.http() as session:
        yield ApiClient(session=session, url=process.url, key=process.key)


async def say(mine: ApiClient, text: str) -> None:
    """Say something in the conversation and wait for the answer."""
    body = {"input": text, "conversation": "talk"}
    begun = await mine.call("POST", "/agents/default/turns", body)
    assert begun.status == 202, begun.body
    async with asyncio.timeout(60):
        while True:
            if (await mine.call("GET", f"/status/{begun.body['turnId']}")).body["state"] == "completed":
                return
            await asyncio.sleep(0.05)


async def change(mine: ApiClient, method: str, path: str, body: Any, match: str) -> ApiResponse:
    """Change something if it has this version."""
    return await mine.call(method, path, body, If_Match=match)


async def test_a_conversation_has_the_version_of_what_people_change(mine: ApiClient) -> None:
    """A message does not change it; a title does, and a stale change and deletion are refused."""
    await say(mine, "!echo one")
    await change(mine, "PATCH", TALK, {"title": "Talk"}, "*")
    seen = await mine.call("GET", TALK)
    first = seen.headers["ETag"]
    await say(mine, "!echo two")
    later = await mine.call("GET", TALK, If_None_Match=first)
    assert (later.status, later.headers["ETag"]) == (200, first)
    assert later.body["active_at"] != seen.body["active_at"]
    changed = await change(mine, "PATCH", TALK, {"title": "Other"}, first)
    assert changed.status == 200, changed.body
    now = await mine.call("GET", TALK)
    assert now.headers["ETag"] == changed.headers["ETag"] != first
    for method, body in (("PATCH", {"title": "Mine"}), ("DELETE", None)):
        refused = await change(mine, method, TALK, body, first)
        assert (refused.status, refused.body["current"]["title"]) == (412, "Other")
    assert (await change(mine, "DELETE", TALK, None, now.headers["ETag"])).status == 204


async def test_a_memory_is_changed_and_deleted_by_its_version(mine: ApiClient) -> None:
    """Of ten changes of one version a single one is made; a stale deletion is refused."""
    made = await mine.call("POST", MEMORIES, {"scope": "account", "text": "one"})
    path = f"{MEMORIES}/{made.body['id']}"
    seen = await mine.call("GET", path)
    first = seen.headers["ETag"]
    assert seen.body == made.body
    assert (await mine.call("GET", path, If_None_Match=first)).status == 304
    changes = (change(mine, "PATCH", path, {"text": str(count)}, first) for count in range(10))
    done = await asyncio.gather(*changes)
    assert Counter(one.status for one in done) == {200: 1, 412: 9}
    refused = await change(mine, "DELETE", path, None, first)
    now = await mine.call("GET", path)
    assert (refused.status, refused.body["current"]) == (412, now.body)
    assert (await change(mine, "DELETE", path, None, now.headers["ETag"])).status == 204
    assert (await mine.call("GET", path)).status == 404

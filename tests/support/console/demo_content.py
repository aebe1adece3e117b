"""What a gateway holds after a day of use, for the console's journeys and pictures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from channels.telegram.simulator import Simulator

CONVERSATIONS = (
    ("support", "Good morning, is the importer up again?"),
    ("limits", "break it"),
    ("server", "form: Where shall the importer run?"),
    ("notes", "write: notes.txt"),
    ("colour", "choose: Which colour shall the button have?"),
    ("deploy", "run: systemctl restart importer"),
    ("weekly-report", "report of the week, please"),
)
"""The names of conversations and what is said in them; the last is complete."""

RECORDS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "agents",
        {"name": "reviewer", "config": {"model": "openai:loopback", "instructions": "Review changes."}},
    ),
    ("webhooks", {"url": "https://hooks.example.org/dovecote", "events": ["job.completed"]}),
    ("schedules", {"conversation": "weekly-report", "text": "report of the week, please", "every": "P7D"}),
    ("schedules", {"conversation": "weekly-report", "text": "Send the report", "cron": "0 9 * * 1"}),
    ("memories", {"scope": "account", "text": "The office is closed on Fridays."}),
    ("keys", {"name": "website", "scopes": ["read", "chat"]}),
)
"""Records by their collection."""


Found = TypeVar("Found")
PERSON = 4711
JOB = "job: for part in 1 2 3; do echo imported part $part of 3; done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The conversations that pictures show: with a long answer, in a chat, and with a job."""

    report: str
    chat: str
    job: str


async def fill(session: aiohttp.ClientSession, platform: Simulator) -> Filled:
    """Create the records, say everything, and wait until it is answered."""
    settings = platform.settings(allow=["*"])
    support = {"name": "support", "kind": "telegram", "agent": "default", "settings": settings}
    for collection, body in (*RECORDS, ("channels", support)):
        async with session.post(f"/accounts/me/{collection}", json=body) as response:
            assert response.status == 201, await response.text()
    job = await _finish_job(session)
    chat = await _talk(session, platform)
    return Filled(report=await _say_everything(session), chat=chat, job=job)


async def _finish_job(session: aiohttp.ClientSession) -> str:
    """Start a background job, which a person approves, and wait for its result."""
    body = {"conversation": "nightly-import", "input": JOB}
    async with session.post("/agents/default/turns", json=body) as response:
        assert response.status == 202, await response.text()
        conversation = str((await response.json())["conversationId"])
    mine = {"conversation": conversation}
    (approval,) = await _until(lambda: _items(session, "approvals?state=pending", **mine))
    async with session.post(f"/approvals/{approval['id']}", json={"decision": "approve"}) as response:
        assert response.status < 300, await response.text()
    await _until(lambda: _items(session, "jobs", state="completed", **mine))
    return conversation


async def _talk(session: aiohttp.ClientSession, platform: Simulator) -> str:
    """Talk with the bot in a chat, until it has reacted and answered."""
    await platform.say(PERSON, "Is the importer up again?", name="Ada Lovelace")
    await platform.wait_for_messages(1, chat=PERSON)
    await platform.say(PERSON, "Thanks, that was quick!", name="Ada Lovelace")
    await platform.wait_for_messages(2, chat=PERSON)
    (chat,) = await _items(session, "conversations?kind=telegram")
    return str(chat["id"])


async def _items(session: aiohttp.ClientSession, path: str, **wanted: str) -> list[dict[str, Any]]:
    async with session.get(f"/{path}") as response:
        found = (await response.json())["items"]
    return [one for one in found if wanted.items() <= one.items()]


async def _say_everything(session: aiohttp.ClientSession) -> str:
    """Send all messages and wait until the last is answered; returns its conversation."""
    path = "/accounts/me/workspaces/default/files/notes.txt"
    async with session.put(path, data=b"one\nTWO\nthree\n") as response:
        assert response.status < 300, await response.text()
    sent: dict[str, Any] = {}
    for name, text in CONVERSATIONS:
        body = {"conversation": name, "input": text}
        async with session.post("/agents/default/turns", json=body) as response:
            assert response.status == 202, await response.text()
            sent = await response.json()
    await _until(lambda: _has_ended(session, sent["turnId"]))
    return str(sent["conversationId"])


async def _until(ask: Callable[[], Awaitable[Found]]) -> Found:
    for _ in range(300):
        if found := await ask():
            return found
        await asyncio.sleep(0.2)
    raise TimeoutError


async def _has_ended(session: aiohttp.ClientSession, turn: str) -> bool:
    async with session.get(f"/status/{turn}") as response:
        return bool((await response.json())["state"] == "completed")

"""What a gateway holds after a day of use, for the console's journeys and pictures."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

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
    (
        "channels",
        {
            "name": "support",
            "kind": "telegram",
            "agent": "default",
            "settings": {"token": "1:demo", "base_url": "http://127.0.0.1:9"},
        },
    ),
)
"""Records by their collection."""


async def fill(session: aiohttp.ClientSession) -> str:
    """Create the records, say everything, and wait until the last is answered; returns its conversation."""
    for collection, body in RECORDS:
        async with session.post(f"/accounts/me/{collection}", json=body) as response:
            assert response.status == 201, await response.text()
    path = "/accounts/me/workspaces/default/files/notes.txt"
    async with session.put(path, data=b"one\nTWO\nthree\n") as response:
        assert response.status < 300, await response.text()
    sent: dict[str, Any] = {}
    for name, text in CONVERSATIONS:
        body = {"conversation": name, "input": text}
        async with session.post("/agents/default/turns", json=body) as response:
            assert response.status == 202, await response.text()
            sent = await response.json()
    await _until_ended(session, sent["turnId"])
    return str(sent["conversationId"])


async def _until_ended(session: aiohttp.ClientSession, turn: str) -> None:
    for _ in range(300):
        if await _has_ended(session, turn):
            return
        await asyncio.sleep(0.2)
    raise TimeoutError(turn)


async def _has_ended(session: aiohttp.ClientSession, turn: str) -> bool:
    async with session.get(f"/status/{turn}") as response:
        return bool((await response.json())["state"] == "completed")

"""A running gateway whose turns have files, with small limits."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from typing import Any

from api_server import ApiClient, ApiResponse
from gateway_process import GatewayProcess

ADMIN_KEY = "an-admin-key-of-the-operator-in-tests"
ENV = {
    "DOVECOTE_ADMIN_KEY": ADMIN_KEY,
    "DOVECOTE_FILES__MAX_BYTES": "100000",
    "DOVECOTE_FILES__MAX_COUNT": "3",
    "DOVECOTE_FILES__ATTACHMENT_BYTES": "100000",
    "DOVECOTE_FILES__ACCOUNT_BYTES": "1000000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesGateway:
    """A running gateway with two accounts, and a client without a key."""

    process: GatewayProcess
    mine: ApiClient
    other: ApiClient
    anonymous: ApiClient

    async def turn(self, conversation: str, text: str, **more: object) -> tuple[str, ApiResponse]:
        """Ask the default agent; returns the conversation and the final status."""
        body = {"input": text, "conversation": conversation, **more}
        taken = await self.mine.call("POST", "/agents/default/turns", body)
        assert taken.status == 202, taken.body
        return taken.body["conversationId"], await self.ended(taken.body["turnId"])

    async def ended(self, turn: str) -> ApiResponse:
        """Wait until a turn has ended, and return its status."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.mine.call("GET", f"/status/{turn}")
                if answer.body["state"] in {"completed", "failed", "cancelled"}:
                    return answer
                await asyncio.sleep(0.05)

    async def first_event(self, conversation: str, kind: str) -> dict[str, Any]:
        """Return the first event of a kind once there is one."""
        async with asyncio.timeout(60):
            while not (found := await self.events_of_kind(conversation, kind)):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        return dict(found[0])

    async def events_of_kind(self, conversation: str, kind: str) -> list[dict[str, Any]]:
        """Return the data of a conversation's events of one kind."""
        events = await self.process.events(conversation)
        return [event["data"] for event in events if event["type"] == kind]


def inline(name: str, content: bytes) -> dict[str, str]:
    """Return an attachment with its bytes."""
    return {"name": name, "content": base64.b64encode(content).decode()}

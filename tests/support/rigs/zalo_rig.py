"""The rig of Zalo: a bot of its simulator, in a private chat."""

from __future__ import annotations

import json
from typing import Any

from channels.port import WebhookRequest
from channels.testing.rig import WEBHOOK_SECRET, VisibleMessage, WebhookRig
from channels.zalo.simulator import Simulator
from channels.zalo.simulator.simulator import BOT, ROOM, TOKEN


class _ZaloRig(WebhookRig):
    """One private chat of a simulated bot."""

    refuses_markup = False

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.secrets = (TOKEN, TOKEN.partition(":")[2], WEBHOOK_SECRET)
        self.unknown_sender = "4242001:not-the-token"

    def settings(self, **others: Any) -> dict[str, Any]:
        return self.simulator.settings(**others)

    async def say(self, text: str) -> None:
        await self.simulator.say(ROOM, text)

    async def say_in_thread(self, text: str) -> None:
        await self.say(text)

    async def echo(self, text: str) -> None:
        await self.simulator.say(ROOM, text, author=BOT)

    async def send_command(self, text: str) -> None:
        await self.say(f"/{text}")

    def visible_messages(self) -> list[VisibleMessage]:
        return [VisibleMessage(one.room, one.thread, one.text) for one in self.simulator.messages()]

    def send_count(self) -> int:
        return self.simulator.counts["send"]

    async def throttle(self, seconds: int) -> None:
        body = {"ok": False, "error_code": 429, "description": "Quota exceeded"}
        self.simulator.fail("send", 429, body, headers={"Retry-After": str(seconds)})

    async def fail(self) -> None:
        self.simulator.fail("send", 502, {})

    async def revoke(self) -> None:
        self.simulator.token = "0:revoked"

    async def kick(self) -> None:
        self.simulator.members.clear()

    async def refuse_markup(self) -> None:
        """Zalo shows plain text."""

    async def cut_receiving(self) -> None:
        self.simulator.cut("receive", times=3)

    async def cut_sending(self, *, carried_out: bool) -> None:
        self.simulator.cut("send", carried_out=carried_out)

    async def answer_late(self, seconds: float) -> None:
        self.simulator.answer_late("send", seconds)

    def webhook_settings(self) -> dict[str, Any]:
        url = "http://127.0.0.1:9/inbound"
        return self.settings(mode="webhook", webhook_secret=WEBHOOK_SECRET, webhook_url=url)

    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        signed = {} if secret is None else {"x-bot-api-secret-token": secret}
        return WebhookRequest(headers={"content-type": "application/json", **signed}, body=body)

    def update(self, text: str) -> bytes:
        return json.dumps({"ok": True, "result": self.simulator.update("text", text=text)}).encode()


def rig(simulator: Simulator) -> WebhookRig:
    """Return the rig."""
    return _ZaloRig(simulator)

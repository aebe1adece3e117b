"""The rig of Pancake: the inbox of its simulated page."""

from __future__ import annotations

from typing import Any

from channels.pancake.simulator import Simulator
from channels.pancake.simulator.simulator import INBOX, PAGE, TOKEN
from channels.port import WebhookRequest
from channels.testing.rig import WEBHOOK_SECRET, VisibleMessage, WebhookRig


class _PancakeRig(WebhookRig):
    """One private conversation of a simulated page."""

    refuses_markup = False
    signs_webhooks = False

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        self.secrets = (TOKEN,)
        self.unknown_sender = "not-the-token"

    def settings(self, **others: Any) -> dict[str, Any]:
        """The contract calls every platform's secret `token`."""
        token = {"page_access_token": others.pop("token")} if "token" in others else {}
        return self.simulator.settings(**token, **others)

    async def say(self, text: str) -> None:
        await self.simulator.say(INBOX, text)

    async def say_in_thread(self, text: str) -> None:
        await self.say(text)

    async def echo(self, text: str) -> None:
        await self.simulator.write(INBOX, text, author={"id": PAGE, "name": "The Loft"})

    async def send_command(self, text: str) -> None:
        await self.say(f"/{text}")

    async def send_file(self, content: bytes) -> None:
        self.simulator.files["notes.txt"] = content
        file = {"type": "file", "name": "notes.txt", "url": f"{self.simulator.url}/files/notes.txt"}
        await self.simulator.write(INBOX, "", attachments=[file])

    def visible_messages(self) -> list[VisibleMessage]:
        return [VisibleMessage(one.room, one.thread, one.text) for one in self.simulator.messages()]

    def send_count(self) -> int:
        return self.simulator.counts["send"]

    async def throttle(self, seconds: int) -> None:
        body = {"success": False, "message": "Too many requests"}
        self.simulator.fail("send", 429, body, headers={"Retry-After": str(seconds)})

    async def fail(self) -> None:
        self.simulator.fail("send", 502, {})

    async def revoke(self) -> None:
        self.simulator.token = "another"

    async def kick(self) -> None:
        self.simulator.conversations.clear()

    async def refuse_markup(self) -> None:
        """Pancake shows plain text."""

    async def cut_receiving(self) -> None:
        self.simulator.cut("receive", times=3)

    async def cut_sending(self, *, carried_out: bool) -> None:
        self.simulator.cut("send", carried_out=carried_out)

    async def answer_late(self, seconds: float) -> None:
        self.simulator.answer_late("send", seconds)

    def webhook_settings(self) -> dict[str, Any]:
        return self.settings(mode="webhook")

    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        del secret  # Pancake signs nothing
        return WebhookRequest(headers={"content-type": "application/json"}, body=body)

    def update(self, text: str) -> bytes:
        return self.simulator.event(INBOX, {"id": "m_forged", "message": text, "from": {"id": "x"}})


def rig(simulator: Simulator) -> WebhookRig:
    """Return the rig."""
    return _PancakeRig(simulator)

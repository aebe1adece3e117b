"""Slack, as its simulator implements it, with the methods of the channel contract."""

from __future__ import annotations

import json
from typing import Any

from channels.message import Button
from channels.port import WebhookRequest
from channels.slack.simulator import Simulator
from channels.slack.simulator.outgoing import signature_headers
from channels.slack.simulator.world import BOT_ID, BOT_USER
from channels.testing.rig import WEBHOOK_SECRET, VisibleMessage, WebhookRig

ROOM = "C0ROOM"
TIMEOUT_SECONDS = 60.0


class _SlackRig(WebhookRig):
    """One channel of a simulated workspace."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        simulator.world.room(ROOM)
        simulator.world.trigger_seconds = TIMEOUT_SECONDS
        self.secrets = (*simulator.tokens, WEBHOOK_SECRET)
        self.unknown_sender = "xoxb-not-the-token"

    def settings(self, **others: Any) -> dict[str, Any]:
        """The contract calls every platform's secret `token`."""
        token = {"bot_token": others.pop("token")} if "token" in others else {}
        return self.simulator.settings(**token, **others)

    async def say(self, text: str) -> None:
        await self.simulator.say(ROOM, text)

    async def say_in_thread(self, text: str) -> str:
        root = self.simulator.world.post(ROOM, "U0BOB", {"text": "long ago"})
        await self.simulator.say(ROOM, text, thread=root.ts)
        return root.ts

    async def echo(self, text: str) -> None:
        post = self.simulator.world.post(ROOM, BOT_USER, {"text": text, "bot_id": BOT_ID})
        await self.simulator.send_message_event(post)

    async def press(self, platform_id: str, button: str) -> None:
        await self.simulator.press(ROOM, platform_id, button)

    async def press_with_text(self, platform_id: str, button: Button, text: str) -> None:
        await self.simulator.press(ROOM, platform_id, button.data)
        await self.simulator.wait_until(lambda: bool(self.simulator.open_modals()))
        await self.simulator.submit(text)

    async def send_command(self, text: str) -> None:
        await self.simulator.slash(ROOM, text)

    async def edit_message(self, platform_id: str, text: str) -> None:
        await self.simulator.edit(ROOM, platform_id, text)

    async def react(self, platform_id: str, *, added: bool) -> None:
        await self.simulator.react(ROOM, platform_id, "thumbsup", added=added)

    def reactions(self, platform_id: str) -> list[str]:
        post = self.simulator.world.get_post(ROOM, platform_id)
        return [name for name, who in post.reactions.items() if BOT_USER in who] if post else []

    def confidential_texts(self) -> list[str]:
        return [notice["text"] for notice in self.simulator.world.notices if notice["user"] == "U0ADA"]

    def show_keys(self) -> None:
        """Slack's histories always show the metadata of messages."""

    def hide_keys(self) -> None:
        self.simulator.world.shows_metadata = False

    async def send_file(self, content: bytes) -> None:
        await self.simulator.send_file(ROOM, content, name="notes.txt", media_type="text/plain")

    def visible_messages(self) -> list[VisibleMessage]:
        return [
            VisibleMessage(post.room, post.thread, post.text, len(post.buttons))
            for post in self.simulator.messages()
        ]

    def send_count(self) -> int:
        return sum(method == "chat.postMessage" for method, _ in self.simulator.calls)

    async def throttle(self, seconds: int) -> None:
        await self.simulator.fail("ratelimited", status=429, retry_after=seconds, method="chat.postMessage")

    async def fail(self) -> None:
        await self.simulator.fail(status=502, method="chat.postMessage")

    async def revoke(self) -> None:
        await self.simulator.fail("token_revoked", times=1000)

    async def kick(self) -> None:
        await self.simulator.kick(ROOM)

    async def refuse_markup(self) -> None:
        await self.simulator.fail("invalid_blocks", method="chat.postMessage")

    async def cut_receiving(self) -> None:
        await self.simulator.sockets.cut(3)

    async def cut_sending(self, *, carried_out: bool) -> None:
        await self.simulator.cut(method="chat.postMessage", after=carried_out)

    async def answer_late(self, seconds: float) -> None:
        await self.simulator.answer_late(seconds, method="chat.postMessage")

    def webhook_settings(self) -> dict[str, Any]:
        return self.simulator.settings(mode="http", signing_secret=WEBHOOK_SECRET)

    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        if secret is None:
            return WebhookRequest(headers={"content-type": "application/json"}, body=body)
        return WebhookRequest(headers=signature_headers(secret, body, "application/json"), body=body)

    def update(self, text: str) -> bytes:
        event = {"type": "message", "channel": "D0ADA", "channel_type": "im", "user": "U0ADA", "text": text}
        outer = {"type": "event_callback", "team_id": "T0SIMULATED", "event_id": "Ev1"}
        return json.dumps({**outer, "event": {**event, "ts": "1767225600.000100"}}).encode()


def rig(simulator: Simulator) -> WebhookRig:
    """Return the rig."""
    return _SlackRig(simulator)

"""The rig of Telegram: its simulator."""

from __future__ import annotations

import json
from typing import Any

from channels.message import Button
from channels.port import WebhookRequest
from channels.telegram.simulator import Simulator
from channels.testing.rig import WEBHOOK_SECRET, VisibleMessage, WebhookRig


class _TelegramRig(WebhookRig):
    """One group and one forum of a simulated Telegram."""

    room = -4004
    forum = -1_000_000_004_004

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.secrets = (simulator.token, simulator.token.partition(":")[2], WEBHOOK_SECRET)
        self.unknown_sender = "700700700:not-the-token"

    def settings(self, **others: Any) -> dict[str, Any]:
        return self._simulator.settings(poll_seconds=5, **others)

    async def say(self, text: str) -> None:
        await self._simulator.say(self.room, text, user=7)

    async def say_in_thread(self, text: str) -> str:
        await self._simulator.group(self.forum, forum=True)
        topic = await self._simulator.topic(self.forum)
        await self._simulator.say(self.forum, text, user=7, thread=topic)
        return str(topic)

    async def echo(self, text: str) -> None:
        room = self._simulator.world.room(self.room)
        post = self._simulator.world.post(
            room, self._simulator.world.bot, {"text": text}, thread=None, reply_to=None
        )
        await self._simulator.push({"message": post.raw})

    async def press(self, platform_id: str, button: str) -> None:
        await self._simulator.press(self.room, int(platform_id), button, user=7)

    async def press_with_text(self, platform_id: str, button: Button, text: str) -> None:
        raise NotImplementedError("Telegram's buttons ask for nothing")

    async def send_command(self, text: str) -> None:
        await self._simulator.say(self.room, f"/{text}", user=7)

    async def edit_message(self, platform_id: str, text: str) -> None:
        await self._simulator.edit(self.room, int(platform_id), text)

    async def react(self, platform_id: str, *, added: bool) -> None:
        await self._simulator.react(self.room, int(platform_id), "👍" if added else None, user=7)

    def reactions(self, platform_id: str) -> list[str]:
        raw = self._simulator.world.posts[self.room, int(platform_id)].raw
        return [sign["emoji"] for sign in raw.get("reactions", [])]

    async def open_private_chat(self) -> None:
        self._simulator.world.room(7)

    def confidential_texts(self) -> list[str]:
        return [post.text for post in self._simulator.messages() if post.chat == 7]

    async def send_file(self, content: bytes) -> None:
        await self._simulator.send_file(self.room, content, name="notes.txt", media_type="text/plain", user=7)

    def visible_messages(self) -> list[VisibleMessage]:
        return [
            VisibleMessage(
                str(post.chat), str(post.thread) if post.thread else None, post.text, len(post.buttons)
            )
            for post in self._simulator.messages()
        ]

    def send_count(self) -> int:
        return sum(method == "sendMessage" for method, _ in self._simulator.calls)

    async def throttle(self, seconds: int) -> None:
        await self._simulator.fail(429, retry_after=seconds, method="sendMessage")

    async def fail(self) -> None:
        await self._simulator.fail(502, method="sendMessage")

    async def revoke(self) -> None:
        await self._simulator.fail(401, times=1000, description="Unauthorized")

    async def kick(self) -> None:
        await self._simulator.kick(self.room)

    async def refuse_markup(self) -> None:
        description = "Bad Request: can't parse entities: something is odd"
        await self._simulator.fail(400, method="sendMessage", description=description)

    async def cut_receiving(self) -> None:
        await self._simulator.cut(method="getUpdates", times=3)

    async def cut_sending(self, *, carried_out: bool) -> None:
        await self._simulator.cut(method="sendMessage", after=carried_out)

    async def answer_late(self, seconds: float) -> None:
        await self._simulator.answer_late(seconds, method="sendMessage")

    def webhook_settings(self) -> dict[str, Any]:
        return self._simulator.settings(
            mode="webhook", webhook_secret=WEBHOOK_SECRET, webhook_url="http://127.0.0.1:9/inbound"
        )

    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        headers = {"content-type": "application/json"}
        signed = {} if secret is None else {"x-telegram-bot-api-secret-token": secret}
        return WebhookRequest(headers={**headers, **signed}, body=body)

    def update(self, text: str) -> bytes:
        person = {"id": 7, "is_bot": False, "first_name": "Ada"}
        chat = {"id": 7, "type": "private"}
        message = {"message_id": 1, "date": 1767225600, "from": person, "chat": chat, "text": text}
        return json.dumps({"update_id": 5, "message": message}).encode()


def rig(simulator: Simulator) -> WebhookRig:
    """Return the rig of a simulator."""
    return _TelegramRig(simulator)

"""Discord, as its simulator implements it, with the methods of the channel contract."""

from __future__ import annotations

import json
import re
from typing import Any

from channels.discord.simulator import Simulator
from channels.message import Button
from channels.port import WebhookRequest
from channels.testing.rig import WEBHOOK_SECRET, VisibleMessage, WebhookRig


class _DiscordRig(WebhookRig):
    """Discord, as its simulator implements it: a channel of a server."""

    room = 4004

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.secrets = (simulator.token, simulator.token.partition(".")[2], WEBHOOK_SECRET)
        self.unknown_sender = "NzAw.not.the-token"

    async def _opened(self) -> int:
        if str(self.room) not in self._simulator.world.channels:
            await self._simulator.server_channel(self.room)
        return self.room

    def settings(self, **others: Any) -> dict[str, Any]:
        return self._simulator.settings(**others)

    async def say(self, text: str) -> None:
        await self._simulator.say(await self._opened(), text)

    async def say_in_thread(self, text: str) -> str:
        thread = await self._simulator.thread(await self._opened())
        await self._simulator.say(self.room, text, thread=thread)
        return str(thread)

    async def echo(self, text: str) -> None:
        await self._simulator.echo(await self._opened(), text)

    async def press(self, platform_id: str, button: str) -> None:
        await self._simulator.press(self.room, platform_id, button)

    async def press_with_text(self, platform_id: str, button: Button, text: str) -> None:
        opened = await self._simulator.press(self.room, platform_id, button.label)
        await self._simulator.wait_until(lambda: opened.modal is not None)
        await self._simulator.submit(opened, text)

    async def send_command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        await self._simulator.command(await self._opened(), name, rest)

    async def edit_message(self, platform_id: str, text: str) -> None:
        await self._simulator.edit(self.room, platform_id, text)

    async def react(self, platform_id: str, *, added: bool) -> None:
        await self._simulator.react(self.room, platform_id, "👍", added=added)

    def show_keys(self) -> None:
        self._simulator.world.shows_nonces = True

    def hide_keys(self) -> None:
        self._simulator.world.shows_nonces = False

    def reactions(self, platform_id: str) -> list[str]:
        return sorted(self._simulator.world.reactions.get(platform_id, set()))

    def confidential_texts(self) -> list[str]:
        direct = [post.text for post in self._simulator.messages() if post.chat == 7]
        return [
            *direct,
            *(text for one in self._simulator.world.interactions.values() for text in one.notices),
        ]

    async def send_file(self, content: bytes) -> None:
        await self._simulator.send_file(self.room, content, name="notes.txt", media_type="text/plain")

    def visible_messages(self) -> list[VisibleMessage]:
        return [
            VisibleMessage(
                str(post.chat),
                str(post.thread) if post.thread else None,
                _displayed_text(post.text),
                len(post.buttons),
            )
            for post in self._simulator.messages()
        ]

    def send_count(self) -> int:
        return sum(name == "create" for name, _, _ in self._simulator.calls)

    async def throttle(self, seconds: int) -> None:
        await self._simulator.throttle(seconds)

    async def fail(self) -> None:
        await self._simulator.fail(502, name="create")

    async def revoke(self) -> None:
        await self._simulator.revoke()

    async def kick(self) -> None:
        await self._simulator.kick(self.room)

    async def refuse_markup(self) -> None:
        await self._simulator.fail(400, code=50035, name="create", message="Invalid Form Body: content")

    async def cut_receiving(self) -> None:
        await self._simulator.drop(refusals=2)

    async def cut_sending(self, *, carried_out: bool) -> None:
        await self._simulator.cut(after=carried_out)

    async def answer_late(self, seconds: float) -> None:
        await self._simulator.answer_late(seconds)

    def webhook_settings(self) -> dict[str, Any]:
        return self._simulator.settings(mode="interactions", public_key=self._simulator.public_key)

    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        """The right secret leads to the right signature; a change of the secret is made to the signature."""
        headers = {"content-type": "application/json"}
        if secret is None:
            return WebhookRequest(headers=headers, body=body)
        signed = self._simulator.signature_headers(body)
        good = signed["x-signature-ed25519"]
        shown = secret.replace(WEBHOOK_SECRET, good)
        shown = good[:-1] if secret == WEBHOOK_SECRET[:-1] else shown
        return WebhookRequest(headers={**headers, **signed, "x-signature-ed25519": shown}, body=body)

    def update(self, text: str) -> bytes:
        options = [{"name": "question", "type": 3, "value": text}]
        data = {"id": "1", "name": "ask", "type": 1, "options": options}
        _, raw = self._simulator.create_interaction(7, {"type": 2, "data": data})
        return json.dumps(raw).encode()


def _displayed_text(text: str) -> str:
    """Return the text that Discord shows, as far as the contract describes it."""
    bare = re.sub(r"(?<!\\)\*\*", "", text)
    return bare if "```" in text else re.sub(r"\\([*_~`|>#\[\]()+<\-])", r"\1", bare)


def rig(simulator: Simulator) -> WebhookRig:
    """Return the rig of a simulated Discord."""
    return _DiscordRig(simulator)

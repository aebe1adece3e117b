"""The rig of GitHub: its simulator, read from the log of deliveries."""

from __future__ import annotations

import hashlib
from typing import Any

from channels.github.simulator import Simulator, events
from channels.github.simulator.rest import private_key
from channels.github.simulator.world import BOT, ROOM
from channels.port import WebhookRequest
from channels.testing.rig import WEBHOOK_SECRET, VisibleMessage, WebhookRig


class _GitHubRig(WebhookRig):
    """The issue, pull request and discussion of a simulated repository."""

    refuses_markup = False

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator
        lines = simulator.api.key.splitlines()[1:-1]
        self.secrets = (*lines, WEBHOOK_SECRET, "ghs_")
        self.unknown_sender = private_key("stranger")

    def settings(self, **others: Any) -> dict[str, Any]:
        """The contract calls every platform's secret `token`."""
        token = {"private_key": others.pop("token")} if "token" in others else {}
        return self.simulator.settings(**token, **others)

    async def say(self, text: str) -> None:
        await self.simulator.say(ROOM, text)

    async def say_in_thread(self, text: str) -> str:
        entry = await self.simulator.comment("review_comment", 2, text)
        return f"2/review/{entry.id}"

    async def echo(self, text: str) -> None:
        await self.simulator.comment("issue_comment", 1, text, user=dict(BOT))

    async def send_command(self, text: str) -> None:
        await self.simulator.say(ROOM, f"@dovecote /{text}")

    async def edit_message(self, platform_id: str, text: str) -> None:
        await self.simulator.edit(int(platform_id.partition("/")[2]), text)

    def reactions(self, platform_id: str) -> list[str]:
        entry = self.simulator.world.entries[int(platform_id.partition("/")[2])]
        return [content for content, _user in entry.reactions.values()]

    def visible_messages(self) -> list[VisibleMessage]:
        return [VisibleMessage(one.room, one.thread, one.text) for one in self.simulator.messages()]

    def send_count(self) -> int:
        return self.simulator.counts["send"]

    async def throttle(self, seconds: int) -> None:
        body = {"message": "You have exceeded a secondary rate limit. Please wait a few minutes."}
        self.simulator.fail("send", 403, body, headers={"Retry-After": str(seconds)})

    async def fail(self) -> None:
        self.simulator.fail("send", 502, {"message": "Server Error"})

    async def revoke(self) -> None:
        self.simulator.revoke()

    async def kick(self) -> None:
        self.simulator.world.installed = False
        self.simulator.api.tokens.clear()

    async def refuse_markup(self) -> None:
        """GitHub accepts all markup."""

    async def cut_receiving(self) -> None:
        self.simulator.cut("receive", times=3)

    async def cut_sending(self, *, carried_out: bool) -> None:
        self.simulator.cut("send", carried_out=carried_out)

    async def answer_late(self, seconds: float) -> None:
        self.simulator.answer_late("send", seconds)

    def webhook_settings(self) -> dict[str, Any]:
        return self.simulator.settings(mode="webhook", webhook_secret=WEBHOOK_SECRET)

    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        guid = hashlib.sha256(body).hexdigest()
        headers = events.headers_of(secret or "", "issue_comment", guid, body)
        if secret is None:
            del headers["x-hub-signature-256"]
        return WebhookRequest(headers=headers, body=body)

    def update(self, text: str) -> bytes:
        world = self.simulator.world
        return events.encode(events.payload_of(world, world.add("issue_comment", 1, text), "created"))


def rig(simulator: Simulator) -> WebhookRig:
    """Return the rig."""
    return _GitHubRig(simulator)

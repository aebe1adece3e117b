"""Actions of users in the simulated Discord: messages, edits, reactions, commands, buttons, modals."""

from __future__ import annotations

import json
import time
from typing import Any

import aiohttp
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from channels.discord.simulator import shapes
from channels.discord.simulator.interaction_endpoints import InteractionEndpoints
from channels.discord.simulator.rest import RestApi
from channels.discord.simulator.sessions import SimulatedGateway
from channels.discord.simulator.world import (
    DEFAULT_GUILD,
    FORUM,
    PUBLIC_THREAD,
    TEXT,
    Raw,
    SimulatedChannel,
    SimulatedInteraction,
    World,
)

COMMAND, PRESS, MODAL = 2, 3, 5
"""Types of interactions."""

FORWARD = 1
"""The type of a reference to a message that is forwarded."""

OK = 200


class UserActions:
    """Actions of users; an unknown chat becomes a private conversation."""

    def __init__(
        self,
        world: World,
        rest: RestApi,
        interaction_endpoints: InteractionEndpoints,
        sessions: SimulatedGateway,
    ) -> None:
        self.world = world
        self.rest = rest
        self.interaction_endpoints = interaction_endpoints
        self.sessions = sessions
        self.key: Ed25519PrivateKey

    async def say(
        self, chat: int, text: str, *, user: int = 7, thread: int | None = None, **others: Any
    ) -> str:
        """Send a message as a user."""
        channel = self.world.channel(thread or chat)
        person = self.world.person(user)
        channel.person = channel.person or person
        return await self._post_message(channel, person, text, **others)

    async def echo(self, chat: int, text: str) -> str:
        """Send a message as the bot, as another process of the same bot would."""
        return await self._post_message(self.world.channel(chat), self.world.bot, text)

    async def edit(self, chat: int, number: str, text: str) -> None:
        """Edit a user's message."""
        channel = self.world.channel(chat)
        message = self.world.message(channel, number)
        message.update(content=text, edited_timestamp="2026-01-01T00:00:00+00:00")
        await self.rest.emit_message("MESSAGE_UPDATE", channel, message)

    async def preview(self, chat: int, number: str) -> None:
        """Add a link preview to a message, which Discord reports as an edit."""
        channel = self.world.channel(chat)
        message = self.world.message(channel, number)
        message.update(embeds=[{"type": "link", "url": "https://example.org/"}])
        await self.rest.emit_message("MESSAGE_UPDATE", channel, message)

    async def react(self, chat: int, number: str, emoji: str, *, user: int = 7, added: bool = True) -> None:
        """Add or remove a user's reaction."""
        channel = self.world.channel(chat)
        await self.rest.emit_reaction(channel, number, emoji, self.world.person(user), added=added)

    async def send_file(
        self, chat: int, content: bytes, *, name: str, media_type: str, user: int = 7, text: str = ""
    ) -> str:
        """Send a file as a user."""
        channel = self.world.channel(chat)
        attachment = self.rest.attach(channel, name, media_type, content)
        return await self._post_message(channel, self.world.person(user), text, attachments=[attachment])

    async def forward(
        self, chat: int, text: str, *, name: str = "", content: bytes = b"", user: int = 7
    ) -> str:
        """Forward a message of another channel, with a file if it has a `name`."""
        channel = self.world.channel(chat)
        files = [self.rest.attach(channel, name, "text/plain", content)] if name else []
        original = {
            "type": 0,
            "content": text,
            "attachments": files,
            "embeds": [],
            "mentions": [],
            "flags": 0,
        }
        others = {
            "message_reference": {"type": FORWARD, "channel_id": "1", "message_id": "2"},
            "message_snapshots": [{"message": original}],
        }
        return await self._post_message(channel, self.world.person(user), "", **others)

    async def purge(self, chat: int, numbers: list[str]) -> None:
        """Delete messages as a moderator does, with one event for all of them."""
        channel = self.world.channel(chat)
        channel.messages = [one for one in channel.messages if one["id"] not in numbers]
        event = {"ids": numbers, "channel_id": channel.id}
        event |= {"guild_id": channel.guild} if channel.guild else {}
        await self.sessions.emit("MESSAGE_DELETE_BULK", event, private=channel.guild is None)

    async def command(self, chat: int, name: str, words: str = "", *, user: int = 7) -> SimulatedInteraction:
        """Use a slash command as a user."""
        option = "question" if name == "ask" else "words"
        options = [{"name": option, "type": 3, "value": words}] if words else []
        asked = {"type": COMMAND, "data": {"id": "1", "name": name, "type": 1, "options": options}}
        return await self._interact(chat, asked, user)

    async def press(self, chat: int, number: str, button: str, *, user: int = 7) -> SimulatedInteraction:
        """Press a button of a message; `button` is its id or its label."""
        channel = self.world.channel(chat)
        message = self.world.message(channel, number)
        shown = [one for row in message["components"] for one in row["components"]]
        custom = next((one["custom_id"] for one in shown if one.get("label") == button), button)
        asked = {"type": PRESS, "data": {"custom_id": custom, "component_type": 2}, "message": message}
        return await self._interact(chat, asked, user)

    async def submit(
        self, opened: SimulatedInteraction, words: str, *, user: int = 7
    ) -> SimulatedInteraction:
        """Submit the modal that a press opened, with the same text in every field."""
        modal = opened.modal or {}
        rows = [
            {"type": 1, "components": [{**_component_ref(one), "value": words} for one in row["components"]]}
            for row in modal["components"]
        ]
        content = {"custom_id": modal["custom_id"], "components": rows}
        asked = {"type": MODAL, "data": content, "message": opened.message}
        return await self._interact(int(opened.channel.id), asked, user)

    def create_interaction(self, chat: int, fields: Raw, user: int = 7) -> tuple[SimulatedInteraction, Raw]:
        """Create an interaction without sending it; return it with its payload."""
        channel, number, person = self.world.channel(chat), self.world.snowflake(), self.world.person(user)
        token = f"aW50ZXJhY3Rpb24_{number}"
        interaction = SimulatedInteraction(
            number,
            token,
            channel,
            message=fields.get("message"),
            person=person,
            made_at=self.world.offset_seconds,
        )
        self.world.interactions[interaction.token] = interaction
        who: Raw = {"member": shapes.member(person)} if channel.guild else {"user": person}
        raw = {
            "id": number,
            "application_id": self.world.application,
            "token": interaction.token,
            "version": 1,
            "channel_id": channel.id,
            "channel": channel.raw,
            "locale": "en-US",
            "entitlements": [],
            "app_permissions": str(shapes.ALL),
            "authorizing_integration_owners": {},
            "attachment_size_limit": 10 * 1024 * 1024,
            **({"guild_id": channel.guild} if channel.guild else {}),
            **who,
            **fields,
        }
        return interaction, raw

    def signature_headers(self, body: bytes, *, timestamp: str | None = None) -> dict[str, str]:
        """Return the headers with which Discord would post a body."""
        when = timestamp or str(int(time.time()))
        signature = self.key.sign(when.encode() + body).hex()
        return {"x-signature-ed25519": signature, "x-signature-timestamp": when}

    async def post(self, url: str, raw: Raw) -> tuple[int, Raw]:
        """Post an interaction to an endpoint and apply the response; return status and response."""
        body = json.dumps(raw).encode()
        status, reaction = await _post_json(url, body, self.signature_headers(body))
        asked = self.world.interactions.get(str(raw.get("token")))
        if asked is not None and reaction and asked.response_type is None:
            self.interaction_endpoints.apply_response(asked, reaction)
        await self.world.notify_changed()
        return status, reaction

    async def set_endpoint(self, url: str | None) -> bool:
        """Set the Interactions Endpoint URL, which must answer a ping and refuse a forged one."""
        if url is None:
            self.rest.endpoint = None
            return True
        body = b'{"type": 1}'
        forged = {**self.signature_headers(body), "x-signature-ed25519": "00" * 64}
        refused, _ = await _post_json(url, body, forged)
        status, reaction = await _post_json(url, body, self.signature_headers(body))
        good = (refused, status, reaction) == (401, OK, {"type": 1})
        self.rest.endpoint = url if good else None
        return good

    async def server_channel(
        self, chat: int, *, guild: int = DEFAULT_GUILD, kind: int = TEXT
    ) -> SimulatedChannel:
        """Create a channel in a server."""
        name = str(guild)
        is_new = name not in self.world.guilds
        self.world.guilds.setdefault(name, {"id": name, "name": "Engine Room"})
        channel = self.world.channels[str(chat)] = SimulatedChannel(str(chat), kind, name)
        if is_new:
            await self.sessions.emit("GUILD_CREATE", self.world.guild(name))
        else:
            await self.sessions.emit("CHANNEL_CREATE", channel.raw)
        return channel

    async def thread(self, chat: int, *, title: str = "") -> int:
        """Create a thread in a server's channel and return its id."""
        parent = self.world.channels[str(chat)]
        number = self.world.snowflake()
        thread = self.world.channels[number] = SimulatedChannel(
            number, PUBLIC_THREAD, parent.guild, parent.id, title
        )
        await self.sessions.emit("THREAD_CREATE", {**thread.raw, "newly_created": True})
        return int(number)

    async def forum_post(self, forum: int, text: str, *, user: int = 7, title: str = "A post") -> int:
        """Create a forum post and return it; the thread and its first message share an id."""
        if str(forum) not in self.world.channels:
            await self.server_channel(forum, kind=FORUM)
        number = await self.thread(forum, title=title)
        await self.say(number, text, user=user, id=str(number))
        return number

    async def _post_message(self, channel: SimulatedChannel, author: Raw, text: str, **others: Any) -> str:
        message = self.world.post(channel, author, text, **others)
        await self.rest.emit_message("MESSAGE_CREATE", channel, message)
        return str(message["id"])

    async def _interact(self, chat: int, fields: Raw, user: int) -> SimulatedInteraction:
        """Send an interaction by the gateway, or post it to the application's endpoint."""
        made, raw = self.create_interaction(chat, fields, user)
        if self.rest.endpoint:
            await self.post(self.rest.endpoint, raw)
        else:
            await self.sessions.emit("INTERACTION_CREATE", raw)
        return made


def _component_ref(component: Raw) -> Raw:
    return {"type": component["type"], "custom_id": component["custom_id"]}


async def _post_json(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, Raw]:
    headers = {**headers, "Content-Type": "application/json"}
    async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
        return answer.status, await answer.json() if answer.status == OK else {}

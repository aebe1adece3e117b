"""The simulated REST API; calls that concern interactions are in `interaction_endpoints`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import BodyPartReader, web

from channels.discord.simulator import shapes
from channels.discord.simulator.sessions import SimulatedGateway
from channels.discord.simulator.world import (
    FORUM,
    LOADING,
    MEDIA,
    PRIVATE,
    ApiFailure,
    Raw,
    SimulatedChannel,
    World,
    invalid,
)

TEXT_LIMIT = 2000
NONCE_LIMIT = 25
FILE_LIMIT = 10 * 1024 * 1024
FILE_LIMITS = {2: 50 * 1024 * 1024, 3: 100 * 1024 * 1024}
CONTENT_FLAG = 1 << 19
_FILE = re.compile(r"files\[[0-9]{1,2}\]|file")


@dataclass(slots=True)
class RequestBody:
    """The body of a request: JSON and files."""

    fields: Any = field(default_factory=dict)
    files: dict[str, tuple[str, str, bytes]] = field(default_factory=dict)


async def read_body(request: web.Request) -> RequestBody:
    """Read JSON, or a form with `payload_json` and files."""
    if not request.content_type.startswith("multipart/"):
        text = await request.text()
        try:
            return RequestBody(json.loads(text) if text else {})
        except ValueError:
            raise ApiFailure(400, 50109, "The request body contains invalid JSON.") from None
    body = RequestBody()
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader):
            continue
        if part.name == "payload_json":
            body.fields = json.loads(await part.text())
        elif _FILE.fullmatch(
            part.name or ""
        ):  # other fields, and names with an escaped bracket, are not files
            kind = part.headers.get("Content-Type", "application/octet-stream")
            body.files[part.name or ""] = (part.filename or "file", kind, bytes(await part.read()))
    return body


class RestApi:
    """Carries out the bot's REST calls."""

    def __init__(self, world: World, sessions: SimulatedGateway, *, public_key: str) -> None:
        self._world = world
        self._sessions = sessions
        self._public_key = public_key
        self.url = ""
        self.endpoint: str | None = None
        self.flags = CONTENT_FLAG
        self.starts_left = 1000

    def get_me(self) -> Raw:
        """Return the bot."""
        return self._world.bot

    def get_application(self) -> Raw:
        """Return the bot's application."""
        return shapes.application(
            self._world.application,
            self._world.bot,
            key=self._public_key,
            endpoint=self.endpoint,
            flags=self.flags,
        )

    def get_gateway(self) -> Raw:
        """Return the gateway's URL and how many sessions may still be started."""
        limit = {"total": 1000, "remaining": self.starts_left, "reset_after": 14400000, "max_concurrency": 1}
        shards = self._sessions.required_shards
        return {"url": self._sessions.url, "shards": shards, "session_start_limit": limit}

    def list_guilds(self) -> list[Raw]:
        """Return the bot's servers with its permissions in each."""
        return [
            {"id": number, "name": one["name"], "permissions": str(one.get("permissions", shapes.ALL))}
            for number, one in self._world.guilds.items()
        ]

    def get_guild(self, number: str) -> Raw:
        """Return a server that the bot is in."""
        if number not in self._world.guilds:
            raise ApiFailure(404, 10004, "Unknown Guild")
        return self._world.guild(number)

    def list_roles(self, number: str) -> list[Raw]:
        """Return the roles of a server that the bot is in."""
        return list(self.get_guild(number)["roles"])

    def list_commands(self) -> list[Raw]:
        """Return the registered commands."""
        return list(self._world.commands.values())

    def create_command(self, body: RequestBody) -> Raw:
        """Register a command, replacing one of the same name."""
        made = shapes.command(self._world.snowflake(), self._world.application, body.fields)
        self._world.commands[made["name"]] = made
        return made

    def overwrite_commands(self, body: RequestBody) -> list[Raw]:
        """Replace all registered commands."""
        if not isinstance(body.fields, list):
            raise invalid("_errors", "LIST_TYPE", "A list is wanted.")
        self._world.commands.clear()
        return [self.create_command(RequestBody(one)) for one in body.fields]

    def create_private_channel(self, body: RequestBody) -> Raw:
        """Create the private conversation with a user."""
        person = str(body.fields["recipient_id"])
        place = self._world.channel(person)
        place.person = self._world.person(int(person))
        return place.raw | {"type": PRIVATE}

    def list_messages(self, channel: str, query: Mapping[str, str]) -> list[Raw]:
        """Return messages, newest first, after or before an id; none without the permission."""
        room, limit = self._world.get_accessible_channel(channel), min(int(query.get("limit", "50")), 100)
        if not self._world.may_read(room):
            return []
        messages = room.messages
        if "after" in query:
            messages = [one for one in messages if int(one["id"]) > int(query["after"])][:limit]
        elif "before" in query:
            messages = [one for one in messages if int(one["id"]) < int(query["before"])]
        return [self._message_json(one) for one in reversed(messages[-limit:])]

    def get_message(self, channel: str, number: str) -> Raw:
        """Return one message."""
        room = self._world.get_accessible_channel(channel, "Read Message History")
        return self._message_json(self._world.message(room, number))

    def _message_json(self, message: Raw) -> Raw:
        """Return a message without its nonce, which only the sender and the gateway see."""
        return {key: value for key, value in message.items() if key != "nonce" or self._world.shows_nonces}

    async def create(self, channel: str, body: RequestBody) -> Raw:
        """Send a message, which opens an archived thread; an enforced nonce returns its earlier message."""
        kind = self._world.channels.get(channel)
        needed = "Send Messages in Threads" if kind and kind.parent else "Send Messages"
        room = self._world.get_accessible_channel(channel, needed, *(["Attach Files"] if body.files else []))
        nonce, reply = body.fields.get("nonce"), body.fields.get("message_reference")
        if room.is_locked:
            raise ApiFailure(403, 160005, "This thread is locked")
        if room.kind in {FORUM, MEDIA}:
            raise ApiFailure(400, 40058, "Cannot send a message in a forum channel")
        self.check(body, file_limit=self._file_limit(room))
        if reply and not self._world.may_read(room):
            raise ApiFailure(403, 160002, "Cannot reply without permission to read message history")
        enforced = nonce if body.fields.get("enforce_nonce") is True else None
        known = self._world.get_by_nonce(room, enforced)
        if known is not None:
            return known
        message = self.post(room, body, **({"nonce": nonce} if nonce is not None else {}))
        self._world.remember_nonce(room, nonce, message)
        room.is_listed = True
        await self.emit_message("MESSAGE_CREATE", room, message)
        return message

    def _file_limit(self, channel: SimulatedChannel) -> int:
        """Return the bytes of a file that a channel accepts, by the level of its server."""
        tier = self._world.guilds[channel.guild].get("premium_tier", 0) if channel.guild else 0
        return FILE_LIMITS.get(tier, FILE_LIMIT)

    def check(self, body: RequestBody, *, file_limit: int = FILE_LIMIT) -> None:
        """Raise ApiFailure for content that is too long or empty, counted in code points."""
        content, nonce = str(body.fields.get("content") or ""), body.fields.get("nonce")
        if len(content) > TEXT_LIMIT:
            raise invalid("content", "BASE_TYPE_MAX_LENGTH", "Must be 2000 or fewer in length.")
        if not content.strip() and not body.files:
            raise ApiFailure(400, 50006, "Cannot send an empty message")
        if nonce is not None and len(str(nonce)) > NONCE_LIMIT:
            raise invalid("nonce", "BASE_TYPE_MAX_LENGTH", "Must be 25 or fewer in length.")
        if any(len(file[2]) > file_limit for file in body.files.values()):
            raise ApiFailure(413, 40005, "Request entity too large")
        _check_buttons(body.fields.get("components") or [])

    def post(self, channel: SimulatedChannel, body: RequestBody, **others: Any) -> Raw:
        """Add a message of the bot to a channel."""
        attachments = [self.attach(channel, *file) for file in body.files.values()]
        return self._world.post(
            channel,
            self._world.bot,
            str(body.fields.get("content") or "").strip(),
            components=body.fields.get("components") or [],
            attachments=attachments,
            allowed_mentions=body.fields.get("allowed_mentions"),
            **{"flags": int(body.fields.get("flags") or 0) & 4, **others},
        )

    def attach(self, channel: SimulatedChannel, name: str, kind: str, content: bytes) -> Raw:
        """Store a file and return its attachment object."""
        number = self._world.snowflake()
        where = f"attachments/{channel.id}/{number}/{name}"
        self._world.files[where] = content
        url = f"{self.url}/cdn/{where}?ex=1&is=1&hm=1"
        about = {"id": number, "filename": name, "content_type": kind, "size": len(content)}
        return {**about, "url": url, "proxy_url": url}

    async def edit(self, channel: str, number: str, body: RequestBody) -> Raw:
        """Edit one of the bot's messages."""
        room = self._world.get_accessible_channel(channel)
        message = self._get_own_message(room, number)
        if not room.is_listed:
            raise ApiFailure(400, 50083, "Thread is archived")
        return await self.update_message(room, message, body)

    def _get_own_message(self, channel: SimulatedChannel, number: str) -> Raw:
        message = self._world.message(channel, number)
        if message["author"]["id"] != self._world.bot["id"]:
            raise ApiFailure(403, 50005, "Cannot edit a message authored by another user")
        return message

    async def update_message(self, channel: SimulatedChannel, message: Raw, body: RequestBody) -> Raw:
        """Replace the content of one of the bot's messages."""
        self.check(RequestBody({"content": message["content"], **body.fields}, body.files))
        if not message["flags"] & LOADING:
            self._world.histories[message["id"]].append(message["content"])
        message["flags"] &= ~LOADING
        kept = ("content", "components", "allowed_mentions")
        message.update({key: body.fields[key] for key in kept if key in body.fields})
        message["edited_timestamp"] = datetime.now(UTC).isoformat()
        await self.emit_message("MESSAGE_UPDATE", channel, message)
        return message

    async def delete(self, channel: str, number: str) -> None:
        """Delete one of the bot's messages."""
        room = self._world.get_accessible_channel(channel)
        message = self._get_own_message(room, number)
        room.messages.remove(message)
        self._world.bot_messages.remove(message)
        event = {"id": number, "channel_id": channel, **({"guild_id": room.guild} if room.guild else {})}
        await self._sessions.emit("MESSAGE_DELETE", event, private=room.guild is None)

    async def change_reaction(self, channel: str, number: str, emoji: str, *, added: bool) -> None:
        """Add or remove the bot's reaction."""
        needed = ["Read Message History", "Add Reactions"] if added else ["Read Message History"]
        room = self._world.get_accessible_channel(channel, *needed)
        self._world.message(room, number)
        reactions = self._world.reactions.setdefault(number, set())
        if (not added and emoji not in reactions) or (emoji.isascii() and ":" not in emoji):
            raise ApiFailure(404, 10014, "Unknown Emoji")
        was = emoji in reactions
        (reactions.add if added else reactions.discard)(emoji)
        if was != added:
            await self.emit_reaction(room, number, emoji, self._world.bot, added=added)

    async def emit_reaction(
        self, channel: SimulatedChannel, number: str, emoji: str, who: Raw, *, added: bool
    ) -> None:
        """Send a reaction event to the gateway."""
        event: Raw = {"user_id": who["id"], "channel_id": channel.id, "message_id": number}
        event |= {"emoji": {"id": None, "name": emoji}, "burst": False, "type": 0}
        if channel.guild:
            event["guild_id"] = channel.guild
            event |= {"member": shapes.member(who)} if added else {}
        name = "MESSAGE_REACTION_ADD" if added else "MESSAGE_REACTION_REMOVE"
        await self._sessions.emit(name, event, private=channel.guild is None)

    def typing(self, channel: str) -> None:
        """Start the typing indicator."""
        self._world.typed.append(self._world.get_accessible_channel(channel, "Send Messages").id)

    async def emit_message(self, name: str, channel: SimulatedChannel, message: Raw) -> None:
        """Send a message event to the gateway."""
        shown = message
        if channel.guild:
            shown = {**message, "guild_id": channel.guild, "member": shapes.member()}
        await self._sessions.emit(name, shown, private=channel.guild is None)


def _check_buttons(rows: list[Raw]) -> None:
    """Raise ApiFailure for too many or too long rows and buttons, and for duplicate ids."""
    named = [one.get("custom_id") for row in rows for one in row.get("components", [])]
    too_many = len(rows) > 5 or any(len(row.get("components", [])) > 5 for row in rows)  # noqa: PLR2004
    if too_many or len(named) != len(set(named)) or any(len(name or "") > 100 for name in named):  # noqa: PLR2004
        raise invalid(
            "components", "COMPONENT_CUSTOM_ID_DUPLICATED", "Rows or buttons are not as they may be."
        )

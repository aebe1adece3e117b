"""The state of the simulated Discord: servers, channels, messages and interactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from channels.discord.simulator import shapes

Raw = dict[str, Any]

EPOCH = 1_420_070_400_000
TEXT, PRIVATE, PUBLIC_THREAD, FORUM, MEDIA = 0, 1, 11, 15, 16
EPHEMERAL, LOADING = 1 << 6, 1 << 7
DEFAULT_GUILD = 900_000_000_000_000_001
"""The id of the server of all channels that name no other."""

NONCE_SECONDS = 120.0
"""Seconds a nonce is remembered; the documentation says "the past few minutes"."""


class ApiFailure(Exception):
    """A failed response with the documentation's codes and texts."""

    def __init__(
        self, status: int, code: int, message: str, *, extra: Raw | None = None, headers: Raw | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: Raw = {"message": message, "code": code, **(extra or {})}
        self.headers = {name: str(value) for name, value in (headers or {}).items()}


class ConnectionCut(Exception):
    """The connection ends without a response."""


def invalid(field_name: str, code: str, message: str) -> ApiFailure:
    """Return a 400 for a field of the body."""
    errors = {field_name: {"_errors": [{"code": code, "message": message}]}}
    return ApiFailure(400, 50035, "Invalid Form Body", extra={"errors": errors})


def forbidden() -> ApiFailure:
    """Return the failure of a call that lacks a permission."""
    return ApiFailure(403, 50013, "Missing Permissions")


@dataclass(slots=True)
class SimulatedChannel:
    """A channel; `denied` names the permissions that its overwrites deny the bot."""

    id: str
    kind: int = TEXT
    guild: str | None = None
    parent: str | None = None
    name: str = ""
    denied: set[str] = field(default_factory=set)
    is_listed: bool = True
    is_locked: bool = False
    person: Raw | None = None
    messages: list[Raw] = field(default_factory=list)

    @property
    def raw(self) -> Raw:
        """Return the channel object."""
        last = self.messages[-1]["id"] if self.messages else None
        shape: Raw = {"id": self.id, "type": self.kind, "last_message_id": last, "flags": 0}
        if self.guild is None:
            return {**shape, "recipients": [self.person] if self.person else []}
        shape |= {"guild_id": self.guild, "name": self.name or f"c-{self.id}"}
        if self.parent:
            return shape | self._thread()
        deny = sum(shapes.PERMISSIONS[name] for name in self.denied)
        overwrite = {"id": self.guild, "type": 0, "allow": "0", "deny": str(deny)}
        return shape | {"position": 0, "permission_overwrites": [overwrite], "parent_id": None, "nsfw": False}

    def _thread(self) -> Raw:
        about = {
            "archived": not self.is_listed,
            "auto_archive_duration": 1440,
            "archive_timestamp": shapes.LONG_AGO,
            "locked": self.is_locked,
        }
        counts = {"message_count": len(self.messages), "member_count": 2, "owner_id": "7"}
        return {"parent_id": self.parent, "thread_metadata": about, **counts}


@dataclass(frozen=True, slots=True)
class Post:
    """A message of the bot."""

    id: str
    chat: int
    thread: int | None
    text: str
    buttons: list[Raw]
    history: list[str]
    raw: Raw


@dataclass(slots=True)
class SimulatedInteraction:
    """A command, button press or submitted modal, and the response to it."""

    id: str
    token: str
    channel: SimulatedChannel
    message: Raw | None = None
    person: Raw | None = None
    made_at: float = 0.0
    response_type: int | None = None
    original: Raw | None = None
    modal: Raw | None = None
    notices: list[str] = field(default_factory=list)


class World:
    """The whole state, with a condition that signals changes."""

    def __init__(self, bot: Raw, application: str) -> None:
        self.bot = bot
        self.application = application
        self.guilds: dict[str, Raw] = {}
        self.channels: dict[str, SimulatedChannel] = {}
        self.interactions: dict[str, SimulatedInteraction] = {}
        self.files: dict[str, bytes] = {}
        self.commands: dict[str, Raw] = {}
        self.bot_messages: list[Raw] = []
        self.histories: dict[str, list[str]] = {}
        self.typed: list[str] = []
        self.reactions: dict[str, set[str]] = {}
        self.shows_nonces = False
        self.offset_seconds = 0.0
        self._nonces: dict[tuple[str, str], tuple[float, Raw]] = {}
        self._count = 0
        self._changed = asyncio.Condition()

    def now(self) -> float:
        """Return the simulated time."""
        return time.time() + self.offset_seconds

    def snowflake(self) -> str:
        """Return a new id."""
        self._count += 1
        return str(((int(self.now() * 1000) - EPOCH) << 22) + (self._count & 0x3FFFFF))

    def person(self, number: int) -> Raw:
        """Return a user object."""
        return shapes.user(number, f"person{number}", shown=f"Person {number}")

    def channel(self, number: int | str) -> SimulatedChannel:
        """Return a channel; an unknown one is a private conversation."""
        name = str(number)
        if name not in self.channels:
            self.channels[name] = SimulatedChannel(name, PRIVATE)
        return self.channels[name]

    def delete(self, number: str) -> SimulatedChannel:
        """Delete a channel with its messages, and return it."""
        self.bot_messages = [raw for raw in self.bot_messages if raw["channel_id"] != number]
        return self.channels.pop(number)

    def guild(self, number: str) -> Raw:
        """Return a server with its channels and active threads."""
        inside = [one for one in self.channels.values() if one.guild == number and one.is_listed]
        seen = [one for one in inside if "View Channels" not in self._denied(one)]
        channels = [one.raw for one in seen if not one.parent]
        threads = [one.raw for one in seen if one.parent]
        tier = self.guilds[number].get("premium_tier", 0)
        return shapes.guild(number, self.guilds[number]["name"], self.bot, channels, threads) | {
            "premium_tier": tier
        }

    def _denied(self, channel: SimulatedChannel) -> set[str]:
        """Return the permissions denied in a channel; a thread uses its parent's overwrites."""
        parent = self.channels.get(channel.parent or "")
        return channel.denied | (parent.denied if parent else set())

    def get_accessible_channel(self, number: str, *permissions: str) -> SimulatedChannel:
        """Return a channel that the bot may use; raises ApiFailure."""
        if not number.isdecimal():
            raise invalid("channel_id", "NUMBER_TYPE_COERCE", f'Value "{number}" is not snowflake.')
        channel = self.channels.get(number)
        if channel is None:
            raise ApiFailure(404, 10003, "Unknown Channel")
        if channel.guild is None:
            return channel
        denied = self._denied(channel)
        if "View Channels" in denied or channel.guild not in self.guilds:
            raise ApiFailure(403, 50001, "Missing Access")
        if denied & set(permissions):
            raise forbidden()
        return channel

    def may_read(self, channel: SimulatedChannel) -> bool:
        """Return whether the bot may read the history."""
        return "Read Message History" not in self._denied(channel)

    def message(self, channel: SimulatedChannel, number: str) -> Raw:
        """Return a message; raises ApiFailure."""
        for message in channel.messages:
            if message["id"] == number:
                return message
        raise ApiFailure(404, 10008, "Unknown Message")

    def post(self, channel: SimulatedChannel, author: Raw, content: str, **others: Any) -> Raw:
        """Add a message to a channel and return the message object."""
        mentions = [self.bot] if f"<@{self.bot['id']}>" in content else []
        message: Raw = {
            "id": self.snowflake(),
            "channel_id": channel.id,
            "type": 0,
            "author": author,
            "content": content,
            "timestamp": datetime.fromtimestamp(self.now(), UTC).isoformat(),
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": mentions,
            "mention_roles": [part.partition(">")[0] for part in content.split("<@&")[1:]],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "components": [],
            "flags": 0,
            **others,
        }
        channel.messages.append(message)
        if author["id"] == self.bot["id"]:
            self.bot_messages.append(message)
            self.histories[message["id"]] = []
        return message

    def get_by_nonce(self, channel: SimulatedChannel, nonce: object) -> Raw | None:
        """Return the message sent with a nonce within NONCE_SECONDS."""
        at, message = self._nonces.get((channel.id, str(nonce)), (0.0, None))
        return message if nonce is not None and self.now() - at < NONCE_SECONDS else None

    def remember_nonce(self, channel: SimulatedChannel, nonce: object, message: Raw) -> None:
        """Store a nonce."""
        if nonce is not None:
            self._nonces[channel.id, str(nonce)] = (self.now(), message)

    def posts(self, chat: int | None) -> list[Post]:
        """Return the bot's public messages in order."""
        shown = [raw for raw in self.bot_messages if not raw["flags"] & (LOADING | EPHEMERAL)]
        posts = [self._post(raw) for raw in shown]
        return [post for post in posts if chat is None or chat in (post.chat, post.thread)]

    def _post(self, raw: Raw) -> Post:
        channel = self.channels[raw["channel_id"]]
        thread = int(channel.id) if channel.parent else None
        buttons = [button for row in raw["components"] for button in row["components"]]
        chat = int(channel.parent or channel.id)
        return Post(raw["id"], chat, thread, raw["content"], buttons, self.histories[raw["id"]], raw)

    async def notify_changed(self) -> None:
        """Wake those who wait for a change."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with self._changed:
            await self._changed.wait_for(condition)

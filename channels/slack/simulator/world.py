"""What the simulated Slack holds: rooms, messages, files, and what is to be told to the app."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from channels.slack.simulator import reading

Raw = dict[str, Any]
TEAM = "T0SIMULATED"
BOT_USER = "U0BOT"
BOT_ID = "B0BOT"
APP = "A0DOVECOTE"
EPOCH = 1767225600


@dataclass(slots=True)
class Room:
    """A channel or a private chat; `refusal` is what the bot hears when it speaks there."""

    id: str
    kind: str
    refusal: str = ""


@dataclass(slots=True)
class Post:
    """A message."""

    room: str
    ts: str
    user: str
    raw: Raw
    history: list[str] = field(default_factory=list)

    @property
    def thread(self) -> str | None:
        """The thread's first message, if it is in one."""
        thread = self.raw.get("thread_ts")
        return thread if isinstance(thread, str) else None

    @property
    def text(self) -> str:
        """What a person reads: the blocks if there are any, else the text."""
        sections = [block["text"]["text"] for block in self._blocks if block.get("type") == "section"]
        text = "\n".join(sections) or str(self.raw.get("text", ""))
        return reading.unescaped(text) if self.raw.get("mrkdwn") is False else reading.shown(text)

    @property
    def notified(self) -> list[str]:
        """Whom the message notifies."""
        return reading.notified(str(self.raw.get("text", "")))

    @property
    def buttons(self) -> list[Raw]:
        """The buttons under it."""
        rows = [block["elements"] for block in self._blocks if block.get("type") == "actions"]
        return [button for row in rows for button in row]

    @property
    def _blocks(self) -> list[Raw]:
        return list(self.raw.get("blocks") or [])


class World:
    """The state of one workspace with one app."""

    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.posts: list[Post] = []
        self.notices: list[Raw] = []
        self.files: dict[str, Raw] = {}
        self.contents: dict[str, bytes] = {}
        self.numbers = itertools.count(1)
        self._changed = asyncio.Condition()

    def room(self, room: str | int) -> Room:
        """Return a room, made on first use: D… and numbers are private chats, C… are channels."""
        name = room_id(room)
        return self.rooms.setdefault(name, Room(name, "im" if name.startswith("D") else "channel"))

    def stamp(self) -> str:
        """Return the next message's time stamp."""
        number = next(self.numbers)
        return f"{EPOCH + number}.{number:06d}"

    def post(self, room: str, user: str, content: Raw) -> Post:
        """Put a message into a room."""
        ts = self.stamp()
        post = Post(room, ts, user, {"type": "message", "user": user, "ts": ts, **content})
        self.posts.append(post)
        return post

    def find(self, room: str, ts: str) -> Post | None:
        """Return a message."""
        return next((post for post in self.posts if (post.room, post.ts) == (room, ts)), None)

    async def announce(self) -> None:
        """Wake those who wait for a condition."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with self._changed:
            await self._changed.wait_for(condition)


def room_id(room: str | int) -> str:
    """Return a room's id."""
    return f"D{abs(room):08d}" if isinstance(room, int) else room

"""The state of the simulated Slack: rooms, messages, files, modals and waiters."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from channels.slack.simulator import mrkdwn
from channels.slack.simulator.clock import SimulatedClock

Raw = dict[str, Any]
TEAM = "T0SIMULATED"
BOT_USER = "U0BOT"
BOT_ID = "B0BOT"
APP = "A0DOVECOTE"
STATUS_SECONDS = 120
TRIGGER_SECONDS = 3
KINDS = {"D": "im", "G": "group", "C": "channel"}


@dataclass(slots=True)
class Room:
    """A channel or private chat; `refusal` is the error the bot gets when it posts there.

    `shared_with` are the other workspaces of a channel of Slack Connect.
    """

    id: str
    kind: str
    refusal: str = ""
    team: str = TEAM
    enterprise: str = ""
    shared_with: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Post:
    """A message; `streaming` is the start of its stream, `reactions` lists who reacted with what.

    `tasks` are the titles and statuses of a plan's tasks by id.
    """

    room: str
    ts: str
    user: str
    raw: Raw
    history: list[str] = field(default_factory=list)
    streaming: float | None = None
    reactions: dict[str, list[str]] = field(default_factory=dict)
    plan_title: str = ""
    tasks: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def thread(self) -> str | None:
        """The `ts` of the thread's first message, if the message is in a thread."""
        thread = self.raw.get("thread_ts")
        return thread if isinstance(thread, str) else None

    @property
    def text(self) -> str:
        """The text a user reads: that of the blocks if there are any, else the plain text."""
        markdown = [block["text"] for block in self._blocks if block.get("type") == "markdown"]
        if markdown:
            return mrkdwn.render_markdown("\n\n".join(markdown))
        sections = [block["text"]["text"] for block in self._blocks if block.get("type") == "section"]
        text = "\n".join(sections) or str(self.raw.get("text", ""))
        return mrkdwn.unescape(text) if self.raw.get("mrkdwn") is False else mrkdwn.render(text)

    @property
    def notified_targets(self) -> list[str]:
        """The users and groups that the message notifies."""
        blocks = [str(block["text"]) for block in self._blocks if block.get("type") == "markdown"]
        return mrkdwn.notified_targets("\n".join([str(self.raw.get("text", "")), *blocks]))

    @property
    def buttons(self) -> list[Raw]:
        """The message's buttons."""
        rows = [block["elements"] for block in self._blocks if block.get("type") == "actions"]
        return [button for row in rows for button in row]

    @property
    def _blocks(self) -> list[Raw]:
        return list(self.raw.get("blocks") or [])


@dataclass(slots=True)
class Modal:
    """An open modal; it is removed when it is submitted or closed."""

    id: str
    user: str
    raw: Raw
    is_open: bool = True


@dataclass(slots=True)
class ResponseUrl:
    """An interaction's response_url: valid five times, for half an hour."""

    room: str
    user: str
    until: float
    ts: str | None = None
    uses: int = 5


class World:
    """The state of one workspace with one app."""

    def __init__(self, clock: SimulatedClock | None = None) -> None:
        self.clock = clock or SimulatedClock()
        self.rooms: dict[str, Room] = {}
        self.posts: list[Post] = []
        self.notices: list[Raw] = []
        self.files: dict[str, Raw] = {}
        self.visitors: dict[str, str] = {}
        """The workspaces of people from other ones, in channels of Slack Connect."""
        self.organisations: dict[str, str] = {}
        """The organisations (Enterprise Grid) of such workspaces, which events name in their place."""
        self.contents: dict[str, bytes] = {}
        self.modals: list[Modal] = []
        self.trigger_seconds: float = TRIGGER_SECONDS
        self.triggers: dict[str, tuple[str, float]] = {}
        self.responses: dict[str, ResponseUrl] = {}
        self.shows_metadata = True
        self.caller = TEAM
        """The workspace whose token the present call has."""

        self._statuses: dict[tuple[str, str], tuple[str, float]] = {}
        self.numbers = itertools.count(1)
        self._changed = asyncio.Condition()

    def room(self, room: str | int) -> Room:
        """Return a room, created on first use: D… and numbers are private chats, G… and C… channels."""
        name = room_id(room)
        return self.rooms.setdefault(name, Room(name, KINDS.get(name[0], "channel")))

    def next_ts(self) -> str:
        """Return the next message's `ts`."""
        return f"{int(self.clock.now())}.{next(self.numbers):06d}"

    def create_trigger(self, user: str) -> str:
        """Return a trigger that opens one modal within three seconds, or `trigger_seconds` if longer."""
        trigger = f"{self.next_ts()}.abc"
        self.triggers[trigger] = (user, self.clock.now() + self.trigger_seconds)
        return trigger

    def create_response_url(self, room: str, user: str, ts: str | None = None) -> str:
        """Return the number of a new response_url."""
        number = f"R{next(self.numbers):08d}"
        self.responses[number] = ResponseUrl(room, user, self.clock.now() + 1800, ts)
        return number

    def post(self, room: str, user: str, content: Raw) -> Post:
        """Add a message to a room; one of the bot's ends its status there."""
        ts = self.next_ts()
        post = Post(room, ts, user, {"type": "message", "user": user, "ts": ts, **content})
        self.posts.append(post)
        if user == BOT_USER:
            self._statuses.pop((room, post.thread or ""), None)
        return post

    def get_post(self, room: str, ts: str) -> Post | None:
        """Return a message."""
        return next((post for post in self.posts if (post.room, post.ts) == (room, ts)), None)

    def set_status(self, room: str, thread: str, status: str) -> None:
        """Set a thread's status; an empty one removes it."""
        self._statuses[room, thread] = (status, self.clock.now() + STATUS_SECONDS)

    def status(self, room: str, thread: str) -> str:
        """Return a thread's status."""
        status, until = self._statuses.get((room, thread), ("", 0.0))
        return status if until > self.clock.now() else ""

    async def notify_changed(self) -> None:
        """Wake those who wait for a change."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        async with self._changed:
            await self._changed.wait_for(condition)


def room_id(room: str | int) -> str:
    """Return a room's id."""
    return f"D{abs(room):08d}" if isinstance(room, int) else room

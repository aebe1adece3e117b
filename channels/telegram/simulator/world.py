"""The state of the simulated Telegram: rooms, posts, files and unconfirmed updates."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from channels.telegram.simulator.failure import ApiFailure, bad_request
from channels.telegram.simulator.wording import find_entities

FUTURE_OFFSETS = 10
"""How far beyond the next number an offset may be; the Bot API server's queue takes no further ones."""

FIRST_UPDATE = 700_000_001
SUPERGROUPS = -1_000_000_000_000
OPT_IN_KINDS = frozenset({"chat_member", "message_reaction", "message_reaction_count"})
"""The kinds of update that are sent only if requested by name."""

DRAFT_SECONDS = 30.0

Raw = dict[str, Any]


@dataclass(slots=True)
class Room:
    """A chat; `refusal` is the text of the 403 a bot gets that may no longer write there.

    `forbidden` lists the kinds of message the bot may not send, `reactions` the allowed emoji. `linked` is
    the channel whose posts a supergroup discusses.
    """

    id: int
    kind: str
    title: str
    forum: bool = False
    topics: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    refusal: str = ""
    moved_to: int | None = None
    forbidden: set[str] = field(default_factory=set)
    reactions: frozenset[str] | None = None
    linked: int | None = None

    @property
    def raw(self) -> Raw:
        """The Chat of the Bot API."""
        if self.kind == "private":
            return {"id": self.id, "type": "private", "first_name": self.title}
        forum = {"is_forum": True} if self.forum else {}
        return {"id": self.id, "type": self.kind, "title": self.title, **forum}


@dataclass(slots=True)
class Post:
    """A message in a room, with its earlier texts."""

    raw: Raw
    by_bot: bool
    history: list[str] = field(default_factory=list)
    deleted: bool = False
    file: bytes | None = None

    @property
    def id(self) -> int:
        """The message's number in the room."""
        return int(self.raw["message_id"])

    @property
    def chat(self) -> int:
        """The room of the message."""
        return int(self.raw["chat"]["id"])

    @property
    def thread(self) -> int | None:
        """The topic of the message."""
        return self.raw.get("message_thread_id")

    @property
    def text(self) -> str:
        """The current text."""
        return str(self.raw.get("text") or self.raw.get("caption") or "")

    @property
    def buttons(self) -> list[Raw]:
        """The message's buttons."""
        rows = self.raw.get("reply_markup", {}).get("inline_keyboard", [])
        return [button for row in rows for button in row]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDraft:
    """A draft that a private chat shows until `until`."""

    chat: int
    number: int
    text: str
    entities: list[Raw]
    until: float


class World:
    """Rooms and their messages, as one bot meets them."""

    def __init__(self, bot: Raw, *, privacy: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.bot = bot
        self.privacy = privacy
        self.rooms: dict[int, Room] = {}
        self.posts: dict[tuple[int, int], Post] = {}
        self._bot_posts: dict[int, list[Post]] = {}
        self.clock = clock
        self.visible_drafts: dict[int, SimulatedDraft] = {}
        self.drafts: deque[SimulatedDraft] = deque(maxlen=10_000)
        self.files: dict[str, tuple[str, bytes]] = {}
        self.updates: dict[int, Raw] = {}
        self.presses: dict[str, Raw | None] = {}
        self.kinds: list[str] = []
        self.changed = asyncio.Condition()
        self._next_update = FIRST_UPDATE
        self._numbers: dict[int, int] = {}

    async def notify_changed(self) -> None:
        """Wake all who wait for a change."""
        async with self.changed:
            self.changed.notify_all()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition of the world holds."""
        async with self.changed:
            await self.changed.wait_for(condition)

    def room(self, chat: int) -> Room:
        """Return a room, created on first use: a private chat for a positive id, else a group."""
        if chat not in self.rooms:
            kind = "private" if chat > 0 else "supergroup" if chat < SUPERGROUPS else "group"
            self.rooms[chat] = Room(chat, kind, f"Room {abs(chat)}")
        return self.rooms[chat]

    def get_writable_room(self, chat: object) -> Room:
        """Return a room the bot may write to; raises ApiFailure."""
        try:
            room = self.rooms[int(str(chat))]
        except (KeyError, ValueError):
            raise bad_request("chat not found") from None
        if room.moved_to is not None:
            parameters = {"migrate_to_chat_id": room.moved_to}
            raise ApiFailure(400, "Bad Request: group chat was upgraded to a supergroup chat", parameters)
        if room.refusal:
            raise ApiFailure(403, room.refusal)
        return room

    def next_message_id(self, room: Room) -> int:
        """Return the next message number; each supergroup counts its own, all other rooms share one."""
        counter = room.id if room.kind == "supergroup" else 0
        self._numbers[counter] = self._numbers.get(counter, 0) + 1
        return self._numbers[counter]

    def post(
        self, room: Room, author: Raw, content: Raw, *, thread: int | None, reply_to: int | None
    ) -> Post:
        """Add a message to a room."""
        raw: Raw = {
            "message_id": self.next_message_id(room),
            "from": author,
            "chat": room.raw,
            "date": int(time.time()),
        }
        replied = self.posts.get((room.id, reply_to)) if reply_to else None
        if replied and thread is None and room.kind == "supergroup":
            thread = replied.thread or replied.id  # a chain of replies has the thread of its first message
        if thread is not None:
            raw |= {"message_thread_id": thread} | (
                {"is_topic_message": True} if thread in room.topics else {}
            )
        if replied:
            raw["reply_to_message"] = {
                name: value for name, value in replied.raw.items() if name != "reply_to_message"
            }
        post = Post({**raw, **content}, by_bot=author is self.bot)
        self.posts[room.id, post.id] = post
        if post.by_bot:
            self._bot_posts.setdefault(post.chat, []).append(post)
        return post

    def show_draft(self, chat: int, number: int, text: str, entities: list[Raw]) -> None:
        """Show a draft for 30 seconds; a chat shows one at a time."""
        until = self.clock() + DRAFT_SECONDS
        draft = SimulatedDraft(chat=chat, number=number, text=text, entities=entities, until=until)
        self.drafts.append(draft)
        self.visible_drafts[chat] = draft

    def end_drafts(self, chat: int) -> None:
        """Remove a chat's draft, because a message of the bot arrived."""
        self.visible_drafts.pop(chat, None)

    def get_bot_post(self, chat: object, number: object, *, purpose: str) -> Post:
        """Return a message of the bot; raises ApiFailure."""
        room = self.get_writable_room(chat)
        try:
            post = self.posts[room.id, int(str(number))]
        except (KeyError, ValueError):
            raise bad_request(f"message to {purpose} not found") from None
        if post.deleted:
            raise bad_request(f"message to {purpose} not found")
        if not post.by_bot:
            raise bad_request(f"message can't be {purpose.removesuffix('e')}ed")
        return post

    def update(self, kind: str, content: Raw) -> int | None:
        """Queue an update, if the bot requested this kind."""
        wanted = kind in self.kinds if self.kinds else kind not in OPT_IN_KINDS
        if not wanted or (self.privacy and kind == "message" and not self._concerns_bot(content)):
            return None
        return self.queue({kind: content})

    def queue(self, content: Raw) -> int:
        """Queue an update with any content."""
        number = self._next_update
        self._next_update += 1
        self.updates[number] = {"update_id": number, **content}
        return number

    def restart_updates(self, first: int) -> None:
        """Number the next updates from `first`, as Telegram may after a week without any."""
        self._next_update = first

    def confirm(self, offset: int) -> None:
        """Delete updates before `offset`; a negative one keeps that many of the last.

        One far beyond the next number is that of an earlier numbering, and confirms nothing.
        """
        if offset > self._next_update + FUTURE_OFFSETS:
            return
        if offset < 0:
            offset = min(sorted(self.updates)[offset:], default=0)
        for number in [number for number in self.updates if number < offset]:
            del self.updates[number]

    def pending(self, limit: int) -> list[Raw]:
        """Return the oldest updates."""
        return list(self.updates.values())[:limit]

    def _concerns_bot(self, message: Raw) -> bool:
        """Apply privacy mode: in groups a bot gets commands, mentions and replies to it."""
        if message["chat"]["type"] == "private":
            return True
        replied = message.get("reply_to_message", {}).get("from", {}).get("id") == self.bot["id"]
        name = f"@{self.bot['username']}".lower()
        text = str(message.get("text") or message.get("caption") or "")
        return replied or text.startswith("/") or name in text.lower()

    def person(self, number: int, name: str = "") -> Raw:
        """Return a user's User object."""
        return {
            "id": number,
            "is_bot": False,
            "first_name": name or f"Person {number}",
            "language_code": "en",
        }

    def typed_content(self, text: str) -> Raw:
        """Return the content of a typed message."""
        entities = find_entities(text, self.bot["username"])
        return {"text": text, **({"entities": entities} if entities else {})}

    def list_bot_posts(self, chat: int | None) -> Iterable[Post]:
        """Return the bot's messages in order."""
        if chat is not None:
            return tuple(self._bot_posts.get(chat, ()))
        return [post for post in self.posts.values() if post.by_bot]

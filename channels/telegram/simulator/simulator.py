"""The simulated Telegram: start it, drive it, and inspect it."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from channels.telegram.simulator.failure import ApiFailure, too_many_requests
from channels.telegram.simulator.faults import Fault, Faults, MessageRates, RateLimits
from channels.telegram.simulator.groups import GroupActions
from channels.telegram.simulator.methods import Methods
from channels.telegram.simulator.server import ControlAction, Server
from channels.telegram.simulator.updates import Updates
from channels.telegram.simulator.world import SUPERGROUPS, Post, Raw, SimulatedDraft, World

TOKEN = "700700700:simulated-telegram-token"  # noqa: S105 - valid at the simulator only
USERNAME = "dovecote_bot"
TIMEOUT_SECONDS = 30.0
_REASONS = {
    403: "Forbidden: bot was blocked by the user",
    500: "Internal Server Error",
    502: "Bad Gateway",
}


class Simulator(GroupActions):
    """One bot's Telegram; the public methods are actions of users and groups, and faults."""

    def __init__(
        self,
        *,
        token: str = TOKEN,
        username: str = USERNAME,
        privacy: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        number = int(token.partition(":")[0])
        bot = {"id": number, "is_bot": True, "first_name": "Dovecote", "username": username}
        self.token = token
        self.world = World(bot, privacy=privacy, clock=clock)
        self.updates = Updates(self.world)
        self.rate_limits = RateLimits(MessageRates())
        self.faults = Faults()
        self.methods = Methods(self.world, self.updates, self.rate_limits)
        self.server = Server(token, self.world, self.methods, self.faults, self)
        self.port = 0
        self.user_reactions: dict[tuple[int, int, int], list[Raw]] = {}
        people = (self.say, self.edit, self.press, self.react, self.send_file, self.send_album)
        rooms = (self.group, self.topic, self.close_topic, self.reopen_topic, self.delete_topic)
        channels = (self.discussion, self.publish, self.remove)
        fate = (
            self.restrict,
            self.migrate,
            self.block,
            self.kick,
            self.readmit,
            self.push,
            self.fail,
            self.cut,
            self.dawdle,
            self.answer_late,
            self.well,
        )
        rest = (self.limit, self.forget)
        self.actions: dict[str, ControlAction] = {
            act.__name__: act for act in (*people, *rooms, *channels, *fate, *rest)
        }

    @property
    def url(self) -> str:
        """The URL of the Bot API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """The calls so far: method and arguments."""
        return self.server.calls

    @property
    def answered_methods(self) -> Sequence[str]:
        """The methods of the calls that were answered, or cut off."""
        return self.server.answered_methods

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return channel settings for this simulator."""
        return {"token": self.token, "base_url": self.url, "allow": ["*"], **others}

    async def say(
        self,
        chat: int,
        text: str,
        *,
        user: int | None = None,
        name: str = "",
        thread: int | None = None,
        reply_to: int | None = None,
        is_bot: bool = False,
    ) -> int:
        """Post a user's message and return its number."""
        author = {**self.world.person(user or abs(chat), name), "is_bot": is_bot}
        return await self._post_message(
            chat, author, self.world.typed_content(text), thread=thread, reply_to=reply_to
        )

    async def edit(self, chat: int, message: int, text: str) -> None:
        """Edit a user's message."""
        post = self.world.posts[chat, message]
        post.history.append(post.text)
        post.raw = {**post.raw, **self.world.typed_content(text), "edit_date": post.raw["date"] + 1}
        self.world.update("edited_message", post.raw)
        await self.world.notify_changed()

    async def press(self, chat: int, message: int, data: str, *, user: int | None = None) -> str:
        """Press one of the bot's buttons; return the number of the press, for `answers`."""
        post = self.world.posts[chat, message]
        if data not in [button.get("callback_data") for button in post.buttons]:
            raise KeyError(f"message {message} has no button {data!r}")
        number = str(4_000_000 + len(self.world.presses))
        self.world.presses[number] = None
        person = self.world.person(user or abs(chat))
        press = {"id": number, "from": person, "message": post.raw, "chat_instance": "1", "data": data}
        self.world.update("callback_query", press)
        await self.world.notify_changed()
        return number

    async def send_file(
        self,
        chat: int,
        content: bytes | str,
        *,
        name: str = "",
        media_type: str = "application/octet-stream",
        caption: str = "",
        kind: str = "document",
        user: int | None = None,
    ) -> int:
        """Send a file as a user, or a photo if it has no name; over HTTP its bytes are base64."""
        data = base64.b64decode(content) if isinstance(content, str) else content
        sent = {kind: self._file(data, name, media_type)} if name else self._photo(data)
        words = {"caption": caption} if caption else {}
        return await self._post_message(chat, self.world.person(user or abs(chat)), {**sent, **words})

    async def send_album(
        self,
        chat: int,
        contents: Sequence[bytes | str],
        *,
        caption: str = "",
        album: str = "1313",
        user: int | None = None,
    ) -> list[int]:
        """Send several pictures at once: each is an update of its own, the first has the caption."""
        numbers = []
        for place, content in enumerate(contents):
            data = base64.b64decode(content) if isinstance(content, str) else content
            words = {"caption": caption} if caption and not place else {}
            said = {**self._photo(data), "media_group_id": album, **words}
            numbers.append(await self._post_message(chat, self.world.person(user or abs(chat)), said))
        return numbers

    def _file(self, content: bytes, name: str, media_type: str) -> Raw:
        return {**self.updates.store(name, content), "file_name": name, "mime_type": media_type}

    def _photo(self, content: bytes) -> Raw:
        """Return a photo's sizes, of which only the largest has the bytes that were sent."""
        small, large = self.updates.store("small.jpg", content[:1]), self.updates.store("photo.jpg", content)
        return {"photo": [{**small, "width": 90, "height": 90}, {**large, "width": 800, "height": 600}]}

    async def react(self, chat: int, message: int, emoji: str | None, *, user: int | None = None) -> None:
        """Replace or remove a user's reaction."""
        person = self.world.person(user or abs(chat))
        before = self.user_reactions.get((chat, message, person["id"]), [])
        now = [{"type": "emoji", "emoji": emoji}] if emoji else []
        self.user_reactions[chat, message, person["id"]] = now
        change = {"old_reaction": before, "new_reaction": now}
        reacted = {"chat": self.world.room(chat).raw, "message_id": message, "user": person, **change}
        self.world.update("message_reaction", {**reacted, "date": int(time.time())})
        await self.world.notify_changed()

    async def restrict(
        self, chat: int, *, forbidden: Sequence[str] = (), reactions: Sequence[str] | None = None
    ) -> None:
        """Take rights from the bot ("text messages", "photos", "documents"…), or limit the emoji."""
        room = self.world.room(chat)
        room.forbidden = set(forbidden)
        room.reactions = None if reactions is None else frozenset(reactions)

    async def forget(self, method: str) -> None:
        """Remove a method, as on a server that is too old for it."""
        self.methods.unsupported.add(method.lower())

    async def block(self, chat: int) -> None:
        """Let a user block the bot."""
        self.world.room(chat).refusal = "Forbidden: bot was blocked by the user"

    async def kick(self, chat: int) -> None:
        """Remove the bot from a group."""
        room = self.world.room(chat)
        room.refusal = f"Forbidden: bot was kicked from the {room.kind} chat"

    async def readmit(self, chat: int) -> None:
        """Let the bot write in a chat again, as a person who unblocks it or a group that adds it."""
        room = self.world.room(chat)
        room.refusal = ""
        members = {
            f"{when}_chat_member": {"user": self.world.bot, "status": status}
            for when, status in (("old", "kicked"), ("new", "member"))
        }
        change = {"chat": room.raw, "from": self.world.person(1), "date": int(time.time()), **members}
        self.world.update("my_chat_member", change)
        await self.world.notify_changed()

    async def migrate(self, chat: int) -> int:
        """Upgrade a group to a supergroup and return the new id."""
        old = self.world.room(chat)
        old.moved_to = SUPERGROUPS - abs(chat)
        new = self.world.room(old.moved_to)
        new.title = old.title
        person = self.world.person(1)
        for room, notice in ((old, {"migrate_to_chat_id": new.id}), (new, {"migrate_from_chat_id": old.id})):
            post = self.world.post(room, person, notice, thread=None, reply_to=None)
            self.world.update("message", post.raw)
        await self.world.notify_changed()
        return new.id

    async def push(self, update: Raw) -> int:
        """Queue an update with any content, even a malformed one."""
        number = self.world.queue(update)
        await self.world.notify_changed()
        return number

    async def fail(
        self,
        status: int,
        *,
        times: int = 1,
        method: str | None = None,
        chat: int | None = None,
        thread: int | None = None,
        retry_after: int = 1,
        description: str = "",
        seconds: float = 0.0,
    ) -> None:
        """Answer the next calls with a failure, after `seconds`."""
        reason = description or _REASONS.get(status, f"Error {status}")
        failure = too_many_requests(retry_after) if status == 429 else ApiFailure(status, reason)  # noqa: PLR2004
        self.faults.add(Fault("fail", times, method, chat, failure, seconds, thread))

    async def cut(
        self, *, times: int = 1, method: str | None = None, chat: int | None = None, after: bool = True
    ) -> None:
        """Cut the connection of the next calls, after or before carrying them out."""
        self.faults.add(Fault("cut_after" if after else "cut_before", times, method, chat))

    async def dawdle(
        self, seconds: float, *, times: int = 1, method: str | None = None, chat: int | None = None
    ) -> None:
        """Delay the next calls by `seconds`."""
        self.faults.add(Fault("dawdle", times, method, chat, seconds=seconds))

    async def answer_late(self, seconds: float, *, times: int = 1, method: str | None = None) -> None:
        """Carry out the next calls at once, and answer them after `seconds`."""
        self.faults.add(Fault("answer_late", times, method, seconds=seconds))

    async def well(self) -> None:
        """End all faults."""
        self.faults.clear()

    async def limit(
        self, *, room_per_second: int = 0, group_per_minute: int = 0, overall_per_second: int = 0
    ) -> None:
        """Limit the number of messages."""
        self.rate_limits.rates = MessageRates(
            room_per_second=room_per_second,
            group_per_minute=group_per_minute,
            overall_per_second=overall_per_second,
        )

    def messages(self, chat: int | None = None) -> list[Post]:
        """Return the bot's messages that were not deleted, in order."""
        return [post for post in self.world.list_bot_posts(chat) if not post.deleted]

    def drafts(self, chat: int) -> list[SimulatedDraft]:
        """Return the drafts that a private chat shows."""
        return [
            draft
            for draft in self.world.visible_drafts.values()
            if draft.chat == chat and draft.until > self.world.clock()
        ]

    def answers(self, press: str) -> Raw | None:
        """Return the bot's answer to a press."""
        return self.world.presses[press]

    async def wait_for_messages(
        self, count: int, *, chat: int | None = None, seconds: float = TIMEOUT_SECONDS
    ) -> list[Post]:
        """Wait until the bot has sent `count` messages; raises TimeoutError."""
        await self.wait_until(lambda: len(self.messages(chat)) >= count, seconds=seconds)
        return self.messages(chat)

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until a condition holds, checked after every call; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            await self.world.wait_until(condition)

    def messages_json(self, chat: int | None) -> list[dict[str, Any]]:
        """Return the bot's messages as JSON."""
        return [
            {
                "message_id": post.id,
                "chat": post.chat,
                "thread": post.thread,
                "text": post.text,
                "entities": post.raw.get("entities", []),
                "buttons": post.buttons,
                "reactions": post.raw.get("reactions", []),
                "history": post.history,
            }
            for post in self.messages(chat)
        ]

    def state(self) -> Raw:
        """Return the rest of the visible state: drafts, menu, webhook, rate-limited calls."""
        now = self.world.clock()
        drafts = [
            {"chat": draft.chat, "draft_id": draft.number, "text": draft.text, "seconds": draft.until - now}
            for draft in self.world.visible_drafts.values()
            if draft.until > now
        ]
        return {
            "drafts": drafts,
            "commands": self.methods.commands,
            "webhook": self.updates.info(),
            "too_fast": self.rate_limits.refused,
        }


@asynccontextmanager
async def simulate(*, port: int = 0, **options: Any) -> AsyncIterator[Simulator]:
    """Run a simulated Telegram on a loopback port, a free one by default."""
    simulator = Simulator(**options)
    application = simulator.server.application()
    # no access log: every path contains the token
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    simulator.port = int(runner.addresses[0][1])
    pushing = asyncio.create_task(simulator.updates.run_webhook())
    try:
        yield simulator
    finally:
        pushing.cancel()
        with suppress(asyncio.CancelledError):
            await pushing
        await runner.cleanup()

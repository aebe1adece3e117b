"""Rooms of the simulated platforms with several people, for stories that run on each of them.

What people say to the bot mentions it; a choice is a pressed button, or `/answer` on a platform without them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from channels.discord.simulator import Simulator as Discord
from channels.discord.simulator.run import simulate as simulate_discord
from channels.github.simulator import Simulator as GitHub
from channels.github.simulator import simulate as simulate_github
from channels.inbox.simulator import SimulatedPlatform
from channels.pancake.simulator import Simulator as Pancake
from channels.pancake.simulator import simulate as simulate_pancake
from channels.pancake.simulator.simulator import COMMENTS, INBOX
from channels.slack.simulator import Simulator as Slack
from channels.slack.simulator.run import simulate as simulate_slack
from channels.telegram.simulator import Simulator as Telegram
from channels.telegram.simulator import simulate as simulate_telegram
from channels.zalo.simulator import Simulator as Zalo
from channels.zalo.simulator import simulate as simulate_zalo

SECONDS = 60.0  # on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomMessage:
    """A message of the bot as people see it."""

    id: str
    room: str
    thread: str | None
    text: str
    buttons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody in the room; `number` makes the id."""

    name: str
    number: int


ADA, BOB, CAROL = Person("Ada", 7), Person("Bob", 8), Person("Carol", 9)


class GroupRoom(ABC):
    """A thread of a room on one platform; `thread` is None on a platform without threads.

    `needs_hook`: the platform must be told where to post what happens.
    """

    kind: str
    room: str
    thread: str | None = None
    needs_hook = False
    has_private_chats = True

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the channel's settings."""

    @abstractmethod
    def id_of(self, person: Person) -> str:
        """Return the id by which the bot knows a person."""

    @abstractmethod
    async def say(self, person: Person, text: str, *, to_bot: bool = False) -> None:
        """Say something in the thread."""

    @abstractmethod
    async def say_privately(self, person: Person, text: str) -> None:
        """Say something to the bot alone."""

    @abstractmethod
    def all_messages(self) -> list[RoomMessage]:
        """Return the messages of the bot, in order."""

    @abstractmethod
    async def wait_until(self, condition: Callable[[], bool], *, seconds: float) -> None:
        """Wait until a condition about the platform is true; raises TimeoutError."""

    @abstractmethod
    async def choose(self, person: Person, question: RoomMessage, number: int) -> str:
        """Choose the answer of this number, and return what the person is told."""

    def set_hook(self, url: str) -> None:
        """Post what happens to this address, on a platform that must be told it."""
        raise NotImplementedError(f"{self.kind} needs no address: {url}")

    def messages(self) -> list[RoomMessage]:
        """Return the messages of the bot in the room, in all its threads."""
        return [one for one in self.all_messages() if one.room == self.room]

    async def wait_for(self, words: str, *, private: bool = False) -> RoomMessage:
        """Wait for a message of the bot with these words in the room, or in a private chat."""

        def found() -> list[RoomMessage]:
            said = [one for one in self.all_messages() if (one.room != self.room) is private]
            return [one for one in said if words in one.text]

        try:
            await self.wait_until(lambda: bool(found()), seconds=SECONDS)
        except TimeoutError:
            said = [(one.room, one.text) for one in self.all_messages()]
            raise AssertionError(f"nobody said {words!r}: {said}") from None
        return found()[-1]


class _TelegramRoom(GroupRoom):
    """A topic of a forum."""

    kind = "telegram"
    forum = -1_000_000_004_711

    def __init__(self, platform: Telegram, topic: int) -> None:
        self._platform = platform
        self.room, self.thread = str(self.forum), str(topic)

    def settings(self) -> dict[str, Any]:
        return self._platform.settings()

    def id_of(self, person: Person) -> str:
        return str(person.number)

    async def say(self, person: Person, text: str, *, to_bot: bool = False) -> None:
        said = f"@dovecote_bot {text}" if to_bot else text
        topic = int(str(self.thread))
        await self._platform.say(self.forum, said, user=person.number, name=person.name, thread=topic)

    async def say_privately(self, person: Person, text: str) -> None:
        await self._platform.say(person.number, text, user=person.number, name=person.name)

    def all_messages(self) -> list[RoomMessage]:
        return [
            RoomMessage(
                id=str(one.id),
                room=str(one.chat),
                thread=str(one.thread) if one.thread else None,
                text=one.text,
                buttons=tuple(button["callback_data"] for button in one.buttons),
            )
            for one in self._platform.messages()
        ]

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float) -> None:
        await self._platform.wait_until(condition, seconds=seconds)

    async def choose(self, person: Person, question: RoomMessage, number: int) -> str:
        data = question.buttons[number - 1]
        platform = self._platform
        press = await platform.press(self.forum, int(question.id), data, user=person.number)
        await self.wait_until(lambda: platform.answers(press) is not None, seconds=SECONDS)
        return str((platform.answers(press) or {})["text"])


class _SlackRoom(GroupRoom):
    """A thread of a channel."""

    kind = "slack"
    room = "C0ROOM"

    def __init__(self, platform: Slack) -> None:
        self._platform = platform
        platform.world.trigger_seconds = platform.poster.timeout = SECONDS
        platform.world.room(self.room)
        self.thread = platform.world.post(self.room, "U0DAN", {"text": "long ago"}).ts

    def settings(self) -> dict[str, Any]:
        return self._platform.settings()

    def id_of(self, person: Person) -> str:
        return f"U0{person.name.upper()}"

    async def say(self, person: Person, text: str, *, to_bot: bool = False) -> None:
        said = f"<@U0BOT> {text}" if to_bot else text
        await self._platform.say(self.room, said, user=self.id_of(person), thread=self.thread)

    async def say_privately(self, person: Person, text: str) -> None:
        await self._platform.say(f"D0{person.name.upper()}", text, user=self.id_of(person))

    def all_messages(self) -> list[RoomMessage]:
        return [
            RoomMessage(
                id=one.ts,
                room=one.room,
                thread=one.thread,
                text=one.text,
                buttons=tuple(str(button.get("value")) for button in one.buttons),
            )
            for one in self._platform.messages()
        ]

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float) -> None:
        await self._platform.wait_until(condition, seconds=seconds)

    async def choose(self, person: Person, question: RoomMessage, number: int) -> str:
        notices = self._platform.world.notices
        before = len(notices)
        value, author = question.buttons[number - 1], self.id_of(person)
        await self._platform.press(self.room, question.id, value, user=author)
        await self.wait_until(lambda: len(notices) > before, seconds=SECONDS)
        assert notices[-1]["user"] == author
        return str(notices[-1]["text"])


class _DiscordRoom(GroupRoom):
    """A thread of a server's channel."""

    kind = "discord"
    channel = 4004

    def __init__(self, platform: Discord, thread: int) -> None:
        self._platform = platform
        self.room, self.thread = str(self.channel), str(thread)

    def settings(self) -> dict[str, Any]:
        return self._platform.settings()

    def id_of(self, person: Person) -> str:
        return str(person.number)

    async def say(self, person: Person, text: str, *, to_bot: bool = False) -> None:
        said = f"<@{self._platform.world.bot['id']}> {text}" if to_bot else text
        await self._platform.say(self.channel, said, user=person.number, thread=int(str(self.thread)))

    async def say_privately(self, person: Person, text: str) -> None:
        await self._platform.say(4700 + person.number, text, user=person.number)

    def all_messages(self) -> list[RoomMessage]:
        return [
            RoomMessage(
                id=one.id,
                room=str(one.chat),
                thread=str(one.thread) if one.thread else None,
                text=one.text,
                buttons=tuple(str(button.get("custom_id")) for button in one.buttons),
            )
            for one in self._platform.messages()
        ]

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float) -> None:
        await self._platform.wait_until(condition, seconds=seconds)

    async def choose(self, person: Person, question: RoomMessage, number: int) -> str:
        pressed = await self._platform.press(
            int(str(self.thread)), question.id, question.buttons[number - 1], user=person.number
        )
        await self.wait_until(lambda: bool(pressed.notices), seconds=SECONDS)
        return pressed.notices[-1]


class _InboxRoom(GroupRoom):
    """A room of a platform without buttons, to which the platform posts what happens."""

    needs_hook = True

    def __init__(self, platform: SimulatedPlatform) -> None:
        self._inbox = platform

    def set_hook(self, url: str) -> None:
        self._inbox.hook_url = url

    def all_messages(self) -> list[RoomMessage]:
        return [
            RoomMessage(id=one.id, room=one.room, thread=one.thread, text=one.text)
            for one in self._inbox.messages()
        ]

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float) -> None:
        await self._inbox.wait_until(condition, seconds=seconds)

    async def choose(self, person: Person, question: RoomMessage, number: int) -> str:
        found = re.search(r"apr_\w+", question.text)
        assert found is not None, question.text
        before = len(self.messages())
        await self.say(person, f"/answer {found.group()} {number}")
        await self.wait_until(lambda: len(self.messages()) > before, seconds=SECONDS)
        return self.messages()[before].text


class _GitHubRoom(_InboxRoom):
    """An issue, in public: GitHub has no private chats."""

    kind = "github"
    room = "octo/loft"
    thread = "1"
    has_private_chats = False

    def __init__(self, platform: GitHub) -> None:
        super().__init__(platform)
        self._platform = platform

    def settings(self) -> dict[str, Any]:
        posts = {"mode": "webhook", "webhook_secret": self._platform.secret, "sends_per_second": 100}
        return self._platform.settings(groups="mention", **posts)

    def id_of(self, person: Person) -> str:
        return str(1000 + person.number)

    async def say(self, person: Person, text: str, *, to_bot: bool = False) -> None:
        user = {"login": person.name.lower(), "id": 1000 + person.number, "type": "User"}
        await self._platform.say("", f"@dovecote {text}" if to_bot else text, user=user)

    async def say_privately(self, person: Person, text: str) -> None:
        raise NotImplementedError("GitHub has no private chats")


class _ZaloRoom(_InboxRoom):
    """A group of the Bot Platform."""

    kind = "zalo"
    room = "group-1"

    def __init__(self, platform: Zalo) -> None:
        super().__init__(platform)
        self._platform = platform
        platform.members.add(self.room)

    def settings(self) -> dict[str, Any]:
        return self._platform.settings(mode="webhook", webhook_secret="a-webhook-secret")

    def id_of(self, person: Person) -> str:
        return f"{person.name.lower()}-{person.number}"

    async def say(self, person: Person, text: str, *, to_bot: bool = False) -> None:
        said = f"@Bot Dove {text}" if to_bot else text
        await self._write(person, said, chat=self.room, chat_type="GROUP")

    async def say_privately(self, person: Person, text: str) -> None:
        self._platform.members.add(f"chat-{person.number}")
        await self._write(person, text, chat=f"chat-{person.number}")

    async def _write(self, person: Person, text: str, **place: str) -> None:
        update = self._platform.update("text", text=text, author=self.id_of(person), **place)
        update["message"]["from"]["display_name"] = person.name
        await self._platform.push(update)


class _PancakeRoom(_InboxRoom):
    """The comments below a post of a page."""

    kind = "pancake"
    room = COMMENTS

    def __init__(self, platform: Pancake) -> None:
        super().__init__(platform)
        self._platform = platform

    def settings(self) -> dict[str, Any]:
        return self._platform.settings(mode="webhook", catch_up_seconds=1, page_name="The Loft")

    def id_of(self, person: Person) -> str:
        return f"{person.name.lower()}-{person.number}"

    async def say(self, person: Person, text: str, *, to_bot: bool = False) -> None:
        said = f"@The Loft {text}" if to_bot else text
        await self._platform.write(self.room, said, author=self._author(person))

    async def say_privately(self, person: Person, text: str) -> None:
        await self._platform.write(INBOX, text, author=self._author(person))

    def _author(self, person: Person) -> dict[str, Any]:
        return {"id": self.id_of(person), "name": person.name}


@asynccontextmanager
async def open_group_room(kind: str) -> AsyncIterator[GroupRoom]:
    """Run the simulator of a platform with a room in which several people write."""
    match kind:
        case "telegram":
            async with simulate_telegram() as telegram:
                await telegram.group(_TelegramRoom.forum, forum=True)
                yield _TelegramRoom(telegram, await telegram.topic(_TelegramRoom.forum))
        case "slack":
            async with simulate_slack() as slack:
                yield _SlackRoom(slack)
        case "discord":
            async with simulate_discord() as discord:
                await discord.server_channel(_DiscordRoom.channel)
                yield _DiscordRoom(discord, await discord.thread(_DiscordRoom.channel))
        case "github":
            async with simulate_github() as github:
                yield _GitHubRoom(github)
        case "zalo":
            async with simulate_zalo() as zalo:
                yield _ZaloRoom(zalo)
        case "pancake":
            async with simulate_pancake() as pancake:
                yield _PancakeRoom(pancake)
        case _:
            raise ValueError(f"there is no room for {kind!r}")

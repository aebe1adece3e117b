"""Rooms of the simulated platforms with several people, for stories that run on each of them.

What people say to the bot mentions it; a choice is a pressed button, or `/answer` on a platform without them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from channels.discord.simulator import Simulator as Discord
from channels.discord.simulator.run import simulate as simulate_discord
from channels.slack.simulator import Simulator as Slack
from channels.slack.simulator.run import simulate as simulate_slack
from channels.telegram.simulator import Simulator as Telegram
from channels.telegram.simulator import simulate as simulate_telegram
from group_room import SECONDS, BotMessage, GroupRoom, RoomPerson
from inbox_rooms import open_inbox_room


class _TelegramRoom(GroupRoom):
    """A topic of a forum."""

    kind = "telegram"
    forum = -1_000_000_004_711

    def __init__(self, platform: Telegram, topic: int) -> None:
        self._platform = platform
        self.room, self.thread = str(self.forum), str(topic)

    def settings(self) -> dict[str, Any]:
        return self._platform.settings()

    def id_of(self, person: RoomPerson) -> str:
        return str(person.number)

    async def say(self, person: RoomPerson, text: str, *, to_bot: bool = False) -> None:
        said = f"@dovecote_bot {text}" if to_bot else text
        topic = int(str(self.thread))
        await self._platform.say(self.forum, said, user=person.number, name=person.name, thread=topic)

    async def say_privately(self, person: RoomPerson, text: str) -> None:
        await self._platform.say(person.number, text, user=person.number, name=person.name)

    async def open_private_chat(self, person: RoomPerson) -> None:
        self._platform.world.room(person.number)

    def texts_for(self, person: RoomPerson) -> list[str]:
        return [one.text for one in self.all_messages() if one.room == str(person.number)]

    def all_messages(self) -> list[BotMessage]:
        return [
            BotMessage(
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

    async def choose(self, person: RoomPerson, question: BotMessage, number: int) -> str:
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

    def id_of(self, person: RoomPerson) -> str:
        return f"U0{person.name.upper()}"

    async def say(self, person: RoomPerson, text: str, *, to_bot: bool = False) -> None:
        said = f"<@U0BOT> {text}" if to_bot else text
        await self._platform.say(self.room, said, user=self.id_of(person), thread=self.thread)

    async def say_privately(self, person: RoomPerson, text: str) -> None:
        await self._platform.say(f"D0{person.name.upper()}", text, user=self.id_of(person))

    def texts_for(self, person: RoomPerson) -> list[str]:
        notices = self._platform.world.notices
        return [str(one["text"]) for one in notices if one["user"] == self.id_of(person)]

    def all_messages(self) -> list[BotMessage]:
        return [
            BotMessage(
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

    async def choose(self, person: RoomPerson, question: BotMessage, number: int) -> str:
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

    def id_of(self, person: RoomPerson) -> str:
        return str(person.number)

    async def say(self, person: RoomPerson, text: str, *, to_bot: bool = False) -> None:
        said = f"<@{self._platform.world.bot['id']}> {text}" if to_bot else text
        await self._platform.say(self.channel, said, user=person.number, thread=int(str(self.thread)))

    async def say_privately(self, person: RoomPerson, text: str) -> None:
        await self._platform.say(4700 + person.number, text, user=person.number)

    async def ask_for_sign_in(self, person: RoomPerson) -> None:
        await self._platform.command(int(str(self.thread)), "signin", user=person.number)

    def texts_for(self, person: RoomPerson) -> list[str]:
        asked = self._platform.world.interactions.values()
        shown = [
            text
            for one in asked
            for text in one.notices
            if (one.person or {}).get("id") == self.id_of(person)
        ]
        return [*shown, *(one.text for one in self.all_messages() if one.room == str(person.number))]

    def all_messages(self) -> list[BotMessage]:
        return [
            BotMessage(
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

    async def choose(self, person: RoomPerson, question: BotMessage, number: int) -> str:
        pressed = await self._platform.press(
            int(str(self.thread)), question.id, question.buttons[number - 1], user=person.number
        )
        await self.wait_until(lambda: bool(pressed.notices), seconds=SECONDS)
        return pressed.notices[-1]


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
        case _:
            async with open_inbox_room(kind) as room:
                yield room

"""Rooms of the simulated inboxes with several people, for stories that run on each platform."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from channels.github.simulator import Simulator as GitHub
from channels.github.simulator import simulate as simulate_github
from channels.inbox.simulator import SimulatedPlatform
from channels.pancake.simulator import Simulator as Pancake
from channels.pancake.simulator import simulate as simulate_pancake
from channels.pancake.simulator.simulator import COMMENTS, INBOX
from channels.zalo.simulator import Simulator as Zalo
from channels.zalo.simulator import simulate as simulate_zalo
from group_room import SECONDS, BotMessage, GroupRoom, RoomPerson


class _InboxRoom(GroupRoom):
    """A room of a platform without buttons, to which the platform posts what happens."""

    needs_hook = True

    def __init__(self, platform: SimulatedPlatform) -> None:
        self._inbox = platform

    def set_hook(self, url: str) -> None:
        self._inbox.hook_url = url

    def all_messages(self) -> list[BotMessage]:
        return [
            BotMessage(id=one.id, room=one.room, thread=one.thread, text=one.text)
            for one in self._inbox.messages()
        ]

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float) -> None:
        await self._inbox.wait_until(condition, seconds=seconds)

    async def choose(self, person: RoomPerson, question: BotMessage, number: int) -> str:
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

    def id_of(self, person: RoomPerson) -> str:
        return str(1000 + person.number)

    async def say(self, person: RoomPerson, text: str, *, to_bot: bool = False) -> None:
        user = {"login": person.name.lower(), "id": 1000 + person.number, "type": "User"}
        await self._platform.say("", f"@dovecote {text}" if to_bot else text, user=user)

    async def say_privately(self, person: RoomPerson, text: str) -> None:
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

    def id_of(self, person: RoomPerson) -> str:
        return f"{person.name.lower()}-{person.number}"

    async def say(self, person: RoomPerson, text: str, *, to_bot: bool = False) -> None:
        said = f"@Bot Dove {text}" if to_bot else text
        await self._write(person, said, chat=self.room, chat_type="GROUP")

    async def say_privately(self, person: RoomPerson, text: str) -> None:
        self._platform.members.add(f"chat-{person.number}")
        await self._write(person, text, chat=f"chat-{person.number}")

    async def _write(self, person: RoomPerson, text: str, **place: str) -> None:
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

    def id_of(self, person: RoomPerson) -> str:
        return f"{person.name.lower()}-{person.number}"

    async def say(self, person: RoomPerson, text: str, *, to_bot: bool = False) -> None:
        said = f"@The Loft {text}" if to_bot else text
        await self._platform.write(self.room, said, author=self._author(person))

    async def say_privately(self, person: RoomPerson, text: str) -> None:
        await self._platform.write(INBOX, text, author=self._author(person))

    def _author(self, person: RoomPerson) -> dict[str, Any]:
        return {"id": self.id_of(person), "name": person.name}


@asynccontextmanager
async def open_inbox_room(kind: str) -> AsyncIterator[GroupRoom]:
    """Run the simulator of an inbox with a room in which several people write."""
    match kind:
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

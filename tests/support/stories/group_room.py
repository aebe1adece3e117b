"""A room of a simulated platform with several people, as a story uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SECONDS = 60.0  # on a busy machine


@dataclass(frozen=True, slots=True, kw_only=True)
class BotMessage:
    """A message of the bot as people see it."""

    id: str
    room: str
    thread: str | None
    text: str
    buttons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoomPerson:
    """A person in the room; `number` makes the id."""

    name: str
    number: int


ADA, BOB, CAROL = RoomPerson("Ada", 7), RoomPerson("Bob", 8), RoomPerson("Carol", 9)


class GroupRoom(ABC):
    """A thread of a room on one platform; `thread` is None on a platform without threads.

    `needs_hook`: the platform needs the address to which it posts what happens.
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
    def id_of(self, person: RoomPerson) -> str:
        """Return the id by which the bot identifies a person."""

    @abstractmethod
    async def say(self, person: RoomPerson, text: str, *, to_bot: bool = False) -> None:
        """Say something in the thread."""

    @abstractmethod
    async def say_privately(self, person: RoomPerson, text: str) -> None:
        """Say something to the bot alone."""

    @abstractmethod
    def all_messages(self) -> list[BotMessage]:
        """Return the messages of the bot, in order."""

    @abstractmethod
    async def wait_until(self, condition: Callable[[], bool], *, seconds: float) -> None:
        """Wait until a condition about the platform is true; raises TimeoutError."""

    @abstractmethod
    async def choose(self, person: RoomPerson, question: BotMessage, number: int) -> str:
        """Choose the answer of this number, and return the text that the person gets."""

    async def open_private_chat(self, person: RoomPerson) -> None:
        """Let a person begin a chat with the bot, where it may not begin one."""
        del person

    async def ask_for_sign_in(self, person: RoomPerson) -> None:
        """Give the command `/signin` in the thread as a person."""
        await self.say(person, "/signin", to_bot=True)

    def texts_for(self, person: RoomPerson) -> list[str]:
        """Return what the bot has said so that this person alone saw it."""
        raise NotImplementedError(f"{self.kind} shows everything to everybody: {person.name}")

    def set_hook(self, url: str) -> None:
        """Post what happens to this address, on a platform that needs it."""
        raise NotImplementedError(f"{self.kind} needs no address: {url}")

    def messages(self) -> list[BotMessage]:
        """Return the messages of the bot in the room, in all its threads."""
        return [one for one in self.all_messages() if one.room == self.room]

    async def wait_for(self, words: str, *, private: bool = False) -> BotMessage:
        """Wait for a message of the bot with these words in the room, or in a private chat."""

        def found() -> list[BotMessage]:
            said = [one for one in self.all_messages() if (one.room != self.room) is private]
            return [one for one in said if words in one.text]

        try:
            await self.wait_until(lambda: bool(found()), seconds=SECONDS)
        except TimeoutError:
            said = [(one.room, one.text) for one in self.all_messages()]
            raise AssertionError(f"nobody said {words!r}: {said}") from None
        return found()[-1]

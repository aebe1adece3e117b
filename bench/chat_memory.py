"""Memory of a gateway over many messages: what it holds at the start, and what it holds in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.gateway_setup import Stage, stage
from bench.meters import resident
from channels.telegram.simulator import Simulator

FIRST_CHAT = 5000
AT_ONCE = 20
PATIENCE = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Resident megabytes of the gateway's process: after a warm-up, at its highest, and after all of it."""

    messages: int
    start: float
    most: float
    end: float

    @property
    def grown(self) -> float:
        """Megabytes more than at the start."""
        return self.end - self.start


async def measure(directory: Path, *, messages: int, warm: int = 200, chats: int = 50) -> Growth:
    """Have so many messages answered, after a warm-up, in so many chats at a time."""
    async with stage(directory) as ground:
        talk = Talk(ground, chats)
        await talk.say(warm)
        start = most = resident(ground.gateway.pid)
        for _ in range(10):
            await talk.say(messages // 10)
            most = max(most, resident(ground.gateway.pid))
        end = resident(ground.gateway.pid)
    return Growth(messages=messages, start=start, most=most, end=end)


class Talk:
    """People who say one thing after the other and wait for each answer; what was answered is forgotten."""

    def __init__(self, ground: Stage, chats: int) -> None:
        self._platform: Simulator = ground.platform
        self._chats = [FIRST_CHAT + place for place in range(chats)]
        self._said = 0

    async def say(self, number: int) -> None:
        """Have so many messages answered."""
        left = iter(range(number))
        async with asyncio.TaskGroup() as group:
            for chat in self._chats[:AT_ONCE]:
                group.create_task(self._speak(chat, left))
        self._chats = self._chats[AT_ONCE:] + self._chats[:AT_ONCE]

    async def _speak(self, chat: int, left: Iterator[int]) -> None:
        for _ in left:
            self._said += 1
            await self._platform.say(chat, f"message {self._said}")
            await self._platform.wait_for_messages(1, chat=chat, seconds=PATIENCE)
            posts = self._platform.world.posts
            for post in [post for post in posts if post[0] == chat]:
                del posts[post]

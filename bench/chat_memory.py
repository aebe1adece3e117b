"""Measure a gateway's memory before, during and after many messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.gateway_setup import BenchGateway, open_bench_gateway
from bench.meters import resident
from channels.telegram.simulator import Simulator

FIRST_CHAT = 5000
AT_ONCE = 20
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """Resident megabytes of the gateway's process: after a warm-up, at the maximum, and at the end."""

    messages: int
    start: float
    most: float
    end: float

    @property
    def grown(self) -> float:
        """Megabytes more than at the start."""
        return self.end - self.start


async def measure(directory: Path, *, messages: int, warm: int = 200, chats: int = 50) -> MemoryGrowth:
    """Have so many messages answered, after a warm-up, in so many chats at a time."""
    async with open_bench_gateway(directory) as deployment:
        talk = ChatUsers(deployment, chats)
        await talk.send_messages(warm)
        start = most = resident(deployment.gateway.pid)
        for _ in range(10):
            await talk.send_messages(messages // 10)
            most = max(most, resident(deployment.gateway.pid))
        end = resident(deployment.gateway.pid)
    return MemoryGrowth(messages=messages, start=start, most=most, end=end)


class ChatUsers:
    """Users who send one message after the other and wait for each answer; answered ones are not kept."""

    def __init__(self, setup: BenchGateway, chats: int) -> None:
        self._platform: Simulator = setup.platform
        self._chats = [FIRST_CHAT + place for place in range(chats)]
        self._said = 0

    async def send_messages(self, number: int) -> None:
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
            await self._platform.wait_for_messages(1, chat=chat, seconds=TIMEOUT_SECONDS)
            posts = self._platform.world.posts
            for post in [post for post in posts if post[0] == chat]:
                del posts[post]

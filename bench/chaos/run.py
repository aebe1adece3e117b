"""A chaos run: people talk in many chats while gateways and brokers are killed at random moments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.rig import Rig, rig
from bench.chaos.tally import Tally, count, mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `errors` and `repeats` are the shares of platform errors and of repeated updates."""

    turns: int = 200
    conversations: int = 20
    gateway_kills: int = 5
    nats_kills: int = 2
    replicas: int = 1
    seed: int = 1
    errors: float = 0.0
    repeats: float = 0.0
    patience: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a run; `recovery` is the slowest start after a kill, in seconds."""

    plan: Plan
    tally: Tally
    gateway_kills: int
    nats_kills: int
    recovery: float
    stuck: int


async def run(plan: Plan, directory: Path) -> Report:
    """Run a plan in an empty directory."""
    directory.mkdir(parents=True, exist_ok=True)
    async with rig(directory, replicas=plan.replicas) as ground:
        people = _People(ground, plan)
        async with _killing(ground, plan):
            await people.talk()
        stuck = await people.wait()
        answers = {chat: [post.text for post in ground.platform.messages(chat)] for chat in people.asked}
        conversations = await ground.conversations()
        logs = {
            chat: await ground.log_of(conversations[chat]) for chat in people.asked if chat in conversations
        }
        return Report(
            plan=plan,
            tally=count(answers, logs, asked=people.asked),
            gateway_kills=ground.gateway_kills,
            nats_kills=ground.nats_kills,
            recovery=max(ground.recoveries, default=0.0),
            stuck=stuck,
        )


class _People:
    """Everybody who talks: each says the next thing once there are no more than two unanswered."""

    def __init__(self, ground: Rig, plan: Plan) -> None:
        self._ground = ground
        self._plan = plan
        self._random = random.Random(plan.seed)
        self.asked = {1000 + place: 0 for place in range(plan.conversations)}

    async def talk(self) -> None:
        """Say everything there is to say, spread over the time the kills take."""
        async with asyncio.TaskGroup() as group:
            for place, chat in enumerate(self.asked):
                share = self._plan.turns // self._plan.conversations
                extra = place < self._plan.turns % self._plan.conversations
                group.create_task(self._talk_in(chat, share + extra))

    async def _talk_in(self, chat: int, number: int) -> None:
        pause = self._plan.gateway_kills * 4.0 / max(number, 1)
        for place in range(number):
            await self._ground.platform.say(chat, f"!echo {mark(chat, place)}")
            self.asked[chat] += 1
            if self._random.random() < self._plan.errors:
                await self._ground.platform.fail(500, method="sendMessage", chat=chat)
            await asyncio.sleep(self._random.uniform(0, 2 * pause))

    async def wait(self) -> int:
        """Wait until everybody is answered; returns how many chats still wait when patience ends."""
        try:
            await self._ground.platform.wait_until(lambda: not self._waiting(), seconds=self._plan.patience)
        except TimeoutError:
            return len(self._waiting())
        return 0

    def _waiting(self) -> list[int]:
        return [
            chat
            for chat, number in self.asked.items()
            if number
            and not any(mark(chat, number - 1) in post.text for post in self._ground.platform.messages(chat))
        ]


@asynccontextmanager
async def _killing(ground: Rig, plan: Plan) -> AsyncIterator[None]:
    """Kill at random moments while the block runs, and finish the planned number of kills."""
    chance = random.Random(plan.seed + 1)
    order = ["gateway"] * plan.gateway_kills + ["nats"] * plan.nats_kills
    chance.shuffle(order)

    async def kill_all() -> None:
        for what in order:
            await asyncio.sleep(chance.uniform(0.3, 2.5))
            if what == "gateway":
                await ground.kill_gateway(chance.randrange(plan.replicas))
            else:
                await ground.kill_nats()

    async with asyncio.TaskGroup() as group:
        group.create_task(kill_all())
        yield

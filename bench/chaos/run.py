"""A chaos run: people talk in many chats while gateways and brokers are killed at random moments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.deployment import Rig, rig
from bench.chaos.tally import Tally, count
from bench.chaos.users import People

TOLD_EVERY = 5.0
"""Seconds between words on how far a run is."""

SECONDS_A_KILL = 4.0
"""How long a kill takes with its pause, roughly: people spread what they say over so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `errors` and `repeats` are the shares of platform errors and of repeated updates.

    `freezes`: how often a replica is stopped past its leases' life, which `env` may shorten. A run in which
    nobody is answered for `patience` seconds after the last kill has stuck chats.
    """

    turns: int = 200
    conversations: int = 20
    gateway_kills: int = 5
    nats_kills: int = 2
    freezes: int = 0
    frozen_seconds: float = 4.0
    replicas: int = 1
    seed: int = 1
    errors: float = 0.0
    repeats: float = 0.0
    patience: float = 120.0
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def deadline(self) -> float:
        """Seconds after which a run is broken off whatever it is waiting for."""
        disturbances = self.gateway_kills + self.nats_kills + self.freezes
        return 120.0 + 30.0 * disturbances + 2 * self.patience


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a run; `recovery` is the slowest start after a kill, in seconds."""

    plan: Plan
    tally: Tally
    gateway_kills: int
    nats_kills: int
    freezes: int
    errors: int
    repeats: int
    recovery: float
    stuck: int


def _silent(_: str) -> None:
    """Tell nobody."""


async def run(plan: Plan, directory: Path, *, tell: Callable[[str], None] = _silent) -> Report:
    """Run a plan in an empty directory; raises TimeoutError when even its deadline passes."""
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - before anything runs
    async with asyncio.timeout(plan.deadline), rig(directory, replicas=plan.replicas, env=plan.env) as ground:
        people = People(
            ground.platform,
            chats=plan.conversations,
            errors=plan.errors,
            repeats=plan.repeats,
            seed=plan.seed,
        )
        async with _told(ground, people, plan, tell):
            async with _killing(ground, plan):
                await people.talk(plan.turns, within=_duration(plan))
            stuck = await people.wait(plan.patience)
        return Report(
            plan=plan,
            tally=await _tally(ground, people),
            gateway_kills=ground.gateway_kills,
            nats_kills=ground.nats_kills,
            freezes=ground.freezes,
            errors=people.errors,
            repeats=people.repeats,
            recovery=max(ground.recoveries, default=0.0),
            stuck=stuck,
        )


def _duration(plan: Plan) -> float:
    return SECONDS_A_KILL * (plan.gateway_kills + plan.nats_kills / 2 + 2 * plan.freezes)


async def _tally(ground: Rig, people: People) -> Tally:
    conversations = await ground.conversations()
    logs = {}
    for chat, asked in people.asked.items():
        if chat in conversations:
            await ground.until_relayed(conversations[chat], ended=asked)
            logs[chat] = await ground.log_of(conversations[chat])
    answers = {chat: [post.text for post in ground.platform.messages(chat)] for chat in people.asked}
    return count(answers, logs, asked=people.asked)


@asynccontextmanager
async def _told(ground: Rig, people: People, plan: Plan, tell: Callable[[str], None]) -> AsyncIterator[None]:
    """Tell how far the run is while the block runs."""

    async def tell_regularly() -> None:
        while True:
            await asyncio.sleep(TOLD_EVERY)
            said, answered = sum(people.asked.values()), people.answered()
            kills = f"{ground.gateway_kills} gateway and {ground.nats_kills} nats kills"
            tell(f"  said {said} of {plan.turns}, answered {answered}, {kills}, {ground.freezes} freezes")

    telling = asyncio.create_task(tell_regularly())
    try:
        yield
    finally:
        telling.cancel()


@asynccontextmanager
async def _killing(ground: Rig, plan: Plan) -> AsyncIterator[None]:
    """Kill at random moments while the block runs, and finish the planned number of kills."""
    chance = random.Random(plan.seed + 1)
    order = ["gateway"] * plan.gateway_kills + ["nats"] * plan.nats_kills + ["freeze"] * plan.freezes
    chance.shuffle(order)

    async def kill_all() -> None:
        for what in order:
            await asyncio.sleep(chance.uniform(0.3, 2.5))
            if what == "nats":
                await ground.kill_nats()
            elif what == "gateway":
                await ground.kill_gateway(chance.randrange(plan.replicas))
            else:
                await ground.freeze_gateway(chance.randrange(plan.replicas), plan.frozen_seconds)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill_all())
        yield

"""A chaos run: users write in many chats while gateways and brokers are killed at random moments."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.deployment import Deployment, open_deployment
from bench.chaos.tally import Tally, count
from bench.chaos.users import ChaosUsers

REPORT_SECONDS = 5.0
"""Seconds between words on how far a run is."""

SECONDS_A_KILL = 4.0
"""How long a kill takes with its pause, roughly: people spread what they say over so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosPlan:
    """What to run. `errors` and `repeats` are the shares of platform errors and of repeated updates.

    `freezes`: how often a replica is stopped for longer than its leases live, which `env` may shorten. If no
    user is answered for `patience` seconds after the last kill, the unanswered chats are stuck. Replicas are
    an earlier version, the checkout `upgrade_from`, until their first kill.
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
    upgrade_from: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def deadline(self) -> float:
        """Seconds after which a run is aborted."""
        disturbances = self.gateway_kills + self.nats_kills + self.freezes
        return 120.0 + 30.0 * disturbances + 2 * self.patience


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosReport:
    """The result of a run; `recovery` is the slowest start after a kill, in seconds."""

    plan: ChaosPlan
    tally: Tally
    gateway_kills: int
    nats_kills: int
    freezes: int
    errors: int
    repeats: int
    recovery: float
    stuck: int


def _report_nothing(_: str) -> None:
    """Report nothing."""


async def run(
    plan: ChaosPlan, directory: Path, *, report_progress: Callable[[str], None] = _report_nothing
) -> ChaosReport:
    """Run a plan in an empty directory; raises TimeoutError when its deadline passes."""
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - before anything runs
    async with (
        asyncio.timeout(plan.deadline),
        open_deployment(
            directory, replicas=plan.replicas, env=plan.env, upgrade_from=plan.upgrade_from
        ) as deployment,
    ):
        users = ChaosUsers(
            deployment.platform,
            chats=plan.conversations,
            errors=plan.errors,
            repeats=plan.repeats,
            seed=plan.seed,
        )
        async with _report_progress(deployment, users, plan, report_progress):
            async with _kill_at_random(deployment, plan):
                await users.send_all(plan.turns, within=_duration(plan))
            stuck = await users.wait(plan.patience)
        return ChaosReport(
            plan=plan,
            tally=await _tally(deployment, users),
            gateway_kills=deployment.gateway_kills,
            nats_kills=deployment.nats_kills,
            freezes=deployment.freezes,
            errors=users.errors,
            repeats=users.repeats,
            recovery=max(deployment.recoveries, default=0.0),
            stuck=stuck,
        )


def _duration(plan: ChaosPlan) -> float:
    return SECONDS_A_KILL * (plan.gateway_kills + plan.nats_kills / 2 + 2 * plan.freezes)


async def _tally(deployment: Deployment, users: ChaosUsers) -> Tally:
    conversations = await deployment.conversations()
    logs = {}
    for chat, asked in users.asked.items():
        if chat in conversations:
            await deployment.until_relayed(conversations[chat], ended=asked)
            logs[chat] = await deployment.log_of(conversations[chat])
    answers = {chat: [post.text for post in deployment.platform.messages(chat)] for chat in users.asked}
    return count(answers, logs, asked=users.asked)


@asynccontextmanager
async def _report_progress(
    deployment: Deployment, users: ChaosUsers, plan: ChaosPlan, report_progress: Callable[[str], None]
) -> AsyncIterator[None]:
    """Report the progress while the block runs."""

    async def tell_regularly() -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            said, answered = sum(users.asked.values()), users.answered()
            kills = f"{deployment.gateway_kills} gateway and {deployment.nats_kills} nats kills"
            report_progress(
                f"  said {said} of {plan.turns}, answered {answered}, {kills}, {deployment.freezes} freezes"
            )

    telling = asyncio.create_task(tell_regularly())
    try:
        yield
    finally:
        telling.cancel()


@asynccontextmanager
async def _kill_at_random(deployment: Deployment, plan: ChaosPlan) -> AsyncIterator[None]:
    """Kill at random moments while the block runs, and finish the planned number of kills."""
    chance = random.Random(plan.seed + 1)
    order = ["gateway"] * plan.gateway_kills + ["nats"] * plan.nats_kills + ["freeze"] * plan.freezes
    chance.shuffle(order)

    async def kill_all() -> None:
        for what in order:
            await asyncio.sleep(chance.uniform(0.3, 2.5))
            if what == "nats":
                await deployment.kill_nats()
            elif what == "gateway":
                await deployment.kill_gateway(chance.randrange(plan.replicas))
            else:
                await deployment.freeze_gateway(chance.randrange(plan.replicas), plan.frozen_seconds)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill_all())
        yield

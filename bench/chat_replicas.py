"""Two replicas, one of them killed or frozen while they deliver: what was lost, said twice or out of order.

Real gateways over PostgreSQL and a nats-server of their own, and a platform on loopback. Everybody asks for a
count that takes many messages; in the middle of them the replica that receives is killed or frozen. Then
somebody speaks: how long until the other replica answers is how long the bot was deaf.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from bench.chaos.deployment import KEYS, READY_WITHIN, roomy
from channels.registry import plugin
from gateway_process import GatewayProcess, channel_env
from postgres import cluster

FIRST_CHAT, LISTENER = 6000, 5999
LEASE = 2.0
"""Seconds a lease lives here; six by default."""

FROZEN = LEASE + 3.0
PATIENCE = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run: so many chats, in each of which somebody asks to count to `last`."""

    platform: Literal["telegram", "discord", "slack"]
    disturbance: Literal["kill", "freeze"]
    chats: int = 20
    last: int = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of it. `doubled` counts messages that stand there twice, `deaf` the seconds of silence."""

    plan: Plan
    deliveries: int
    lost: int
    reordered: int
    doubled: int
    doubled_in_one_chat: int
    deaf: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two gateways on one database and one broker, the first of which receives."""

    platform: Any
    replicas: Sequence[GatewayProcess]


@asynccontextmanager
async def pair(directory: Path, kind: str, *, env: Mapping[str, str] | None = None) -> AsyncIterator[Pair]:
    """Run a platform on loopback and two replicas that are its one bot."""
    async with AsyncExitStack() as stack:
        simulate = plugin(kind).simulate
        assert simulate is not None
        platform, settings = await stack.enter_async_context(simulate())
        nats = roomy(directory / "nats")
        await nats.start()
        stack.push_async_callback(nats.stop)
        shared = channel_env(kind, settings) | {
            "DOVECOTE_LOG_LEVEL": "warning",
            "DOVECOTE_LEASE_TTL": str(LEASE),
            "DOVECOTE_NATS_URL": nats.url.replace("://", f"://{nats.token}@"),
            "DOVECOTE_DATABASE_URL": stack.enter_context(cluster()).fresh(),
            "DOVECOTE_SECRET_KEYS": KEYS,
        }
        replicas = [
            GatewayProcess(directory / f"replica{place}", env=shared | dict(env or {})) for place in range(2)
        ]
        for process in replicas:
            stack.push_async_callback(process.stop)
            await process.start(wait=False)
            await process.until_ready(READY_WITHIN)
        yield Pair(platform=platform, replicas=replicas)


async def run(plan: Plan, directory: Path) -> Report:
    """Run a plan in an empty directory."""
    async with pair(directory, plan.platform) as two:
        chats = range(FIRST_CHAT, FIRST_CHAT + plan.chats)
        await _spoken_to(two.platform, "before")
        for chat in chats:
            await two.platform.say(chat, f"!seq 1 {plan.last}")
        # Everybody is heard before: a room that a bot has not seen yet cannot be read afterwards.
        await two.platform.wait_until(
            lambda: all(two.platform.messages(chat) for chat in chats), seconds=PATIENCE
        )
        async with _disturbed(two.replicas[0], plan.disturbance):
            deaf = await _spoken_to(two.platform, "after")
        await two.platform.wait_until(
            lambda: all(plan.last in _counted(two.platform, chat)[-1:] for chat in chats), seconds=PATIENCE
        )
        return _judged(plan, {chat: _texts(two.platform, chat) for chat in chats}, deaf)


@asynccontextmanager
async def _disturbed(process: GatewayProcess, how: str) -> AsyncIterator[None]:
    if how == "kill":
        await process.kill()
        yield
        return
    os.kill(process.pid, signal.SIGSTOP)
    thawing = asyncio.create_task(_thaw(process.pid))
    try:
        yield
    finally:
        await thawing


async def _thaw(pid: int) -> None:
    try:
        await asyncio.sleep(FROZEN)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _spoken_to(platform: Any, word: str) -> float:
    """Have somebody speak; return the seconds until the bot answers."""
    begun = time.perf_counter()
    await platform.say(LISTENER, f"!echo {word}")
    await platform.wait_until(lambda: word in "".join(_texts(platform, LISTENER)), seconds=PATIENCE)
    return time.perf_counter() - begun


def _texts(platform: Any, chat: int) -> list[str]:
    return [post.text for post in platform.messages(chat)]


def counted(texts: Sequence[str]) -> list[int]:
    """Return the numbers that were counted in these texts, one text after the other."""
    return [int(number) for text in texts for number in re.findall(r"^\d+$", text, re.MULTILINE)]


def _counted(platform: Any, chat: int) -> list[int]:
    return counted(_texts(platform, chat)[-1:])


def _judged(plan: Plan, said: Mapping[int, Sequence[str]], deaf: float) -> Report:
    expected = list(range(1, plan.last + 1))
    once = {chat: [text for text, _ in groupby(texts)] for chat, texts in said.items()}
    doubled = [len(texts) - len(once[chat]) for chat, texts in said.items()]
    numbers = {chat: counted(texts) for chat, texts in once.items()}
    return Report(
        plan=plan,
        deliveries=sum(len(texts) for texts in once.values()),
        lost=sum(len(set(expected) - set(found)) for found in numbers.values()),
        reordered=sum(found != expected for found in numbers.values()),
        doubled=sum(doubled),
        doubled_in_one_chat=max(doubled),
        deaf=deaf,
    )

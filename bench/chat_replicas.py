"""Kill or freeze one of two replicas while they deliver, and count lost, doubled and reordered messages.

Real gateways run over PostgreSQL and a nats-server of their own, with a platform on loopback. Each chat asks
for a count that takes many messages. In the middle of them the receiving replica is killed or frozen. Then a
user writes: the time until the other replica answers is how long the bot was not receiving.
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

import aiohttp

from bench.chaos.deployment import KEYS, READY_WITHIN, REPLICAS, large_nats_server
from channels.registry import plugin
from gateway_process import GatewayProcess, channel_env
from postgres import postgres_cluster

FIRST_CHAT, LISTENER = 6000, 5999
LEASE = 2.0
"""Seconds a lease lives here; six by default."""

FREEZE_SECONDS = LEASE + 3.0
TIMEOUT_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverPlan:
    """What to run: so many chats, in each of which a user asks to count to `last`."""

    platform: Literal["telegram", "discord", "slack"]
    disturbance: Literal["kill", "freeze"]
    chats: int = 20
    last: int = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverReport:
    """The result. `doubled` counts messages sent twice; `silent_seconds`: how long nothing was received."""

    plan: FailoverPlan
    deliveries: int
    lost: int
    reordered: int
    doubled: int
    doubled_in_one_chat: int
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPairSetup:
    """Two gateways on one database and one broker."""

    platform: Any
    replicas: Sequence[GatewayProcess]


@asynccontextmanager
async def open_pair(
    directory: Path, kind: str, *, env: Mapping[str, str] | None = None
) -> AsyncIterator[ReplicaPairSetup]:
    """Run a platform on loopback and two replicas that are its one bot."""
    async with AsyncExitStack() as stack:
        simulate = plugin(kind).simulate
        assert simulate is not None
        platform, settings = await stack.enter_async_context(simulate())
        nats = large_nats_server(directory / "nats")
        await nats.start()
        stack.push_async_callback(nats.stop)
        shared = channel_env(kind, settings) | {
            "DOVECOTE_LOG_LEVEL": "warning",
            "DOVECOTE_FILES__MESSAGES_BEFORE_FILE": "0",
            "DOVECOTE_LEASE_TTL": str(LEASE),
            "DOVECOTE_NATS_URL": nats.url.replace("://", f"://{nats.token}@"),
            "DOVECOTE_DATABASE_URL": stack.enter_context(postgres_cluster()).create_database(),
            "DOVECOTE_SECRET_KEYS": KEYS,
            **REPLICAS,
        }
        replicas = [
            GatewayProcess(directory / f"replica{place}", env=shared | dict(env or {})) for place in range(2)
        ]
        for process in replicas:
            stack.push_async_callback(process.stop)
            await process.start(wait=False)
            await process.until_ready(READY_WITHIN)
        yield ReplicaPairSetup(platform=platform, replicas=replicas)


async def run(plan: FailoverPlan, directory: Path) -> FailoverReport:
    """Run a plan in an empty directory."""
    async with open_pair(directory, plan.platform) as two:
        chats = range(FIRST_CHAT, FIRST_CHAT + plan.chats)
        await _message_and_wait(two.platform, "before")
        for chat in chats:
            await two.platform.say(chat, f"!seq 1 {plan.last}")
        # Everybody is heard before: a room that a bot has not seen yet cannot be read afterwards.
        await two.platform.wait_until(
            lambda: all(two.platform.messages(chat) for chat in chats), seconds=TIMEOUT_SECONDS
        )
        await _wait_for_turns(two.replicas[0])
        async with _disturb(await find_receiver(two.replicas), plan.disturbance):
            silent_seconds = await _message_and_wait(two.platform, "after")
        await two.platform.wait_until(
            lambda: all(plan.last in _counted_in_chat(two.platform, chat)[-1:] for chat in chats),
            seconds=TIMEOUT_SECONDS,
        )
        return _make_report(plan, {chat: _texts(two.platform, chat) for chat in chats}, silent_seconds)


async def _wait_for_turns(process: GatewayProcess) -> None:
    """Wait until no command runs: a chat may have read no more than that, and a kill would interrupt it."""
    async with asyncio.timeout(TIMEOUT_SECONDS), process.http() as session:
        while await _has_open_turns(session):  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.05)


async def _has_open_turns(session: aiohttp.ClientSession) -> bool:
    for state in ("queued", "running"):
        async with session.get("/turns", params={"state": state, "limit": "1"}) as answer:
            if (await answer.json())["items"]:
                return True
    return False


async def count_bots(process: GatewayProcess) -> int:
    """Return for how many bots a replica receives."""
    async with process.http() as session, session.get("/metrics") as answer:
        found = re.search(r'^dovecote_leases{kind="bot"} (\d+)', await answer.text(), re.MULTILINE)
    return int(found[1]) if found else 0


async def find_receiver(replicas: Sequence[GatewayProcess]) -> GatewayProcess:
    """Return the replica that receives for the only bot."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            for process in replicas:
                if await count_bots(process):
                    return process
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _disturb(process: GatewayProcess, how: str) -> AsyncIterator[None]:
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
        await asyncio.sleep(FREEZE_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _message_and_wait(platform: Any, text: str) -> float:
    """Send a message as a user; return the seconds until the bot answers."""
    begun = time.perf_counter()
    await platform.say(LISTENER, f"!echo {text}")
    await platform.wait_until(lambda: text in "".join(_texts(platform, LISTENER)), seconds=TIMEOUT_SECONDS)
    return time.perf_counter() - begun


def _texts(platform: Any, chat: int) -> list[str]:
    return [post.text for post in platform.messages(chat)]


def counted_numbers(texts: Sequence[str]) -> list[int]:
    """Return the numbers counted in these texts, one text after the other."""
    return [int(number) for text in texts for number in re.findall(r"^\d+$", text, re.MULTILINE)]


def _counted_in_chat(platform: Any, chat: int) -> list[int]:
    return counted_numbers(_texts(platform, chat)[-1:])


def _make_report(
    plan: FailoverPlan, transcripts: Mapping[int, Sequence[str]], silent_seconds: float
) -> FailoverReport:
    expected = list(range(1, plan.last + 1))
    once = {chat: [text for text, _ in groupby(texts)] for chat, texts in transcripts.items()}
    doubled = [len(texts) - len(once[chat]) for chat, texts in transcripts.items()]
    numbers = {chat: counted_numbers(texts) for chat, texts in once.items()}
    return FailoverReport(
        plan=plan,
        deliveries=sum(len(texts) for texts in once.values()),
        lost=sum(len(set(expected) - set(found)) for found in numbers.values()),
        reordered=sum(found != expected for found in numbers.values()),
        doubled=sum(doubled),
        doubled_in_one_chat=max(doubled),
        silent_seconds=silent_seconds,
    )

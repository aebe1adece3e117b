"""Measure how soon users are answered whose turns were running when the gateway was killed with SIGKILL.

    python -m bench.recovery [--chats 20 200]

All users write at once over Telegram. When the process is killed, their turns wait for the model, or for a
worker (`turn_workers`). Then an embedded gateway is started again on its data directory, or the other one of
two replicas over PostgreSQL and one nats-server takes over when the leases end. From then on the model
answers in 200 ms. The table counts missing, repeated and unrequested answers.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import meters
from bench.chaos.deployment import READY_WITHIN, Deployment, open_deployment
from bench.gateway_setup import SENDS_PER_SECOND, env_variables
from openai_server import OpenAIServer, ScriptedTurn

WARM_UP_CHAT, FIRST_CHAT = 6999, 7000
"""Somebody is answered before: the first turn of a process loads the model's libraries."""
WORKERS = 56
"""Turns of one account that a gateway performs at once by default: its share of 64 workers."""
DELAY = 0.2
TIMEOUT_SECONDS = 120.0


class HangingModel:
    """What the model does: it answers, or blocks every request."""

    def __init__(self) -> None:
        self.is_hanging = False
        self.hanging_requests = 0

    def answer(self, body: dict[str, Any]) -> ScriptedTurn:
        """Answer a request with its last text, or block."""
        if self.is_hanging:
            self.hanging_requests += 1
            return ScriptedTurn(fault="hang")
        return ScriptedTurn(text=f"heard {body['messages'][-1]['content']}", delay=DELAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTimes:
    """Seconds from the kill until a gateway was ready, and until the first and the last answer."""

    ready: float
    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCount:
    """Answers that are missing, that were sent twice, and that were not requested."""

    lost: int
    doubled: int
    unasked: int


async def measure(directory: Path, *, chats: int, replicas: int) -> tuple[RecoveryTimes, AnswerCount]:
    """Have so many turns running on the first gateway, kill it, and wait for the answers."""
    model, everybody = HangingModel(), range(FIRST_CHAT, FIRST_CHAT + chats)
    async with OpenAIServer(model.answer) as server:
        env = env_variables("AGENT", {"model": "openai:loopback", "base_url": server.base_url})
        env |= env_variables("CHANNELS__TELEGRAM", {"sends_per_second": SENDS_PER_SECOND})
        env["OPENAI_API_KEY"] = "a key for a loopback model"
        async with open_deployment(directory, replicas=replicas, env=env) as deployment:
            for other in deployment.replicas[1:]:
                await other.stop()
            await deployment.platform.say(WARM_UP_CHAT, "hello")
            await deployment.platform.wait_for_messages(1, chat=WARM_UP_CHAT, seconds=TIMEOUT_SECONDS)
            model.is_hanging = True
            for chat in everybody:
                await deployment.platform.say(chat, _word(chat))
            await deployment.platform.wait_until(
                lambda: not deployment.platform.world.updates, seconds=TIMEOUT_SECONDS
            )
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while model.hanging_requests < min(chats, WORKERS):  # noqa: ASYNC110 - what another process asks for
                    await asyncio.sleep(0.05)
            model.is_hanging = False
            times = await _recover(deployment, everybody)
            said = {chat: [post.text for post in deployment.platform.messages(chat)] for chat in everybody}
            return times, count(said)


async def _recover(deployment: Deployment, everybody: Sequence[int]) -> RecoveryTimes:
    """Kill the gateway, start it again or have the other one there already, and wait for the answers."""
    first, *others = deployment.replicas
    for other in others:
        await other.start(wait=False)
        await other.until_ready(READY_WITHIN)
    begun = time.perf_counter()
    await first.kill()
    if not others:
        await first.start(wait=False)
        await first.until_ready(READY_WITHIN)
    ready = time.perf_counter()
    answered = deployment.platform.messages
    await deployment.platform.wait_until(
        lambda: any(answered(chat) for chat in everybody), seconds=TIMEOUT_SECONDS
    )
    soonest = time.perf_counter()
    await deployment.platform.wait_until(
        lambda: all(answered(chat) for chat in everybody), seconds=TIMEOUT_SECONDS
    )
    return RecoveryTimes(ready=ready - begun, first=soonest - begun, last=time.perf_counter() - begun)


def _word(chat: int) -> str:
    return f"word in {chat}."


def count(said: Mapping[int, Sequence[str]]) -> AnswerCount:
    """Count the answers in each chat, in which one message was sent."""
    right = {chat: sum(_word(chat) in text for text in texts) for chat, texts in said.items()}
    return AnswerCount(
        lost=sum(not number for number in right.values()),
        doubled=sum(max(0, number - 1) for number in right.values()),
        unasked=sum(len(texts) - right[chat] for chat, texts in said.items()),
    )


def main() -> None:
    """Print a line for each number of chats, started again and taken over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chats", type=int, nargs="+", default=[20, 200])
    rows: list[tuple[object, ...]] = []
    for chats in parser.parse_args().chats:
        for replicas, how in ((1, "started again"), (2, "taken over")):
            with tempfile.TemporaryDirectory() as directory:
                times, found = asyncio.run(measure(Path(directory), chats=chats, replicas=replicas))
            seconds = (times.ready, times.first, times.last)
            rows.append((chats, how, *seconds, found.lost, found.doubled, found.unasked))
    title = ("turns at work", "after the kill", "ready s", "first answer s", "last answer s")
    meters.print_table((*title, "lost", "doubled", "unasked"), rows)
    print(f"\nLeases of 6 s. Python {platform.python_version()}.")


if __name__ == "__main__":
    main()

"""Wait for what a bot says on a simulated platform, and until a gateway has recorded that it was sent."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway_process import GatewayProcess

TIMEOUT_SECONDS = 60.0


class Said(Protocol):
    """A message of the bot."""

    @property
    def text(self) -> str:
        """Return its text as the platform shows it."""


Message_co = TypeVar("Message_co", bound=Said, covariant=True)


class Platform(Protocol[Message_co]):
    """A simulated platform."""

    def messages(self, room: Any = ..., /) -> Sequence[Message_co]:
        """Return the bot's messages in order; all rooms without one."""

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float = ...) -> None:
        """Wait until a condition holds."""


async def wait_for_bot_message(
    platform: Platform[Message_co], text: str, *, room: object = None
) -> Message_co:
    """Wait for a message of the bot that contains a text, in one room or in any, and return the last one."""

    def found() -> list[Message_co]:
        return [one for one in platform.messages(room) if text in one.text]

    try:
        await platform.wait_until(lambda: bool(found()), seconds=TIMEOUT_SECONDS)
    except TimeoutError:
        texts = [one.text for one in platform.messages(room)]
        raise AssertionError(f"nobody said {text!r}: {texts}") from None
    return found()[-1]


async def wait_until_delivered(process: GatewayProcess, count: int) -> None:
    """Wait until at least `count` deliveries are recorded as delivered."""
    await _wait_for_states(process, lambda states: states.count("delivered") >= count)


async def wait_until_settled(process: GatewayProcess, count: int = 1) -> None:
    """Wait until there are at least `count` deliveries and none is open, so that a kill repeats nothing."""
    await _wait_for_states(process, lambda states: len(states) >= count and set(states) == {"delivered"})


async def wait_until_draft_recorded(data: Path) -> None:
    """Wait until the gateway has recorded which message of the platform shows its draft."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            with closing(
                sqlite3.connect(f"{(data / 'dovecote.db').as_uri()}?mode=ro", uri=True)
            ) as connection:
                if connection.execute("SELECT 1 FROM drafts WHERE platform_id IS NOT NULL").fetchone():
                    return
            await asyncio.sleep(0.02)


async def _wait_for_states(process: GatewayProcess, is_reached: Callable[[list[str]], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS), process.http() as session:
        while True:
            async with session.get("/deliveries") as answer:
                states = [str(one["state"]) for one in (await answer.json())["items"]]
            if is_reached(states):
                return
            await asyncio.sleep(0.05)

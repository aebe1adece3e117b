"""People in rooms of two platforms, where an agent asks a model, and asks them before it runs commands."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp

from bench.storm.accounts import StormAccount
from bench.storm.choices import THINKER, Choices
from bench.storm.model import LAST_WORDS
from bench.storm.plan import StormReport
from group_room import ADA, BOB, BotMessage, GroupRoom, RoomPerson
from group_rooms import open_group_room

PLATFORMS = ("slack", "discord")
TEXTS = ("tea or rum?", "who is there?", "look at it", "/status", "/stop", "/queue collect", "/undo", "/jobs")
PATIENCE_SECONDS = 3.0
"""How long a person waits for the bot before the next message or press."""

ANSWER_SECONDS = 180.0


@asynccontextmanager
async def open_rooms(
    session: aiohttp.ClientSession, url: str, account: StormAccount
) -> AsyncIterator[Sequence[GroupRoom]]:
    """Run a room of each platform, with a channel of the account to it."""
    async with AsyncExitStack() as stack:
        rooms = [await stack.enter_async_context(open_group_room(platform)) for platform in PLATFORMS]
        for room in rooms:
            settings = {**room.settings(), "allow": ["*"]}
            body = {"name": f"room {room.kind}", "kind": room.kind, "agent": THINKER, "settings": settings}
            path = f"{url}/accounts/me/channels"
            async with session.post(path, json=body, headers=account.headers) as answer:
                if answer.status != 201:
                    raise RuntimeError(f"{answer.status} for {body}: {await answer.text()}")
        yield rooms


async def talk_until(end: float, room: GroupRoom, choices: Choices) -> None:
    """Say something to the bot, or press a button of any of its messages, and wait a moment."""
    while time.monotonic() < end:
        known = room.all_messages()
        person, asking = choices.one_of(ADA, BOB), [message for message in known if message.buttons]
        if asking and choices.chance(0.5):
            await _press(room, person, choices.one_of(*asking[-3:]), choices)
        else:
            await room.say(person, choices.one_of(*TEXTS), to_bot=True)
        with suppress(TimeoutError):
            await room.wait_until(lambda: len(room.all_messages()) > len(known), seconds=PATIENCE_SECONDS)  # noqa: B023


async def _press(room: GroupRoom, person: RoomPerson, message: BotMessage, choices: Choices) -> None:
    """Press a button; the answer may come late, or never after a kill, as a person sees it."""
    number = choices.one_of(*range(1, len(message.buttons) + 1))
    with suppress(TimeoutError, LookupError):
        await room.choose(person, message, number)


async def check_room(room: GroupRoom, report: StormReport) -> None:
    """Ask for an answer in a room: it comes once."""
    words = f"{LAST_WORDS} {room.kind}"

    def count() -> int:
        return sum(words in message.text for message in room.all_messages())

    await room.say(ADA, f"Say: {words}", to_bot=True)
    with suppress(TimeoutError):
        await room.wait_until(lambda: count() > 0, seconds=ANSWER_SECONDS)
    if count() != 1:
        said = [message.text for message in room.all_messages()][-3:]
        report.unanswered.append(f"room of {room.kind}: {count()} answers to its last message: {said}")

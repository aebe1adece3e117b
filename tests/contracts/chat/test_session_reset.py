"""A chat thread begins a new conversation after a time without messages, if its channel wants that."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from channels.settings import RoomSettings
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import streams
from gateway.conversations.commands.session_reset import RESET_NOTICE, SessionReset, last_reset
from gateway.store.accounts import accounts
from gateway.store.conversations import conversations
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from ingress_harness import IngressHarness, open_ingress_harness

HOUR: dict[str, Any] = {"reset_after": 3600}


async def idle(harness: IngressHarness, **ago: float) -> None:
    """Have all conversations be without messages for a time."""
    async with harness.database.begin() as connection:
        await connection.execute(update(streams).values(active_at=utc_now() - timedelta(**ago)))


async def end_turns(harness: IngressHarness) -> None:
    """Complete the room's open turns."""
    for turn in await harness.list_open_turns():
        async with harness.database.begin() as connection:
            fence = await conversations.raise_fence(connection, turn.conversation)
            await turns.settle(connection, turn, fence=fence, state=TurnState.COMPLETED)


async def conversation_after(harness: IngressHarness, context: dict[str, Any], **ago: float) -> str:
    """Say something after a time without messages, and return the conversation that got it."""
    await idle(harness, **ago)
    await harness.send_message("hello", context=context)
    return (await harness.get_conversation()).id


async def test_an_idle_conversation_is_followed_by_a_new_one(database: Database) -> None:
    """The chat gets one notice, and none before the time, without the setting, or with an open turn."""
    harness = await open_ingress_harness(database)
    await harness.send_message("hello")
    first = (await harness.get_conversation()).id
    assert await conversation_after(harness, HOUR, hours=2) == first  # its turn is open
    await end_turns(harness)
    assert await conversation_after(harness, {}, hours=2) == first
    await end_turns(harness)
    assert await conversation_after(harness, HOUR, minutes=50) == first
    await end_turns(harness)
    never = {"rooms": {"room": RoomSettings(reset_after=0)}}
    assert await conversation_after(harness, HOUR | never, hours=2) == first
    await end_turns(harness)
    assert RESET_NOTICE not in str(await harness.list_delivery_bodies())
    assert await conversation_after(harness, HOUR, hours=2) != first
    assert str(await harness.list_delivery_bodies()).count(RESET_NOTICE) == 1


async def test_commands_belong_to_the_idle_conversation(database: Database) -> None:
    """A command about what was said is no message that begins a new conversation."""
    harness = await open_ingress_harness(database)
    await harness.send_message("hello")
    first = (await harness.get_conversation()).id
    await end_turns(harness)
    await idle(harness, hours=2)
    await harness.send_message("/status", context=HOUR)
    assert (await harness.get_conversation()).id == first


async def test_a_conversation_ends_daily(database: Database) -> None:
    """After the hour in the account's time zone the next message begins a new one, once a day."""
    harness = await open_ingress_harness(database)
    now = utc_now()
    async with database.begin() as connection:
        await accounts.set_timezone(connection, harness.account, "Etc/GMT-3")
    hour: dict[str, Any] = {"reset_daily": (now.hour + 3) % 24}  # it began in this hour
    await harness.send_message("hello")
    first = (await harness.get_conversation()).id
    await end_turns(harness)
    since = (now - now.replace(minute=0, second=0, microsecond=0)).total_seconds()
    assert await conversation_after(harness, {}, seconds=since + 60) == first
    await end_turns(harness)
    never = {"rooms": {"room": RoomSettings(reset_daily=-1)}}
    assert await conversation_after(harness, hour | never, seconds=since + 60) == first
    await end_turns(harness)
    second = await conversation_after(harness, hour, seconds=since + 60)
    assert second != first
    await end_turns(harness)
    await harness.send_message("again", context={"reset_daily": (now.hour + 5) % 24})
    assert (await harness.get_conversation()).id == second


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-03-29T00:30:00Z", "2026-03-28T01:00:00Z"),  # Berlin has no 2:00 on this day
        ("2026-03-29T01:30:00Z", "2026-03-29T01:00:00Z"),
        ("2026-10-25T02:00:00Z", "2026-10-25T00:00:00Z"),  # and 2:00 twice on this one
        ("2026-10-25T00:30:00Z", "2026-10-25T00:00:00Z"),
    ],
)
def test_the_hour_of_days_with_a_gap(now: str, expected: str) -> None:
    """A missing hour ends the conversation right after the gap, and a repeated one once."""
    moment = datetime.fromisoformat(now)
    found = last_reset(SessionReset(daily=2), moment, "Europe/Berlin")
    assert found is not None
    assert abs(found - datetime.fromisoformat(expected)) <= timedelta(minutes=30)
    assert last_reset(SessionReset(daily=2, after=60), moment, "Europe/Berlin") == moment - timedelta(
        seconds=60
    )

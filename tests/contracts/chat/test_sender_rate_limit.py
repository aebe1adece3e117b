"""M20: a flood is cheap: dropped messages are hardly written, refused once a minute, and stay dropped."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, select

from delivery.database.engine import Database
from delivery.database.tables import outbox
from delivery.deliveries.part import decode_part
from gateway.store.tables import inbox
from ingress_harness import BOB, open_ingress_harness


async def test_what_is_turned_away_costs_next_to_nothing(database: Database) -> None:
    """A thousand messages to a full line are a few transactions and one notice; all keys are remembered."""
    now = [0.0]
    commits: list[str] = []
    harness = await open_ingress_harness(database, clock=lambda: now[0], limit=3, checkpoint=commits.append)
    for number in range(1000):
        await harness.send_message("more", key=f"flood{number}", context={"messages_per_minute": 0})
    assert len(await harness.list_open_turns()) == 3
    assert len([name for name in commits if name.endswith("before_commit")]) <= 3 + 1 + 1000 // 200
    (notice,) = await harness.list_delivery_bodies()
    assert "3 messages are already waiting" in notice
    now[0] += 1
    await harness.send_message("once more", by=BOB)
    assert len(await harness.list_delivery_bodies()) == 1, "once a minute is enough"
    async with database.read() as connection:
        keys = (await connection.execute(select(func.count()).select_from(inbox))).scalar_one()
        reported = (await connection.execute(select(func.count()).select_from(outbox))).scalar_one()
    assert keys == 1001
    assert reported == 3 * 2 + 1, "two events of each message taken, and the notice"


async def test_refused_messages_are_named_and_counted(database: Database) -> None:
    """The first is answered in reply to it; the rest are one notice a minute later, with both ends."""
    now = [0.0]
    harness = await open_ingress_harness(database, clock=lambda: now[0], limit=3)
    sent = [
        await harness.send_message(f"message {number}", context={"messages_per_minute": 0})
        for number in range(200)
    ]
    (first,) = [decode_part(body.encode()) for body in await harness.list_delivery_bodies()]
    assert first.reply_to == sent[3]
    assert "`message 3`" in first.text
    await harness.refusal_reports.run_once()
    assert len(await harness.list_delivery_bodies()) == 1, "once a minute is enough"
    now[0] += 61
    await harness.refusal_reports.run_once()
    await harness.refusal_reports.run_once()
    (_, rest) = [decode_part(body.encode()).text for body in await harness.list_delivery_bodies()]
    assert rest.startswith("196 more messages were not processed")
    assert rest.endswith("The first was `message 4`, the last `message 199`.")


async def test_what_was_refused_is_reported_before_the_process_ends(database: Database) -> None:
    """The counts are in memory, so that a stop reports them at once."""
    harness = await open_ingress_harness(database, limit=1)
    for number in range(3):
        await harness.send_message(f"message {number}", context={"messages_per_minute": 0})
    stop = asyncio.Event()
    stop.set()
    await harness.refusal_reports.run(stop)
    (_, rest) = [decode_part(body.encode()).text for body in await harness.list_delivery_bodies()]
    assert rest == "One more message was not processed, because the queue was full: `message 2`."


async def test_a_line_is_looked_at_again_after_an_order(database: Database) -> None:
    """A message right after `/stop` is checked against the present queue; refused ones stay refused."""
    harness = await open_ingress_harness(database, clock=lambda: 0.0, limit=1)
    for text in ("first", "second", "third"):
        await harness.send_message(text, key=text)
    await harness.send_command("new")
    await harness.send_message("third", key="third")
    await harness.send_message("fourth")
    assert [turn.input for turn in await harness.list_open_turns()] == ["fourth"]


@pytest.mark.parametrize(("allow", "looks", "notices"), [(("pairing",), 5, 1), (("7",), 0, 0)])
async def test_messages_of_unknown_senders_cost_next_to_nothing(
    database: Database, allow: tuple[str, ...], looks: int, notices: int
) -> None:
    """A thousand messages of an unknown sender are a few transactions; some need no query at all."""
    now = [0.0]
    commits: list[str] = []
    harness = await open_ingress_harness(database, clock=lambda: now[0], checkpoint=commits.append)
    for number in range(1000):
        await harness.send_message("let me in", by=BOB, key=f"flood{number}", context={"allow": allow})
    assert len([name for name in commits if name.endswith("before_commit")]) <= looks + 1000 // 200
    assert len(await harness.list_delivery_bodies()) == notices
    now[0] += 1
    await harness.send_message("now", by=BOB, context={"allow": ("8",)})
    assert [turn.input for turn in await harness.list_open_turns()] == ["now"]
    async with database.read() as connection:
        keys = (await connection.execute(select(func.count()).select_from(inbox))).scalar_one()
    assert keys == 1001


async def test_a_sender_who_was_paired_is_received_at_once(database: Database) -> None:
    """A sender who writes before and right after the pairing is approved loses none of the later messages."""
    harness = await open_ingress_harness(database, clock=lambda: 0.0)
    for _ in range(3):
        await harness.send_message("let me in", by=BOB, context={"allow": ("pairing",)})
    await harness.send_message("thanks", by=BOB, context={"allow": ("8", "pairing")})
    assert [turn.input for turn in await harness.list_open_turns()] == ["thanks"]


async def test_a_sender_over_the_rate_learns_when_to_send_again(database: Database) -> None:
    """The reply names the seconds, and a message after them is taken."""
    now = [0.0]
    harness = await open_ingress_harness(database, clock=lambda: now[0])
    for _ in range(5):
        await harness.send_message("hi", context={"messages_per_minute": 4})
    assert "send it again after 15 s" in "".join([*harness.replies, *await harness.list_delivery_bodies()])
    assert len(await harness.list_open_turns()) == 4
    now[0] += 15
    await harness.send_message("again", context={"messages_per_minute": 4})
    assert len(await harness.list_open_turns()) == 5

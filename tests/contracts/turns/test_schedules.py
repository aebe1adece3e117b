"""Schedules fire once per due time on both databases, also if replicas compete or a commit fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from databases import until_waiting
from delivery.database.engine import Database
from delivery.events.event import EventType
from gateway.schedules.firing import ScheduleDeleted, ScheduleFiring
from gateway.schedules.recurrence import Recurrence
from gateway.schedules.schedules import (
    NewSchedule,
    Schedules,
    ScheduleSettings,
    TooManySchedules,
    create_schedule,
    paused,
    resumed,
)
from gateway.store.accounts import deletion
from gateway.store.conversations import schedules as store
from gateway.store.conversations.schedules import MissedRule, Schedule, ScheduleKind, ScheduleState
from gateway.store.tables import turns as turn_table
from gateway.store.turns import turns
from ingress_harness import ANN, BOB, IngressHarness, open_ingress_harness

START = datetime(2030, 1, 1, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Crash(Exception):
    """The process ends at a fault point."""


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """A room with a conversation in which one turn waits."""
    harness = await open_ingress_harness(database)
    await harness.send_message("hello")
    return harness


async def add(harness: IngressHarness, **changes: object) -> Schedule:
    """Schedule something in the room's conversation, by default each hour from START on."""
    conversation = await harness.get_conversation()
    values: dict[str, object] = {
        "account": harness.account,
        "conversation": conversation.id,
        "text": "look",
        "recurrence": Recurrence(every=HOUR),
        "created_by": ANN.id,
    }
    async with harness.database.begin() as connection:
        made = await create_schedule(connection, NewSchedule(**(values | changes)), limit=50)  # type: ignore[arg-type]
        await store.update_schedule(connection, made, replace_due(made))
        found = await store.get(connection, harness.account, made.id)
    assert found is not None
    return found


def replace_due(schedule: Schedule) -> Schedule:
    """Return the schedule due at START."""
    return replace(schedule, next_at=START if schedule.state is ScheduleState.ACTIVE else None)


def firing(harness: IngressHarness, now: datetime) -> ScheduleFiring:
    """Return a replica whose clock shows `now`."""
    return ScheduleFiring(harness.transactions, harness.submissions, now=lambda: now)


async def inputs(harness: IngressHarness) -> list[str]:
    """Return the inputs of all turns, in order."""
    async with harness.database.read() as connection:
        rows = await connection.execute(select(turn_table.c.input).order_by(turn_table.c.id))
    return [row.input for row in rows]


async def test_a_due_time_starts_one_turn_on_competing_replicas(harness: IngressHarness) -> None:
    """Eight replicas fire at the same moment, with clocks that differ: one turn, and the next time is set."""
    schedule = await add(harness)
    replicas = [firing(harness, START + timedelta(seconds=number)) for number in range(8)]
    await asyncio.gather(*(one.fire_due() for one in replicas))
    await replicas[0].fire_due()
    assert (await inputs(harness)).count("look") == 1
    fired = [one for one in await harness.list_events() if one.type is EventType.SCHEDULE_FIRED]
    assert [one.data for one in fired] == [{"schedule": schedule.id, "due": "2030-01-01T09:00:00.000Z"}]
    async with harness.database.read() as connection:
        after = await store.get(connection, harness.account, schedule.id)
    assert after is not None
    assert (after.next_at, after.fired, after.last_turn) == (START + HOUR, 1, fired[0].turn)


@pytest.mark.parametrize("recurrence", [Recurrence(every=HOUR), Recurrence(cron="0 * * * *")])
async def test_a_clock_that_was_fast_holds_no_schedule_up(
    harness: IngressHarness, recurrence: Recurrence
) -> None:
    """A time that was computed by a clock which is set back by a day is not waited for; none fires twice."""
    schedule = await add(harness, recurrence=recurrence)
    single = await add(harness, recurrence=Recurrence(at=START))
    clock, elapsed = [START + 24 * HOUR], [0.0]
    replica = ScheduleFiring(
        harness.transactions, harness.submissions, now=lambda: clock[0], ticks=lambda: elapsed[0]
    )
    await replica.fire_due()
    clock[0], elapsed[0] = START + HOUR / 2, 1.0
    await replica.follow_clock()
    async with harness.database.read() as connection:
        after = await store.get(connection, harness.account, schedule.id)
        ended = await store.get(connection, harness.account, single.id)
    assert after is not None
    assert (after.next_at, after.fired) == (START + HOUR, 1)
    assert ended is not None
    assert ended.next_at is None
    await replica.follow_clock()
    assert await replica.fire_due() == 0


@pytest.mark.parametrize("point", ["schedule.fire.before_commit", "schedule.fire.after_commit"])
async def test_a_crash_around_the_commit_starts_one_turn(database: Database, point: str) -> None:
    """Before the commit the time is still due, and after it the turn is queued: nothing is half done."""
    points = [point]

    def checkpoint(name: str) -> None:
        if name in points:
            points.remove(name)
            raise Crash

    harness = await open_ingress_harness(database, checkpoint=checkpoint)
    await harness.send_message("hello")
    await add(harness)
    with pytest.raises(Crash):
        await firing(harness, START).fire_due()
    assert (await inputs(harness)).count("look") == (1 if "after" in point else 0)
    await firing(harness, START).fire_due()
    await firing(harness, START).fire_due()
    assert (await inputs(harness)).count("look") == 1


async def test_a_conversation_is_deleted_while_its_schedule_is_run(harness: IngressHarness) -> None:
    """The caller gets ScheduleDeleted; the transaction that starts the turn waits for the deletion."""
    schedule = await add(harness)
    async with harness.database.begin() as connection:
        await deletion.delete_conversation(connection, harness.account, schedule.conversation)
        running = asyncio.create_task(firing(harness, START).fire_now(schedule))
        await until_waiting(harness.database)
    with pytest.raises(ScheduleDeleted):
        await running


@pytest.mark.parametrize(("missed", "queued"), [("skip", 1), ("once", 1), ("all", 3)])
async def test_times_are_skipped_until_the_turn_before_has_begun(
    harness: IngressHarness, missed: str, queued: int
) -> None:
    """A turn that takes long or waits for a person does not fill the queue; one turn follows it."""
    schedule = await add(harness, missed=MissedRule(missed))
    for hours in range(3):
        await firing(harness, START + hours * HOUR).fire_due()
    assert (await inputs(harness)).count("look") == queued
    async with harness.database.begin() as connection:
        found = await store.get(connection, harness.account, schedule.id)
        assert found is not None
        assert found.next_at == START + 3 * HOUR
        assert ("had not begun" in found.note) is (queued == 1)
        await connection.execute(
            update(turn_table).where(turn_table.c.id == found.last_turn).values(state="running")
        )
    await firing(harness, START + 3 * HOUR).fire_due()
    assert (await inputs(harness)).count("look") == queued + 1


@pytest.mark.parametrize(("missed", "made_up_for"), [("skip", 0), ("once", 1), ("all", 6)])
async def test_missed_times(harness: IngressHarness, missed: str, made_up_for: int) -> None:
    """After more than five hours without a gateway, as many turns start as the rule says."""
    await add(harness, missed=MissedRule(missed))
    late = firing(harness, START + timedelta(hours=5, minutes=30))
    for _ in range(8):
        await late.fire_due()
    assert (await inputs(harness)).count("look") == made_up_for


async def test_a_reminder_is_a_message_and_no_turn(harness: IngressHarness) -> None:
    """The text reaches the chat as it is, without the agent."""
    await add(harness, kind=ScheduleKind.REMINDER, text="tea")
    await firing(harness, START).fire_due()
    assert any("Reminder: tea" in body for body in await harness.list_delivery_bodies())
    assert await inputs(harness) == ["hello"]


@pytest.mark.parametrize("mode", ["collect", "steer", "interrupt"])
async def test_a_scheduled_turn_is_one_of_its_own(harness: IngressHarness, mode: str) -> None:
    """Whatever the queue mode, it is neither merged with a message nor cancels what runs."""
    running = await harness.start_first_turn()
    await harness.send_command("queue", mode)
    await add(harness)
    await firing(harness, START).fire_due()
    open_turns = await harness.list_open_turns()
    assert [one.input for one in open_turns] == ["hello", "look"]
    assert not harness.cancelled
    assert open_turns[0].id == running.id


async def test_a_full_queue_delays_and_loses_nothing(database: Database) -> None:
    """The schedule stays due while its conversation is full, and others are not held up."""
    harness = await open_ingress_harness(database, limit=1)
    await harness.send_message("hello")
    await add(harness)
    replica = firing(harness, START)
    assert await replica.fire_due() == 1
    assert await replica.fire_due() == 0  # the conversation is left alone for some seconds
    assert await inputs(harness) == ["hello"]
    running = await harness.start_first_turn()
    async with database.begin() as connection:
        await turns.request_cancel(connection, running.id, reason="stopped")
    await firing(harness, START).fire_due()
    assert (await inputs(harness)).count("look") == 1


async def test_a_schedule_without_a_time_zone_delays_no_other(harness: IngressHarness) -> None:
    """One whose zone is no longer in the time zone database is paused, and the others that are due fire."""
    gone = await add(harness, text="gone", recurrence=Recurrence(cron="0 9 * * *"))
    async with harness.database.begin() as connection:
        await store.update_schedule(
            connection, gone, replace(gone, timezone="Mars/Olympus", next_at=START - HOUR)
        )
    await add(harness)
    await firing(harness, START).fire_due()
    assert (await inputs(harness))[-2:] == ["gone", "look"]
    async with harness.database.read() as connection:
        after = await store.get(connection, harness.account, gone.id)
    assert after is not None
    assert (after.state, after.next_at) == (ScheduleState.PAUSED, None)


async def test_the_accounts_take_turns(harness: IngressHarness) -> None:
    """A schedule of another account is in the first batch although more of the first account are due."""
    other = await open_ingress_harness(harness.database, name="two")
    await other.send_message("hello")
    for _ in range(3):
        await add(harness)
    theirs = await add(other)
    async with harness.database.read() as connection:
        due = await store.list_due(connection, now=START, limit=2)
    assert theirs.id in [one.id for one in due]


async def test_pause_resume_and_deletion(harness: IngressHarness) -> None:
    """What is paused is not due; a deleted conversation takes its schedules with it."""
    schedule = await add(harness)
    async with harness.database.begin() as connection:
        assert await store.update_schedule(connection, schedule, paused(schedule))
        assert not await store.update_schedule(connection, schedule, paused(schedule)), "it changed meanwhile"
    await firing(harness, START).fire_due()
    assert await inputs(harness) == ["hello"]
    assert resumed(paused(schedule), START).next_at == START + HOUR
    async with harness.database.begin() as connection:
        await deletion.delete_conversation(connection, harness.account, schedule.conversation)
        assert await store.get(connection, harness.account, schedule.id) is None
    with pytest.raises(ScheduleDeleted):
        await firing(harness, START).fire_now(schedule)


async def end(harness: IngressHarness, schedule: Schedule, *, skipped_at: datetime) -> None:
    """End a schedule whose only time was skipped, so that it was never due in time."""
    async with harness.database.begin() as connection:
        ended = replace(
            schedule, at=skipped_at, every_seconds=None, state=ScheduleState.ENDED, next_at=None, last_at=None
        )
        assert await store.update_schedule(connection, schedule, ended)


async def test_ended_schedules_hide_no_others(harness: IngressHarness) -> None:
    """However many have ended, the list of a conversation shows those that are due or paused."""
    for _ in range(3):
        await end(harness, await add(harness), skipped_at=START)
    active = await add(harness)
    schedules = Schedules(harness.database, ScheduleSettings(limit=2))
    found = await schedules.list_unfinished(harness.account, active.conversation, limit=2)
    assert [one.id for one in found] == [active.id]
    await harness.send_command("schedule")
    assert active.id in harness.replies[-1]


async def test_ended_schedules_are_deleted_later(harness: IngressHarness) -> None:
    """A schedule that ended is deleted a while after its time, also if that was skipped."""
    old, new = await add(harness), await add(harness)
    await end(harness, old, skipped_at=START)
    await end(harness, new, skipped_at=START + HOUR)
    async with harness.database.begin() as connection:
        await store.delete_ended_before(connection, before=START + HOUR)
        left = await store.list_for_account(connection, harness.account, limit=10)
    assert [one.id for one in left] == [new.id]


async def test_an_account_has_a_limit(harness: IngressHarness) -> None:
    """One schedule too many is refused, and a repeated creation is not one."""
    await add(harness, id="sch_same")
    await add(harness, id="sch_same")
    conversation = await harness.get_conversation()
    new = NewSchedule(
        account=harness.account,
        conversation=conversation.id,
        text="look",
        recurrence=Recurrence(every=HOUR),
        created_by=ANN.id,
    )
    async with harness.database.begin() as connection:
        with pytest.raises(TooManySchedules, match="schedule_limit"):
            await create_schedule(connection, new, limit=1)


async def test_commands_in_a_chat(harness: IngressHarness) -> None:
    """People schedule, list, pause, resume and delete by command, and only in their own conversation."""
    commands: list[tuple[str, str, Callable[[str], bool]]] = [
        ("schedule", "", lambda text: "Nothing is scheduled" in text),
        ("remind", "in 20m drink tea", lambda text: "I remind you" in text),
        ("schedule", "every day 9:00 report", lambda text: "regularly" in text),
        ("remind", "whenever", lambda text: "did not understand" in text),
        ("schedule", "delete sch_none", lambda text: "no schedule" in text),
    ]
    for name, rest, expected in commands:
        await harness.send_command(name, rest, by=BOB)
        assert expected(harness.replies[-1]), harness.replies[-1]
    await harness.send_command("schedule")
    listed = harness.replies[-1].splitlines()
    assert len(listed) == 2
    identifier = listed[0].split()[1]
    for verb, expected_text in (("pause", "paused"), ("resume", "at "), ("delete", "Deleted")):
        await harness.send_command("schedule", f"{verb} {identifier}")
        assert expected_text in harness.replies[-1]
    await harness.send_command("schedule", f"pause {listed[1].split()[1]}", address=harness.address("other"))
    assert "no schedule" in harness.replies[-1]

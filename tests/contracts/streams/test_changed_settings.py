"""Limits of the streams that were changed at the server are undone, and deleted events published again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from changed_log import LAYOUT, log_with_events
from delivery.broker import epochs
from delivery.broker.stream_config import EVENTS, WORK, StreamConfig
from delivery.database.engine import Database
from delivery.errors import BrokerUnreachable
from delivery.events import outbox
from delivery.events.event import Event, EventType


@pytest.mark.parametrize(
    "changed",
    [{"max_msgs": 1}, {"max_msgs_per_subject": 1}, {"max_bytes": 300}, {"max_age": 120_000_000_000}],
)
async def test_limits_that_delete_events_are_undone(
    database: Database, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """What SQL has is published again in a new epoch, and the warning names the setting."""
    async with log_with_events(database, tmp_path / "nats") as log:
        first, before = log.events.epoch, await log.settings(EVENTS)
        await log.change(EVENTS, **changed)
        with capture_logs() as lines:
            await log.check()
            await log.check()
        assert await log.unpublished() == [("cnv_a", 0)]
        after = await log.settings(EVENTS)
        assert {name: after[name] for name in changed} == {name: before[name] for name in changed}
        assert log.events.epoch != first
        assert await log.events.tail("cnv_a", account="acc") is None
        await log.publish_again()
        stored = await log.events.read("cnv_a", account="acc", after=0, limit=9, transient=False)
        assert [one.event.n for one in stored] == [1, 2, 3]
        assert (await log.events.append(stored[-1].event, expected=stored[1].seq, account="acc")) == stored[
            2
        ].seq
        (warning,) = [one for one in lines if one["event"] == "stream.settings_restored"]
        assert warning["stream"] == EVENTS
        assert list(warning["changed"]) == list(changed)


async def test_an_event_of_the_meantime_does_not_become_the_first_one(
    database: Database, tmp_path: Path
) -> None:
    """Neither before the deletion is noticed, nor for a relay that has the positions of the time before."""
    async with log_with_events(database, tmp_path / "nats") as log:
        async with database.begin() as connection:
            made = {"cnv_a": [Event.now(EventType.JOB_STARTED, "cnv_a", {})]}
            (fourth,) = (await outbox.record(connection, made))["cnv_a"].events
            position = await outbox.last_position(connection, "cnv_a")
        assert position is not None
        append = partial(log.events.append, fourth, expected=position[1], account="acc")
        await log.change(EVENTS, max_msgs=1)
        await log.nats.publish("lease.x.y", b"{}")  # deletes the last event too
        with pytest.raises(BrokerUnreachable, match="cnv_a are published again"):
            await append()
        await log.check()
        with pytest.raises(BrokerUnreachable, match="cnv_a are published again"):
            await append()
        assert await log.unpublished() == [("cnv_a", 0)]
        await log.publish_again()
        stored = await log.events.read("cnv_a", account="acc", after=0, limit=9, transient=False)
        assert [one.event.n for one in stored] == [1, 2, 3, 4]


async def test_an_event_after_expired_ones_is_stored(database: Database, tmp_path: Path) -> None:
    """It names the last one before it, so that readers find the gap."""
    async with log_with_events(database, tmp_path / "nats") as log:
        async with database.begin() as connection:
            made = {"cnv_a": [Event.now(EventType.JOB_STARTED, "cnv_a", {})]}
            (fourth,) = (await outbox.record(connection, made))["cnv_a"].events
        last = (await log.events.bounds("cnv_a", account="acc")).last_seq
        await log.events.purge("cnv_a", account="acc")
        await log.events.append(fourth, expected=last, account="acc")
        (stored,) = await log.events.read("cnv_a", account="acc", after=0, limit=9, transient=False)
        assert (stored.event.n, stored.previous) == (4, last)


async def test_limits_that_delete_nothing_are_undone_in_the_same_epoch(
    database: Database, tmp_path: Path
) -> None:
    """Readers keep their positions; `discard: new` would refuse events once the log is full."""
    async with log_with_events(database, tmp_path / "nats") as log:
        first = log.events.epoch
        await log.change(EVENTS, discard="new")
        await log.change(WORK, max_msgs=1)
        await log.check()
        assert (await log.settings(EVENTS))["discard"] == "old"
        assert (await log.settings(WORK))["max_msgs"] == -1
        assert (log.events.epoch, await log.unpublished()) == (first, [])


async def test_the_settings_of_another_gateway_stay_until_the_next_start(
    database: Database, tmp_path: Path
) -> None:
    """Replicas that are restarted one after another with a new setting do not undo it in turn."""
    async with log_with_events(database, tmp_path / "nats") as log:
        first = log.events.epoch
        shorter = StreamConfig(max_bytes=500_000_000, retention_days=3)
        await epochs.open_streams(database, log.nats, shorter)
        age = (await log.settings(EVENTS))["max_age"]
        await log.check()
        assert (await log.settings(EVENTS))["max_age"] == age
        assert (log.events.epoch, await log.unpublished()) == (first, [])


async def test_a_start_finds_what_was_changed_while_no_gateway_ran(
    database: Database, tmp_path: Path
) -> None:
    """The start publishes the events again too."""
    async with log_with_events(database, tmp_path / "nats") as log:
        await log.change(EVENTS, max_msgs=1)
        assert await epochs.open_streams(database, log.nats, LAYOUT) != log.events.epoch
        assert await log.unpublished() == [("cnv_a", 0)]
        assert (await log.settings(EVENTS))["max_msgs"] == -1


async def test_settings_that_the_server_refuses_are_named_and_end_nothing(
    database: Database, tmp_path: Path
) -> None:
    """A limit of the server below the wanted size is a warning; positions are stored as before."""
    async with log_with_events(database, tmp_path / "nats") as log:
        await log.change(EVENTS, max_bytes=100_000_000)
        with capture_logs() as lines:
            await log.check(StreamConfig(max_bytes=500_000_000, event_log_bytes=2**60))
        (refused,) = [one for one in lines if one["event"] == "stream.settings_differ"]
        assert refused["changed"] == {"max_bytes": 100_000_000}
        assert "event_log_bytes" in str(refused["error"])

"""Events that the log has lost between others, as when a disk damaged a file, are published again."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from changed_log import Log, log_with_events
from delivery.broker.message_codec import EPOCH_NUMBER, encode_headers
from delivery.broker.stream_config import EVENTS, lasting_subject
from delivery.database.engine import Database
from delivery.events.event import Event

SUBJECT = lasting_subject("acc", "cnv_a")


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[Log]:
    """A log with three events."""
    async with log_with_events(database, tmp_path / "nats") as log:
        yield log


async def lose_second_event(log: Log) -> None:
    """Store the first and the third event as NATS shows them beside a part that it cannot read."""
    first, _, third = await log.read()
    await log.purge()
    await store(log, first.event, previous=0)
    gone = (await log.nats.publish("lease.x.y", b"{}")).seq
    await log.purge("lease.x.y")
    await store(log, third.event, previous=gone)


async def store(log: Log, event: Event, *, previous: int) -> None:
    """Publish an event with an id that NATS has not seen."""
    headers = encode_headers(event, previous=previous, epoch=f"lost{EPOCH_NUMBER}{secrets.token_hex(4)}")
    await log.nats.publish(SUBJECT, event.encode(), headers)


@pytest.mark.parametrize("page", [1, 100])
async def test_a_hole_that_a_reader_meets_is_filled(log: Log, page: int) -> None:
    """All events are published again in a new epoch, also if the hole is between two pages."""
    await lose_second_event(log)
    first = log.events.epoch
    after = (await log.events.read("cnv_a", account="acc", after=0, limit=page, transient=False))[0].seq
    await log.check()
    if page == 1:
        assert log.events.epoch == first
        await log.events.read("cnv_a", account="acc", after=after, limit=page, transient=False)
        await log.check()
    assert log.events.epoch != first
    assert await log.unpublished() == [("cnv_a", 0)]
    await log.publish_again()
    assert [one.event.n for one in await log.read()] == [1, 2, 3]
    assert "dovecote_incomplete" not in (await log.settings(EVENTS))["metadata"]


async def test_a_hole_that_publishing_does_not_fill_is_tried_once_an_hour(log: Log) -> None:
    """Otherwise the log would be published again every few seconds."""
    await lose_second_event(log)
    await log.read()
    await log.check()
    await log.publish_again()
    await lose_second_event(log)
    assert [one.event.n for one in await log.read()] == [1, 3]
    with capture_logs() as lines:
        await log.expect_unchanged()
    assert not lines


async def test_expired_events_are_no_hole(log: Log) -> None:
    """A reader comes back with a position before what has expired since."""
    first = (await log.read())[0]
    await log.purge(SUBJECT, before=first.seq + 2)
    later = await log.events.read("cnv_a", account="acc", after=first.seq, limit=9, transient=False)
    assert later[0].previous > first.seq
    await log.expect_unchanged()


async def test_a_replica_of_nats_that_lags_shows_no_hole(log: Log) -> None:
    """Its page lacks an event that the leader has."""
    first, _, third = await log.read()
    log.events.holes.note(SUBJECT, [first, third], after=0)
    await log.expect_unchanged()

"""Events: their public shape, and that none is too large for the stream."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.events.event import MAX_DATA_BYTES, Event, EventType, new_id

TEXTS = st.sampled_from(["a", "\0", "ü", '"', "\N{BIRD}"])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 300_000), TEXTS, TEXTS)
def test_no_event_is_too_large_for_the_stream(length: int, one: str, other: str) -> None:
    """An event with any texts fits the limit, and marks texts that were cut."""
    data = {"output": one * length, "args": {"command": other * length}, "resultId": "job_1"}
    event = Event.now(EventType.JOB_COMPLETED, "cnv_1", data).truncated("/jobs/job_1/logs")
    assert len(json.dumps(dict(event.data))) <= MAX_DATA_BYTES + 100
    cut = event.data["output"] != data["output"] or event.data["args"] != data["args"]
    assert event.data.get("truncated", False) is cut
    assert ("url" in event.data) is cut


def test_a_dumped_event_loads_as_it_was() -> None:
    """The outbox and the stream give back what was written, to the millisecond."""
    event = Event.now(EventType.TURN_QUEUED, "cnv_1", {"trigger": "message"}, turn="trn_1").numbered(7)
    loaded = Event.decode(event.encode())
    assert (loaded.id, loaded.type, loaded.n, loaded.turn) == (event.id, event.type, 7, "trn_1")
    assert abs((loaded.time - event.time).total_seconds()) < 0.002


def test_text_that_is_no_unicode_is_replaced() -> None:
    """A lone surrogate never stops an event."""
    assert b"?" in Event.now(EventType.MESSAGE_COMPLETED, "cnv_1", {"text": "\ud800"}).encode()


def test_ids_are_unique_and_in_order_of_time() -> None:
    """Ids made later sort later, to the millisecond."""
    ids = [new_id("evt") for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert [one[:14] for one in ids] == sorted(one[:14] for one in ids)

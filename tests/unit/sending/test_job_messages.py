"""A job has one message in its chat, which changes until the job has ended."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from channels.message import Reply
from channels.port import ChannelFeature
from delivery.chat.shown_messages import ShownMessage
from delivery.chat.sink import ChatSink
from delivery.deliveries import ordering, rendering
from delivery.deliveries.job_message import render_seconds
from delivery.deliveries.part import Part, decode_part, encode_part
from delivery.deliveries.port import OutcomeKind
from delivery.events.event import Event, EventType
from gateway.jobs.progress import MAX_INTERVAL, due_after
from memory_channel import MemoryChannel
from sink_harnesses import ROOM, make_bot, make_delivery

FIRST = {"resultId": "job_1", "command": "make\ntest", "seconds": 45, "output": "one\ntwo\n"}


def _part(event_type: EventType, data: Mapping[str, object]) -> Part | None:
    return rendering.render_text(Event.now(event_type, "cnv_1", data))


def test_a_running_job_shows_its_command_time_and_last_line() -> None:
    """The message fits on a phone: one line each."""
    part = _part(EventType.JOB_PROGRESS, FIRST)
    assert part is not None
    assert part.text == (
        "Job `make test` has been running for 45 s.\n\n`two`\n\n`/jobs stop job_1` stops it."
    )
    assert (part.edits, part.only_edit, part.needs_edits) == (None, False, True)


def test_the_end_changes_the_message_of_a_job_and_is_none_itself() -> None:
    """A job without a message ends without one: its result is the agent's answer."""
    end = {"resultId": "job_1", "command": "make", "exit_code": 2, "output": "x", "reason": None}
    assert _part(EventType.JOB_FAILED, end) is None
    part = _part(EventType.JOB_FAILED, end | {"replaces": "evt_1", "seconds": 3900})
    assert part is not None
    assert part.text == "Job `make` failed after 1 h 5 min (exit code 2)."
    assert (part.edits, part.only_edit) == ("evt_1", True)
    assert decode_part(encode_part(part)) == part


def test_messages_of_jobs_hold_no_answer() -> None:
    """They are a sequence of their own."""
    event = Event.now(EventType.JOB_PROGRESS, "cnv_1", FIRST)
    part = rendering.render_text(event)
    assert part is not None
    key = ordering.ordering_key(event, part)
    assert key != ordering.ordering_key(Event.now(EventType.MESSAGE_COMPLETED, "cnv_1", {}), part)
    assert ordering.is_quiet(key)


@pytest.mark.parametrize(
    ("shown", "kind", "calls"),
    [
        (ShownMessage(platform_id="1"), OutcomeKind.DELIVERED, [("edit", "Job `make` done")]),
        (
            ShownMessage(platform_id="1", text="half"),
            OutcomeKind.DELIVERED,
            [("edit", "half\n\nJob `make` done")],
        ),
        (ShownMessage(is_open=True), OutcomeKind.RETRY, []),
        (ShownMessage(), OutcomeKind.DELIVERED, []),
    ],
)
async def test_the_message_to_change_is_found_when_it_is_changed(
    shown: ShownMessage, kind: OutcomeKind, calls: list[tuple[str, str]]
) -> None:
    """One that is not sent yet is waited for; one that was never sent is none."""
    channel = MemoryChannel()
    channel.rooms[ROOM.room]["1"] = Reply(text="Job `make` runs", key="1")
    bot = make_bot(channel, frozenset({ChannelFeature.EDIT}))

    async def find(event: str, _target: str) -> ShownMessage:
        assert event == "evt_1"
        return shown

    sink = ChatSink({"chn_1": bot}.get, find_shown=find)
    part = Part(text="Job `make` done", edits="evt_1", only_edit=True, needs_edits=True)
    outcome = await sink.send(make_delivery(body=encode_part(part)))
    assert outcome.kind is kind
    assert [(call, reply.text) for call, reply in channel.calls] == calls


async def test_platforms_without_edits_get_no_message_of_a_job() -> None:
    """It could only say that the job runs, for ever."""
    channel = MemoryChannel()
    bot = make_bot(channel, frozenset({ChannelFeature.TYPING}))
    outcome = await ChatSink({"chn_1": bot}.get).send(
        make_delivery(body=encode_part(Part(text="Job", needs_edits=True)))
    )
    assert outcome.kind is OutcomeKind.DELIVERED
    assert channel.calls == []


def test_reports_become_less_frequent() -> None:
    """A job of a day has some 150 reports, not thousands."""
    assert [due_after(count, 30) for count in range(6)] == [30, 60, 120, 240, 480, 960]
    assert due_after(8, 30) - due_after(7, 30) == MAX_INTERVAL
    assert 100 < sum(due_after(count, 30) < 86_400 for count in range(400)) < 200
    assert due_after(3, 1000) == 4000
    assert due_after(10**9, 30) > 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (60, "1 min"), (3600, "1 h 0 min"), (-1, "0 s")]
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    """Only what matters is shown."""
    assert render_seconds(seconds) == text

"""A poller's position in the updates: none is skipped or handled twice, and albums stay whole."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from channels.telegram.receive.update_queue import UpdateQueue


def update(number: int, room: int, album: str | None) -> dict[str, Any]:
    """Return an update, perhaps a part of an album."""
    part = {"media_group_id": album} if album else {}
    return {"update_id": number, "message": {"chat": {"id": room}, **part}}


ROOMS = st.lists(st.tuples(st.integers(1, 3), st.sampled_from([None, None, "a", "b"])), max_size=25)


@settings(deadline=None)
@given(ROOMS, st.data())
def test_whatever_fails_each_update_is_taken_once_and_in_order(
    said: list[tuple[int, str | None]], data: st.DataObject
) -> None:
    """Batches of any size, refusals at any place: all arrive, and the offset leaves nothing behind."""
    now = 0.0
    updates = [update(number, room, album) for number, (room, album) in enumerate(said, start=100)]
    backlog = UpdateQueue(0.5, lambda: now)
    taken: list[int] = []
    for turn in range(300):
        arrived = data.draw(st.integers(1, 30)) if turn < 20 else 30
        batch = [one for one in updates if one["update_id"] >= (backlog.offset or 0)][:arrived]
        for piece in backlog.due(batch):
            if turn < 20 and data.draw(st.booleans()):
                break
            taken.extend(piece.update_ids)
            backlog.mark_stored(piece)
        backlog.advance(batch)
        assert all(number in taken for number in range(100, backlog.offset or 0))
        now += 0.3
        if backlog.offset == 100 + len(updates):
            break
    assert sorted(taken) == [one["update_id"] for one in updates]


def test_an_album_that_another_poller_took_is_not_waited_for() -> None:
    """Parts that are gone from Telegram's answers leave nothing behind here."""
    backlog = UpdateQueue(0.5, lambda: 0.0)
    assert backlog.due([update(1, 7, "a")]) == []
    assert backlog.wait == 0.5
    assert len(backlog.due([update(5, 7, None)])) == 1
    assert backlog.wait is None


def test_updates_without_a_number_are_passed_over() -> None:
    """An invalid update is skipped and delays no other."""
    backlog = UpdateQueue(0.5, lambda: 0.0)
    odd = [{}, None, {"update_id": "x"}, update(3, 7, None)]
    (piece,) = backlog.due(odd)
    backlog.mark_stored(piece)
    assert backlog.advance(odd)
    assert backlog.offset == 4


def test_a_lower_number_than_the_offset_begins_a_new_sequence() -> None:
    """After a quiet week Telegram may continue with a lower number, and the offset follows."""
    queue = UpdateQueue(0.0, lambda: 0.0)
    for first in (700_000_001, 5_000_000):
        updates: list[object] = [{"update_id": first}, {"update_id": first + 1}]
        for batch in queue.due(updates):
            queue.mark_stored(batch)
        assert queue.advance(updates)
        assert queue.offset == first + 2

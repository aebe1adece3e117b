"""What has arrived is noted at once, and read by whoever comes after us."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from delivery.deliveries.send_receipts import Arrival, Arrivals


def an_arrival(number: int = 1) -> Arrival:
    """Return an arrival with names of its own."""
    return Arrival(delivery=f"dlv_{number}", attempt=1, platform_id=str(number), duration_ms=4.5)


def test_a_note_is_there_for_the_next_process(tmp_path: Path) -> None:
    """Nothing is closed or flushed: the process may have been killed right after."""
    notes = Arrivals(tmp_path / "arrivals")
    assert notes.standing == ()
    notes.note(an_arrival(1))
    notes.note(an_arrival(2))
    assert Arrivals(tmp_path / "arrivals").standing == (an_arrival(1), an_arrival(2))
    assert notes.of("dlv_2") == an_arrival(2)
    assert notes.of("dlv_3") is None
    notes.close()


def test_the_file_stays_small_and_keeps_what_stands(tmp_path: Path) -> None:
    """What the ledger has goes when a page is full; what it has not goes on to the next page."""
    path = tmp_path / "arrivals"
    notes = Arrivals(path, page_bytes=1000)
    notes.note(an_arrival(0))
    for number in range(1, 200):
        notes.note(an_arrival(number))
        notes.forget(f"dlv_{number}")
    assert path.stat().st_size < 2000
    found = Arrivals(path).standing
    assert found[0] == an_arrival(0)
    assert found[-1] == an_arrival(199)
    notes.close()


def test_the_notes_before_us_stand_until_they_are_forgotten(tmp_path: Path) -> None:
    """A process that is killed before it could record them leaves them to the next."""
    first = Arrivals(tmp_path / "arrivals")
    first.note(an_arrival(1))
    second = Arrivals(tmp_path / "arrivals")
    second.note(an_arrival(2))
    third = Arrivals(tmp_path / "arrivals")
    assert third.standing == (an_arrival(1), an_arrival(2))
    third.forget("dlv_1")
    third.note(an_arrival(3))
    assert Arrivals(tmp_path / "arrivals").standing == (an_arrival(2), an_arrival(3))
    for notes in (first, second, third):
        notes.close()


def test_a_line_that_was_cut_short_is_no_note(tmp_path: Path) -> None:
    """The others are."""
    path = tmp_path / "arrivals"
    notes = Arrivals(path)
    notes.note(an_arrival(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20] + b"\n[1]\n{}\n\xff")
    with capture_logs() as logs:
        assert Arrivals(path).standing == (an_arrival(1),)
    assert {entry["event"] for entry in logs} == {"delivery.note_unreadable"}
    notes.close()


def test_without_a_place_to_write_it_is_as_before(tmp_path: Path) -> None:
    """A missing directory or a full disk is told and costs nothing else."""
    notes = Arrivals(tmp_path / "missing" / "arrivals")
    with capture_logs() as logs:
        notes.note(an_arrival())
    assert [entry["event"] for entry in logs] == ["delivery.not_noted"]
    assert notes.of("dlv_1") == an_arrival()
    (tmp_path / "missing").mkdir()
    notes.note(an_arrival(2))
    assert len(Arrivals(tmp_path / "missing" / "arrivals").standing) == len(notes.standing)
    notes.close()

"""Send receipts are written at once, and read by the next process."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from delivery.workers.send_receipts import SendReceipt, SendReceipts


def make_receipt(number: int = 1) -> SendReceipt:
    """Return an arrival with names of its own."""
    return SendReceipt(delivery=f"dlv_{number}", attempt=1, platform_id=str(number), duration_ms=4.5)


def test_a_note_is_there_for_the_next_process(tmp_path: Path) -> None:
    """Nothing is closed or flushed: the process may have been killed right after."""
    notes = SendReceipts(tmp_path / "arrivals")
    assert notes.pending == ()
    notes.append(make_receipt(1))
    notes.append(make_receipt(2))
    assert SendReceipts(tmp_path / "arrivals").pending == (make_receipt(1), make_receipt(2))
    assert notes.get("dlv_2") == make_receipt(2)
    assert notes.get("dlv_3") is None
    notes.close()


def test_the_file_stays_small_and_keeps_pending_receipts(tmp_path: Path) -> None:
    """Recorded receipts are dropped when a page is full; open ones move to the next page."""
    path = tmp_path / "arrivals"
    notes = SendReceipts(path, max_file_bytes=1000)
    notes.append(make_receipt(0))
    for number in range(1, 200):
        notes.append(make_receipt(number))
        notes.remove(f"dlv_{number}")
    assert path.stat().st_size < 2000
    found = SendReceipts(path).pending
    assert found[0] == make_receipt(0)
    assert found[-1] == make_receipt(199)
    notes.close()


def test_earlier_receipts_stay_until_they_are_removed(tmp_path: Path) -> None:
    """A process that is killed before it could record them leaves them to the next."""
    first = SendReceipts(tmp_path / "arrivals")
    first.append(make_receipt(1))
    second = SendReceipts(tmp_path / "arrivals")
    second.append(make_receipt(2))
    third = SendReceipts(tmp_path / "arrivals")
    assert third.pending == (make_receipt(1), make_receipt(2))
    third.remove("dlv_1")
    third.append(make_receipt(3))
    assert SendReceipts(tmp_path / "arrivals").pending == (make_receipt(2), make_receipt(3))
    for notes in (first, second, third):
        notes.close()


def test_a_line_that_was_cut_short_is_no_note(tmp_path: Path) -> None:
    """The others are."""
    path = tmp_path / "arrivals"
    notes = SendReceipts(path)
    notes.append(make_receipt(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20] + b"\n[1]\n{}\n\xff")
    with capture_logs() as logs:
        assert SendReceipts(path).pending == (make_receipt(1),)
    assert {entry["event"] for entry in logs} == {"delivery.receipt_skipped"}
    notes.close()


def test_without_a_place_to_write_it_is_as_before(tmp_path: Path) -> None:
    """A missing directory or a full disk is logged and costs nothing else."""
    notes = SendReceipts(tmp_path / "missing" / "arrivals")
    with capture_logs() as logs:
        notes.append(make_receipt())
    assert [entry["event"] for entry in logs] == ["delivery.receipt_failed"]
    assert notes.get("dlv_1") == make_receipt()
    (tmp_path / "missing").mkdir()
    notes.append(make_receipt(2))
    assert len(SendReceipts(tmp_path / "missing" / "arrivals").pending) == len(notes.pending)
    notes.close()

"""One-time codes for the console: used once, for minutes, and only if there is a key to give."""

from __future__ import annotations

from pathlib import Path

from gateway.accounts.entry_codes import LIFETIME, EntryCodes


def test_a_code_gives_the_key_once(tmp_path: Path) -> None:
    """The second use of a code, and any text that is no code, give nothing."""
    (tmp_path / "key").write_text("dvk_own\n")
    codes = EntryCodes(tmp_path / "key")
    code = codes.issue()
    assert code is not None
    assert codes.redeem("x" * len(code)) is None
    assert codes.redeem(code) == "dvk_own"
    assert codes.redeem(code) is None


def test_a_code_ends_and_each_is_another(tmp_path: Path) -> None:
    """A code is worth nothing after its time; a later one has its own."""
    (tmp_path / "key").write_text("dvk_own")
    now = 0.0
    codes = EntryCodes(tmp_path / "key", clock=lambda: now)
    first = codes.issue()
    now = LIFETIME
    second = codes.issue()
    assert first is not None
    assert second is not None
    assert first != second
    assert codes.redeem(first) is None
    assert codes.redeem(second) == "dvk_own"


def test_without_a_key_there_is_no_code(tmp_path: Path) -> None:
    """A gateway whose key file is gone has nothing to exchange."""
    codes = EntryCodes(tmp_path / "key")
    assert codes.issue() is None
    (tmp_path / "key").write_text("dvk_own")
    code = codes.issue()
    (tmp_path / "key").unlink()
    assert code is not None
    assert codes.redeem(code) is None

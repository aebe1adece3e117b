"""What is remembered for a while is forgotten afterwards."""

from __future__ import annotations

from channels.receiving.expiring_set import ExpiringSet


def test_a_member_leaves_after_its_time() -> None:
    """A member that is added again stays for the whole time."""
    now = 100.0
    refused = ExpiringSet[str](10, seconds=60.0, clock=lambda: now)
    assert "C1" not in refused
    refused.add("C1")
    now = 159.0
    assert "C1" in refused
    refused.add("C1")
    now = 218.0
    assert "C1" in refused
    now = 219.0
    assert "C1" not in refused


def test_the_oldest_member_leaves_a_full_set() -> None:
    """A set of foreign ids is bounded."""
    refused = ExpiringSet[str](2, seconds=60.0)
    for room in ("C1", "C2", "C3"):
        refused.add(room)
    assert [room in refused for room in ("C1", "C2", "C3")] == [False, True, True]

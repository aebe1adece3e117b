"""A process is ready when its roles work; degraded parts do not make it unready."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.setting_types import Role
from gateway.observability.readiness import assess

HEALTHY: dict[str, Any] = {
    "database": "ok",
    "is_broker_up": True,
    "starting": [],
    "not_receiving": {},
    "channel_errors": {},
    "fill_ratio": 0.1,
}


@pytest.mark.parametrize(
    ("role", "ready"),
    [(Role.INGRESS, True), (Role.REAPER, True), (Role.TURNS, False), (Role.DELIVERY, False)],
)
def test_only_some_roles_need_the_broker(role: Role, *, ready: bool) -> None:
    """Without NATS messages are still accepted; turns and deliveries wait."""
    assert assess(frozenset({role}), **HEALTHY | {"is_broker_up": False}).ready is ready
    assert assess(frozenset({role}), **HEALTHY).ready


def test_every_role_needs_the_database_and_its_channels() -> None:
    """Without a database, or with a channel that does not receive yet, it is unready and names the cause."""
    gone = assess(frozenset({Role.REAPER}), **HEALTHY | {"database": "away"})
    assert (gone.ready, gone.checks["database"]) == (False, "away")
    deaf = assess(frozenset(Role), **HEALTHY | {"starting": ["telegram"]})
    assert (deaf.ready, deaf.checks["channels"]) == (False, "not receiving: telegram")

    silent = assess(
        frozenset(Role), **HEALTHY | {"starting": ["slack"], "not_receiving": {"telegram": "refused"}}
    )
    assert (silent.ready, silent.checks["channels"]) == (False, "not receiving: slack, telegram (refused)")


def test_a_full_log_and_a_channel_in_trouble_degrade() -> None:
    """Both are reported, and the process stays ready."""
    told = assess(
        frozenset(Role), **HEALTHY | {"fill_ratio": 0.85, "channel_errors": {"slack": "wrong token"}}
    )
    assert told.ready
    assert told.degraded["slack"] == "wrong token"
    assert told.degraded["event log"].startswith("uses 85% of its capacity")
    assert "event log" not in assess(frozenset(Role), **HEALTHY | {"fill_ratio": 0.8}).degraded

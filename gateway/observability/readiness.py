"""Decide whether a process is ready for its roles, from the state of its dependencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from delivery.broker.epochs import FILL_WARNING
from gateway.config.setting_types import Role


def assess(
    roles: frozenset[Role],
    *,
    database: str,
    is_broker_up: bool,
    starting: Sequence[str],
    not_receiving: Mapping[str, str],
    channel_errors: Mapping[str, str],
    fill_ratio: float,
) -> Health:
    """Return what is missing and what is degraded: ingress needs SQL and its channels, other roles NATS too.

    `database` is "ok" or its problem. `starting` are channels that should receive in this process and do
    not yet. `not_receiving` gives the reasons of channels that have not received for too long, and
    `channel_errors` other problems of channels, both by name. `fill_ratio` is how full the event log is, 0
    to 1.
    """
    checks = {"database": database}
    if roles & {Role.TURNS, Role.DELIVERY}:
        checks["broker"] = "ok" if is_broker_up else "not connected"
    silent = [*starting, *(f"{name} ({why})" for name, why in not_receiving.items())]
    checks["channels"] = f"not receiving: {', '.join(silent)}" if silent else "ok"
    degraded = dict(channel_errors)
    if fill_ratio > FILL_WARNING:
        degraded["event log"] = (
            f"uses {fill_ratio:.0%} of its capacity; when it is full, the oldest events are deleted"
        )
    return Health(ready=all(state == "ok" for state in checks.values()), checks=checks, degraded=degraded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The result of `/readyz`: whether the roles are ready, and what is degraded without failing them."""

    ready: bool
    checks: Mapping[str, str] = field(default_factory=dict)
    degraded: Mapping[str, str] = field(default_factory=dict)

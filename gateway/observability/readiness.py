"""Whether a process does what its roles say, from how everything it stands on is."""

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
    """Return what is missing and what is degraded: ingress needs SQL and its channels, the others NATS too.

    `database` is "ok" or what is wrong with it; `waiting` are channels that should receive here and do not
    yet; `deaf` says why channels have not received for too long, and `troubles` what else is wrong with
    channels, by name; `fill` is how full the event log is, 0 to 1.
    """
    checks = {"database": database}
    if roles & {Role.TURNS, Role.DELIVERY}:
        checks["broker"] = "ok" if is_broker_up else "not connected"
    silent = [*starting, *(f"{name} ({why})" for name, why in not_receiving.items())]
    checks["channels"] = f"not receiving: {', '.join(silent)}" if silent else "ok"
    degraded = dict(channel_errors)
    if fill_ratio > FILL_WARNING:
        degraded["event log"] = f"takes {fill_ratio:.0%} of its room; when it is full, the oldest events go"
    return Health(ready=all(state == "ok" for state in checks.values()), checks=checks, degraded=degraded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What `/readyz` says: ready by role, and what is degraded without failing it."""

    ready: bool
    checks: Mapping[str, str] = field(default_factory=dict)
    degraded: Mapping[str, str] = field(default_factory=dict)

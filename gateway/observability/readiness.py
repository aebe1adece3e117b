"""Whether a process does what its roles say, from how everything it stands on is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from delivery.broker.epochs import ALARM
from gateway.config.setting_types import Role


def assess(
    roles: frozenset[Role],
    *,
    database: str,
    broker: bool,
    waiting: Sequence[str],
    deaf: Mapping[str, str],
    troubles: Mapping[str, str],
    fill: float,
) -> Health:
    """Return what is missing and what is degraded: ingress needs SQL and its channels, the others NATS too.

    `database` is "ok" or what is wrong with it; `waiting` are channels that should receive here and do not
    yet; `deaf` says why channels have not received for too long, and `troubles` what else is wrong with
    channels, by name; `fill` is how full the event log is, 0 to 1.
    """
    checks = {"database": database}
    if roles & {Role.TURNS, Role.DELIVERY}:
        checks["broker"] = "ok" if broker else "not connected"
    silent = [*waiting, *(f"{name} ({why})" for name, why in deaf.items())]
    checks["channels"] = f"not receiving: {', '.join(silent)}" if silent else "ok"
    degraded = dict(troubles)
    if fill > ALARM:
        degraded["event log"] = f"takes {fill:.0%} of its room; when it is full, the oldest events go"
    return Health(ready=all(state == "ok" for state in checks.values()), checks=checks, degraded=degraded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What `/readyz` says: ready by role, and what is degraded without failing it."""

    ready: bool
    checks: Mapping[str, str] = field(default_factory=dict)
    degraded: Mapping[str, str] = field(default_factory=dict)

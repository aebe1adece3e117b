"""Decide whether a process is ready for its roles, from the state of what the process itself needs.

Channels belong to accounts: a broken one does not make the process unready, and nothing of it is reported
here, because `/readyz` needs no key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from delivery.broker.stream_config import FILL_WARNING
from delivery.exhaustion import Resource
from gateway.config.setting_types import Role


def assess(
    roles: frozenset[Role],
    *,
    database: str,
    resources: Mapping[Resource, str],
    broker: str,
    channels_loaded: bool,
    is_disk_low: bool,
    disk_concern: str = "",
    fill_ratio: float,
) -> Health:
    """Return what is missing and what is degraded: every role needs SQL and a disk, some need NATS.

    `database`, `broker` and each of `resources` are "ok" or the problem. `channels_loaded`: this process
    knows its channels. `disk_concern` is the problem of a directory on a disk of its own, such as that of the
    workspaces: messages are received without it. `fill_ratio` is how full the event log is, 0 to 1.
    """
    checks = {"database": database} | {str(name): state for name, state in resources.items()}
    if roles & {Role.TURNS, Role.DELIVERY}:
        checks["broker"] = broker
    if Role.INGRESS in roles:
        checks["channels"] = "ok" if channels_loaded else "not loaded from the database yet"
    degraded = {}
    if disk_concern or is_disk_low:
        degraded["disk"] = disk_concern or "little space is left"
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

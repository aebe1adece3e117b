"""The result of one check of `dovecote doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """The state of a check; only `failed` prevents the gateway from working."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check: its subject, its state, the details, and what to do if it failed."""

    subject: str
    state: CheckState
    detail: str
    remedy: str = ""


MAX_CLOCK_SKEW = 30.0
"""Seconds of clock difference that signatures and leases tolerate."""


def passed(subject: str, detail: str) -> DoctorCheck:
    """Return a check that passed."""
    return DoctorCheck(subject, CheckState.OK, detail)


def failed(subject: str, detail: str, remedy: str) -> DoctorCheck:
    """Return a check that failed."""
    return DoctorCheck(subject, CheckState.FAILED, detail, remedy)

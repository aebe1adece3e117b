"""The result of one check of `dovecote doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """How a check came out; only `failed` keeps the gateway from working."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """What was looked at, how it is, and what to do if it is not well."""

    subject: str
    state: CheckState
    detail: str
    remedy: str = ""


MAX_CLOCK_SKEW = 30.0
"""Seconds a clock may be off before signatures and leases suffer."""


def passed(subject: str, detail: str) -> DoctorCheck:
    """Return a check that is well."""
    return DoctorCheck(subject, CheckState.OK, detail)


def failed(subject: str, detail: str, remedy: str) -> DoctorCheck:
    """Return a check that failed."""
    return DoctorCheck(subject, CheckState.FAILED, detail, remedy)

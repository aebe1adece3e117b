"""The result of one check of `dovecote doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How a check came out; only `failed` keeps the gateway from working."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and what to do if it is not well."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


SKEW = 30.0
"""Seconds a clock may be off before signatures and leases suffer."""


def well(subject: str, detail: str) -> Check:
    """Return a check that is well."""
    return Check(subject, State.OK, detail)


def failed(subject: str, detail: str, remedy: str) -> Check:
    """Return a check that failed."""
    return Check(subject, State.FAILED, detail, remedy)

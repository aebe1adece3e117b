"""Failed responses of the simulated Slack, and faults that are set on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class ApiFailure(Exception):
    """A response with `ok: false` or another status; `details` adds fields to the error code."""

    def __init__(
        self,
        error: str,
        *,
        status: int = 200,
        retry_after: int = 0,
        details: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.error = error
        self.status = status
        self.details = dict(details or {})
        self.headers = {"Retry-After": str(retry_after)} if retry_after else {}


class ConnectionCut(Exception):
    """The connection ends without a response."""


@dataclass(slots=True)
class Fault:
    """A fault for the next `times` calls of a method, or of any.

    With `having` it applies only to calls that have this argument, such as one kind of content.
    Without a failure it cuts the connection; with `seconds` it delays the response by that much instead.
    """

    times: int
    method: str | None
    failure: ApiFailure | None = None
    after: bool = False
    seconds: float = 0.0
    having: str | None = None


class Faults:
    """The faults that are set, consumed one by one."""

    def __init__(self) -> None:
        self._set: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Add a fault."""
        self._set.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        self._set.clear()

    def apply_before(self, method: str, given: Mapping[str, Any]) -> Fault | None:
        """Apply a fault before the call, and return it, to be applied after the call too."""
        for fault in self._set:
            concerns = fault.method in {None, method} and (fault.having is None or given.get(fault.having))
            if fault.times > 0 and concerns:
                fault.times -= 1
                if fault.failure:
                    raise fault.failure
                if not fault.after and not fault.seconds:
                    raise ConnectionCut
                return fault
        return None

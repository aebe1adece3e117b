"""The answers of the simulated Slack that say no, and what goes wrong on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class ApiFailure(Exception):
    """An answer with `ok: false`, or one of another status; `told` stands beside the word."""

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
    """The connection ends without an answer."""


@dataclass(slots=True)
class Fault:
    """A fault for the next `times` calls of a method, or of any; without a failure it is a cut."""

    times: int
    method: str | None
    failure: ApiFailure | None = None
    after: bool = False


class Faults:
    """The faults that are set, taken one by one."""

    def __init__(self) -> None:
        self._set: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Set a fault."""
        self._set.append(fault)

    def clear(self) -> None:
        """Let everything go well again."""
        self._set.clear()

    def apply_before(self, method: str) -> bool:
        """Meet the fault before the call is carried out; say whether the answer is cut off after it."""
        for fault in self._set:
            if fault.times > 0 and fault.method in {None, method}:
                fault.times -= 1
                if fault.failure:
                    raise fault.failure
                if not fault.after:
                    raise ConnectionCut
                return True
        return False

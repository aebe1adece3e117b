"""Failed responses of the simulated Telegram."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ApiFailure(Exception):
    """A response with `ok: false` and the text of the real Bot API."""

    def __init__(self, status: int, description: str, parameters: Mapping[str, Any] | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.description = description
        self.parameters = dict(parameters or {})

    @property
    def answer(self) -> dict[str, Any]:
        """The body of the response."""
        body: dict[str, Any] = {"ok": False, "error_code": self.status, "description": self.description}
        return {**body, "parameters": self.parameters} if self.parameters else body


class ConnectionCut(Exception):
    """The connection ends without a response."""


def bad_request(description: str) -> ApiFailure:
    """Return a 400."""
    return ApiFailure(400, f"Bad Request: {description}")


def too_many_requests(seconds: int) -> ApiFailure:
    """Return a 429."""
    return ApiFailure(429, f"Too Many Requests: retry after {seconds}", {"retry_after": seconds})

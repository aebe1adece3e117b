"""Errors of the client.

DovecoteError
├── RequestRefused   the gateway refused the request: it would be refused again
└── GatewayAway      no gateway answered within the client's patience
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class DovecoteError(Exception):
    """The gateway did not do what was asked."""


class RequestRefused(DovecoteError):
    """The gateway refused; `status` is that of HTTP, or the close code of the WebSocket."""

    def __init__(self, status: int, detail: str, *, errors: Sequence[Mapping[str, Any]] = ()) -> None:
        fields = "; ".join(f"{one.get('pointer', '')}: {one.get('detail', '')}" for one in errors)
        super().__init__(f"{detail} ({fields})" if fields else detail)
        self.status = status
        self.errors = tuple(errors)
        """The invalid fields: `pointer` and `detail` of each."""


class GatewayAway(DovecoteError):
    """No gateway answered within the client's patience."""

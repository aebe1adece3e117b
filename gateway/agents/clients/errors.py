"""Errors of requests to models.

ModelCallError
├── ModelKeyRefused        the key, or what it may use
├── ModelUnknown           no such model
├── ModelQuotaUsedUp       the account's quota or credit
├── ModelContextExceeded   the conversation is longer than the model's context
├── ModelRequestRefused    any other request that the server does not accept
├── ModelRateLimited       too many requests
├── ModelServerFailed      5xx
├── ModelUnreachable       no connection, or an answer that broke off or cannot be read
├── ModelTimedOut          the whole answer took longer than allowed
└── AllModelsFailed        every model of a list failed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class ModelCallError(Exception):
    """A request to a model failed.

    `is_transient`: another model, or the same one later, may answer. `may_pass`: the turn may be repeated.
    `status` is the HTTP status, `body` the beginning of the server's own words, and `retry_after` the seconds
    that the server asks to wait.
    """

    is_transient: ClassVar[bool] = False
    may_pass: ClassVar[bool] = False

    def __init__(
        self,
        model: str,
        detail: str = "",
        *,
        status: int | None = None,
        body: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail or body or type(self).__name__)
        self.model = model
        self.detail = detail
        self.status = status
        self.body = body
        self.retry_after = retry_after


class ModelKeyRefused(ModelCallError):
    """The server refused the key, or what it may use."""


class ModelUnknown(ModelCallError):
    """The server does not know the model."""


class ModelQuotaUsedUp(ModelCallError):
    """The account's quota is used up; another vendor's model may answer."""

    is_transient = True


class ModelContextExceeded(ModelCallError):
    """The conversation is longer than the model's context."""


class ModelRequestRefused(ModelCallError):
    """The server does not accept the request."""


class ModelRateLimited(ModelCallError):
    """The server got too many requests."""

    is_transient = may_pass = True


class ModelServerFailed(ModelCallError):
    """The server failed (5xx)."""

    is_transient = may_pass = True


class ModelUnreachable(ModelCallError):
    """The server could not be reached, or its answer broke off or could not be read."""

    is_transient = may_pass = True


class ModelTimedOut(ModelCallError):
    """The whole answer took longer than `seconds`."""

    is_transient = may_pass = True

    def __init__(self, model: str, seconds: float) -> None:
        super().__init__(model, f"no answer within {seconds:g} s")
        self.seconds = seconds


class AllModelsFailed(ModelCallError):
    """Every model of a failover list failed."""

    def __init__(self, failures: Sequence[ModelCallError]) -> None:
        super().__init__(failures[0].model, "; ".join(str(one) for one in failures))
        self.failures = tuple(failures)

"""Translate the errors of nats-py and of the JetStream API into delivery errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nats.errors import Error as NatsError
from nats.errors import NoServersError

from delivery.errors import AppendConflict, BrokerRefused, BrokerUnreachable

_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
TRANSIENT_CODES = frozenset({10008, 10164})
"""Error codes worth a retry: JetStream not yet available, or another append to the subject in flight."""


def connect_error(error: BaseException, reported: Exception | None) -> Exception:
    """Return the error of a failed connection attempt.

    nats-py raises only that it found no server; the cause is in `reported`, the last error it reported.
    """
    if is_auth_error(error) or is_auth_error(reported):
        return BrokerRefused("the NATS server refuses the credentials; check the URL and the token")
    if isinstance(error, NoServersError | OSError | NatsError | TimeoutError):
        return BrokerUnreachable(f"cannot connect to NATS: {reported or error}")
    return BrokerRefused(f"cannot connect to NATS: {error}")


def is_auth_error(error: BaseException | None) -> bool:
    """Return whether the server has rejected the credentials; a later attempt may fail without a reason."""
    text = str(error).lower()
    return "authorization" in text or "authentication" in text


def error_for(subject: str, error: Mapping[str, Any]) -> Exception:
    """Return the delivery error for the `error` object of a JetStream response on `subject`."""
    code = error.get("err_code")
    detail = f"{error.get('description', 'no reason given')} ({code}) on {subject}"
    if code in _WRONG_LAST_SEQUENCE:
        return AppendConflict(detail)
    if code in TRANSIENT_CODES:
        return BrokerUnreachable(detail)
    return BrokerRefused(detail)

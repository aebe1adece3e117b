"""Translate the SDK's errors by one table (daytona.common.errors of daytona 0.226)."""

from __future__ import annotations

from contextlib import AbstractContextManager

from daytona.common import errors as vendor

from sandbox.errors import (
    REFUSALS,
    ErrorTable,
    ProviderRefused,
    ProviderUnauthorized,
    SandboxGone,
    translate_by,
)

_REFUSALS: ErrorTable = (
    (vendor.DaytonaAuthenticationError, ProviderUnauthorized),
    (vendor.DaytonaForbiddenError, ProviderRefused),
    (vendor.DaytonaBadRequestError, ProviderRefused),
    (vendor.DaytonaConflictError, ProviderRefused),
    (vendor.DaytonaUnprocessableEntityError, ProviderRefused),
)
TABLE: ErrorTable = (
    (vendor.DaytonaNotFoundError, SandboxGone),
    (vendor.DaytonaGoneError, SandboxGone),
    (vendor.DaytonaSpotEvictedError, SandboxGone),
    *_REFUSALS,
)
"""The answers of the control plane. Every other error is ProviderUnreachable, unless it is a refusal too."""


_REFUSING_STATUSES = range(400, 500)


def translate_errors() -> AbstractContextManager[None]:
    """Translate the SDK's errors into ours, for calls of the control plane."""
    return translate_by(TABLE, "daytona", refusals=REFUSALS)


def translate_creation_errors() -> AbstractContextManager[None]:
    """Translate the errors of a creation: a 404 is that of a snapshot, or of whatever else it names."""
    return translate_by(_REFUSALS, "daytona", refusals=REFUSALS)


def translate_call_errors() -> AbstractContextManager[None]:
    """Translate the errors of a call of one sandbox: a 404 of its toolbox does not mean that it is gone.

    The toolbox is behind a proxy, and answers 404 for files and sessions too. Only the control plane says
    that a sandbox is gone.
    """
    return translate_by(_REFUSALS, "daytona")


def was_refused(error: vendor.DaytonaError) -> bool:
    """Return whether the service refused a call, so that nothing was executed.

    After any other failure, such as a 502 or a lost connection, that is unknown.
    """
    return error.status_code in _REFUSING_STATUSES

"""Translate the SDK's errors by one table (daytona.common.errors of daytona 0.226)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from daytona.common import errors as vendor

from sandbox.errors import (
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxError,
    SandboxGone,
)

TABLE: tuple[tuple[type[BaseException], type[SandboxError]], ...] = (
    (vendor.DaytonaNotFoundError, SandboxGone),
    (vendor.DaytonaGoneError, SandboxGone),
    (vendor.DaytonaSpotEvictedError, SandboxGone),
    (vendor.DaytonaAuthenticationError, ProviderUnauthorized),
    (vendor.DaytonaForbiddenError, ProviderRefused),
    (vendor.DaytonaRateLimitError, ProviderUnreachable),
    (vendor.DaytonaTimeoutError, ProviderUnreachable),
    (vendor.DaytonaConnectionError, ProviderUnreachable),
    (vendor.DaytonaBadRequestError, ProviderRefused),
    (vendor.DaytonaConflictError, ProviderRefused),
    (vendor.DaytonaUnprocessableEntityError, ProviderRefused),
    (vendor.DaytonaError, ProviderUnreachable),
    (aiohttp.ClientError, ProviderUnreachable),
    (TimeoutError, ProviderUnreachable),
    (OSError, ProviderUnreachable),
)
"""The first matching row applies."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the SDK's errors into ours."""
    try:
        yield
    except tuple(kind for kind, _ours in TABLE) as error:
        ours = next(ours for kind, ours in TABLE if isinstance(error, kind))
        raise ours(f"daytona: {error}"[:500]) from error

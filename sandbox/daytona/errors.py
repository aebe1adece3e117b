"""The one table from the SDK's errors to ours (daytona.common.errors of daytona 0.226)."""

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
"""The first line that fits."""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn what the SDK raises into our errors."""
    try:
        yield
    except tuple(kind for kind, _ours in TABLE) as error:
        ours = next(ours for kind, ours in TABLE if isinstance(error, kind))
        raise ours(f"daytona: {error}"[:500]) from error

"""The one table from the SDK's errors to ours (daytona.common.errors of daytona 0.226)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from daytona.common import errors as vendor

from sandbox.errors import Gone, Refused, SandboxError, Unauthorized, Unreachable

TABLE: tuple[tuple[type[BaseException], type[SandboxError]], ...] = (
    (vendor.DaytonaNotFoundError, Gone),
    (vendor.DaytonaGoneError, Gone),
    (vendor.DaytonaSpotEvictedError, Gone),
    (vendor.DaytonaAuthenticationError, Unauthorized),
    (vendor.DaytonaForbiddenError, Refused),
    (vendor.DaytonaRateLimitError, Unreachable),
    (vendor.DaytonaTimeoutError, Unreachable),
    (vendor.DaytonaConnectionError, Unreachable),
    (vendor.DaytonaBadRequestError, Refused),
    (vendor.DaytonaConflictError, Refused),
    (vendor.DaytonaUnprocessableEntityError, Refused),
    (vendor.DaytonaError, Unreachable),
    (aiohttp.ClientError, Unreachable),
    (TimeoutError, Unreachable),
    (OSError, Unreachable),
)
"""The first line that fits."""


@contextmanager
def folded() -> Iterator[None]:
    """Turn what the SDK raises into our errors."""
    try:
        yield
    except tuple(kind for kind, _ours in TABLE) as error:
        ours = next(ours for kind, ours in TABLE if isinstance(error, kind))
        raise ours(f"daytona: {error}"[:500]) from error

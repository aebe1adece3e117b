"""The one table from the SDK's errors to ours (e2b.exceptions of e2b 2.63)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import e2b
import httpx
from e2b import exceptions as vendor

from sandbox.errors import Gone, Refused, SandboxError, Unauthorized, Unreachable

TABLE: tuple[tuple[type[BaseException], type[SandboxError]], ...] = (
    (vendor.SandboxNotFoundException, Gone),
    (vendor.SandboxNotRunningException, Gone),
    (vendor.NotFoundException, Gone),
    (vendor.AuthenticationException, Unauthorized),
    (vendor.RateLimitException, Unreachable),
    (vendor.SandboxUnreachableException, Unreachable),
    (vendor.TimeoutException, Unreachable),
    (vendor.NotEnoughSpaceException, Refused),
    (vendor.InvalidArgumentException, Refused),
    (vendor.TemplateException, Refused),
    (e2b.BuildException, Refused),
    (vendor.SandboxException, Unreachable),
    (StopAsyncIteration, Unreachable),
    (httpx.HTTPError, Unreachable),
    (OSError, Unreachable),
)
"""The first line that fits; AuthenticationException and BuildException are no SandboxException.

A stream that ends before its first event leaves the SDK as a bare StopAsyncIteration.
"""


@contextmanager
def folded() -> Iterator[None]:
    """Turn what the SDK raises into our errors."""
    try:
        yield
    except tuple(kind for kind, _ours in TABLE) as error:
        ours = next(ours for kind, ours in TABLE if isinstance(error, kind))
        raise ours(f"e2b: {error}"[:500]) from error

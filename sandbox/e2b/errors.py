"""Translate the SDK's errors by one table (e2b.exceptions of e2b 2.63)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import e2b
import httpx
from e2b import exceptions as vendor

from sandbox.errors import (
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxError,
    SandboxGone,
)

TABLE: tuple[tuple[type[BaseException], type[SandboxError]], ...] = (
    (vendor.SandboxNotFoundException, SandboxGone),
    (vendor.SandboxNotRunningException, SandboxGone),
    (vendor.NotFoundException, SandboxGone),
    (vendor.AuthenticationException, ProviderUnauthorized),
    (vendor.RateLimitException, ProviderUnreachable),
    (vendor.SandboxUnreachableException, ProviderUnreachable),
    (vendor.TimeoutException, ProviderUnreachable),
    (vendor.NotEnoughSpaceException, ProviderRefused),
    (vendor.InvalidArgumentException, ProviderRefused),
    (vendor.TemplateException, ProviderRefused),
    (e2b.BuildException, ProviderRefused),
    (vendor.SandboxException, ProviderUnreachable),
    (StopAsyncIteration, ProviderUnreachable),
    (httpx.HTTPError, ProviderUnreachable),
    (OSError, ProviderUnreachable),
)
"""The first matching row applies; AuthenticationException and BuildException are no SandboxException.

For a stream that ends before its first event the SDK raises a bare StopAsyncIteration.
"""


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the SDK's errors into ours."""
    try:
        yield
    except tuple(kind for kind, _ours in TABLE) as error:
        ours = next(ours for kind, ours in TABLE if isinstance(error, kind))
        raise ours(f"e2b: {error}"[:500]) from error

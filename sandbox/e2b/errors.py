"""Translate the SDK's errors by one table (e2b.exceptions of e2b 2.63)."""

from __future__ import annotations

from contextlib import AbstractContextManager

import e2b
from e2b import exceptions as vendor

from sandbox.errors import (
    REFUSALS,
    ErrorTable,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxGone,
    translate_by,
)

TABLE: ErrorTable = (
    (vendor.SandboxNotFoundException, SandboxGone),
    (vendor.SandboxNotRunningException, SandboxGone),
    (vendor.AuthenticationException, ProviderUnauthorized),
    (vendor.RateLimitException, ProviderUnreachable),
    (vendor.NotEnoughSpaceException, ProviderRefused),
    (vendor.InvalidArgumentException, ProviderRefused),
    (vendor.TemplateException, ProviderRefused),
    (e2b.BuildException, ProviderRefused),
)
"""The SDK has no class for most refusals of the control plane, such as 400 and 403, but the status of one.

It has no status for an answer from inside a sandbox. Every other error is ProviderUnreachable. A plain
NotFoundException is one of them: it is a 404 from inside the sandbox or from a proxy before it, and only the
control plane says that a sandbox is gone. Others are ServiceBusyException (503), the transport's errors, for
which the SDK has no class, and a bare StopAsyncIteration for a stream without an event.
"""


def translate_errors() -> AbstractContextManager[None]:
    """Translate the SDK's errors into ours."""
    return translate_by(TABLE, "e2b", refusals=REFUSALS)

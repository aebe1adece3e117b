"""Translate the answers of AgentRun into our errors by one table of status codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from sandbox.errors import (
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxError,
    SandboxGone,
)

TABLE: dict[int, type[SandboxError]] = {
    400: ProviderRefused,
    401: ProviderUnauthorized,
    403: ProviderUnauthorized,
    404: SandboxGone,
    409: ProviderRefused,
    410: SandboxGone,
    413: ProviderRefused,
    422: ProviderRefused,
    429: ProviderUnreachable,
    507: ProviderRefused,
}
"""A status that is not listed is an error of the service: ProviderUnreachable."""

NOT_FOUND = "sandbox not found"
"""What the data plane answers, with status 200, for a sandbox that it no longer knows."""


def error_for(status: int, code: str, message: str) -> SandboxError:
    """Return the error for an answer that is not a success; its texts are untrusted.

    The service's own errors have a code. A 404 without one is of a proxy, and no sandbox is gone by it.
    """
    text = f"agentrun: {code or status}: {message}"[:500]
    if code and NOT_FOUND in message.lower():
        return SandboxGone(text)
    if status < 400:  # noqa: PLR2004 - accepted as a request, refused by its content
        return ProviderRefused(text)
    kind = TABLE.get(status, ProviderUnreachable)
    return foreign_answer(status, message) if kind is SandboxGone and not code else kind(text)


def foreign_answer(status: int, content: str) -> ProviderUnreachable:
    """Return the error for an answer that is not AgentRun's, such as a page of a proxy."""
    return ProviderUnreachable(
        f"agentrun: an answer {status} is not the service's: check data_url, control_url and the proxies on"
        f" the way: {content[:200]!r}"
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the errors of connections into ours."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProviderUnreachable(f"agentrun: {str(error) or type(error).__name__}"[:500]) from error

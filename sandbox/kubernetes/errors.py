"""Translate the answers of the API server by one table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import ConfigException

from sandbox.errors import (
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxError,
    SandboxGone,
)

NOT_FOUND, CONFLICT, TOO_MANY = 404, 409, 429
_FORBIDDEN, _SERVER_ERROR = 403, 500
REFUSED_BEFORE_START = frozenset({400, NOT_FOUND, CONFLICT, _SERVER_ERROR})
"""What the handshake of an exec answers when the pod or its container does not run."""


class ObjectConflict(ProviderRefused):
    """An object of this name exists, or has changed since it was read."""


class PodUnavailable(ProviderUnreachable):
    """The pod does not exist or does not run; nothing was started in it."""


_TABLE: dict[int, type[SandboxError]] = {
    401: ProviderUnauthorized,
    _FORBIDDEN: ProviderUnauthorized,
    NOT_FOUND: SandboxGone,
    CONFLICT: ObjectConflict,
    410: SandboxGone,
    TOO_MANY: ProviderUnreachable,
}
_NO_SUCH_PATH = "404 page not found"
_MISSING_ROLE = re.compile(r'User "[^"]*" cannot ')


def error_for(status: int, message: str) -> SandboxError:
    """Return our error for an answer; what a quota or an admission rule refuses has status 403 too."""
    if status == _FORBIDDEN and not _MISSING_ROLE.search(message):
        return ProviderRefused(f"the cluster refused: {message}")
    kind = _TABLE.get(status, ProviderUnreachable if status >= _SERVER_ERROR else ProviderRefused)
    return kind(f"the Kubernetes API server answered {status}: {message}"[:1000])


def error_of_answer(status: int, body: bytes | str | None, reason: str) -> SandboxError:
    """Return our error for an answer; its 404 is only believed if it is a Status object.

    A proxy before the API server answers 404 too, and the jobs of a sandbox that is gone end as failed.
    """
    error = error_for(status, message_of(body) or reason)
    if isinstance(error, SandboxGone) and not _is_status(body):
        return foreign_answer(status, message_of(body))
    return error


def foreign_answer(status: int, content: str) -> ProviderUnreachable:
    """Return the error for an answer that is not the API server's, such as a page of a proxy."""
    return ProviderUnreachable(
        f"an answer {status} is not the Kubernetes API server's: check api_url and the proxies on the way:"
        f" {content[:200]!r}"
    )


def _is_status(body: bytes | str | None) -> bool:
    """Return whether a body is a Status object; for a group that it lacks the server answers a plain text."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    if text.strip() == _NO_SUCH_PATH:
        return True
    try:
        status = json.loads(text)
    except ValueError:
        return False
    return isinstance(status, dict) and status.get("kind") == "Status"


def message_of(body: bytes | str | None) -> str:
    """Return the message of a Status object, or the text itself."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        status = json.loads(text)
    except ValueError:
        return text[:500].strip()
    return str(status.get("message") or text[:500]) if isinstance(status, dict) else text[:500]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the errors of the client into ours."""
    try:
        yield
    except ApiException as error:
        raise error_of_answer(int(error.status or 0), error.body, str(error.reason)) from error
    except ConfigException as error:
        raise ProviderRefused(f"the access to the Kubernetes cluster is not configured: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProviderUnreachable(f"the Kubernetes API server does not answer: {error!r}") from error

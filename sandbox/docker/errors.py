"""Translate the errors of the engine and its client by one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from aiodocker.exceptions import DockerError

from sandbox.errors import (
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxError,
    SandboxGone,
)

CONFLICT, NOT_FOUND, SERVER_ERROR = 409, 404, 500
_NO_ANSWER = 900
"""The status that aiodocker uses for a connection that could not be made."""

_TABLE: dict[int, type[SandboxError]] = {
    400: ProviderRefused,
    401: ProviderUnauthorized,
    403: ProviderUnauthorized,
    404: SandboxGone,
    406: ProviderRefused,
    409: ProviderRefused,
    500: ProviderRefused,
    502: ProviderUnreachable,
    503: ProviderUnreachable,
    504: ProviderUnreachable,
    _NO_ANSWER: ProviderUnreachable,
}
_NO_SUCH = ("no such container", "no such exec", "no container with", "no exec session")
"""What an engine says of a container that it lacks; a proxy before it answers 404 too."""

_DENIED = "permission denied"
_NO_SPACE = "no space left on device"
_DISK_FULL = "the disk of the container engine is full; an operator must free space on it"
_NO_BASH = (
    "the image has no bash, so no sandbox can be made of it: set options.image of the sandbox record, or "
    "`image` in [sandbox.docker], to one that has bash, sh, python3 and the usual small programs"
)


def translate_error(error: DockerError) -> SandboxError:
    """Return our error for the engine's."""
    message = str(error.message)
    if error.status == _NO_ANSWER and _DENIED in message.lower():
        return ProviderUnauthorized(
            f"the gateway may not use the engine's socket (add it to the group): {message}"
        )
    if _NO_SPACE in message.lower():  # the rest is a path on the engine's machine
        return ProviderRefused(_DISK_FULL)
    if all(words in message for words in ("executable file", "bash", "not found")):
        return ProviderRefused(_NO_BASH)
    kind = _TABLE.get(error.status, ProviderRefused)
    if kind is SandboxGone and not any(words in message.lower() for words in _NO_SUCH):
        return ProviderUnreachable(
            f"an answer 404 is not about a container: check host and the proxies on the way: {message[:200]}"
        )
    if kind is ProviderUnreachable:
        return ProviderUnreachable(f"the container engine does not answer: {message}")
    return kind(f"the container engine answered: {message}")


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate the engine's errors into ours."""
    try:
        yield
    except DockerError as error:
        raise translate_error(error) from error
    except PermissionError as error:
        raise ProviderUnauthorized(f"the gateway may not use the engine's socket: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProviderUnreachable(f"the container engine does not answer: {error!r}") from error

"""From what the engine and its client say to what the port says: one table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from aiodocker.exceptions import DockerError

from sandbox.errors import Gone, Refused, SandboxError, Unauthorized, Unreachable

CONFLICT, NOT_FOUND, SERVER_ERROR = 409, 404, 500
_NO_ANSWER = 900
"""What aiodocker uses as the status of a connection that could not be made."""

_TABLE: dict[int, type[SandboxError]] = {
    400: Refused,
    401: Unauthorized,
    403: Unauthorized,
    404: Gone,
    406: Refused,
    409: Refused,
    500: Refused,
    502: Unreachable,
    503: Unreachable,
    504: Unreachable,
    _NO_ANSWER: Unreachable,
}
_DENIED = "permission denied"


def fold(error: DockerError) -> SandboxError:
    """Return the port's error for the engine's."""
    said = str(error.message)
    if error.status == _NO_ANSWER and _DENIED in said.lower():
        return Unauthorized(f"the gateway may not use the engine's socket (add it to the group): {said}")
    kind = _TABLE.get(error.status, Refused)
    if kind is Unreachable:
        return Unreachable(f"the container engine does not answer: {said}")
    return kind(f"the container engine says: {said}")


@contextmanager
def folded() -> Iterator[None]:
    """Raise the port's errors for the engine's."""
    try:
        yield
    except DockerError as error:
        raise fold(error) from error
    except PermissionError as error:
        raise Unauthorized(f"the gateway may not use the engine's socket: {error}") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unreachable(f"the container engine does not answer: {error!r}") from error

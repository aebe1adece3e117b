"""Creates the sandbox of a label at services whose names need not be unique."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from sandbox.errors import SandboxGone
from sandbox.port import Sandbox

MAX_ATTEMPTS = 4


async def create_one_of_label(find_or_create: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
    """Return the sandbox of a label that stays, of several processes that look for it or create it.

    Each process deletes its own sandbox if it sees an older one, and takes that one. The other may be deleted
    in the same way in between: then this one looks again. Raises SandboxGone if that happens too often.
    """
    for _ in range(MAX_ATTEMPTS - 1):
        with suppress(SandboxGone):
            return await find_or_create()
    return await find_or_create()

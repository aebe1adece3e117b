"""Say what work waits for, if it takes long: a sandbox that starts or is saved, or files that are copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum

REPORT_SECONDS = 5.0
"""Seconds after which a wait is reported; most are shorter."""


class Wait(StrEnum):
    """What work may wait for, in words for people."""

    SANDBOX = "starting the sandbox"
    LOADING = "loading the workspace"
    SAVING = "saving the files"
    LOCKED = "saving or suspending the sandbox"


OnWait = Callable[[Wait, bool], None]
"""Receive a long wait when it is noticed (True), and when it has ended (False). Must not wait."""

_ON_WAIT: ContextVar[OnWait | None] = ContextVar("on_wait", default=None)


@contextmanager
def waits_reported_to(on_wait: OnWait) -> Iterator[None]:
    """Report the long waits of this task, and of those that it starts in the block."""
    token = _ON_WAIT.set(on_wait)
    try:
        yield
    finally:
        _ON_WAIT.reset(token)


@contextmanager
def reported_wait(wait: Wait) -> Iterator[None]:
    """Report the block as a wait if it takes longer than REPORT_SECONDS."""
    on_wait = _ON_WAIT.get()
    if on_wait is None:
        yield
        return
    noticed: list[Wait] = []

    def notice() -> None:
        noticed.append(wait)
        on_wait(wait, True)  # noqa: FBT003 - the meaning is that of OnWait

    timer = asyncio.get_running_loop().call_later(REPORT_SECONDS, notice)
    try:
        yield
    finally:
        timer.cancel()
        if noticed:
            on_wait(wait, False)  # noqa: FBT003

"""What background tasks need: their errors end one pass, never the process; and waits for several events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

log = structlog.get_logger(__name__)

Result = TypeVar("Result")


@contextmanager
def log_errors(task: str, **ids: str) -> Iterator[None]:
    """Log an error of the block instead of raising it; cancellation passes.

    `task` names the background task, `ids` what it worked on. An error with the remedy "retry" is a warning,
    any other one is logged with its traceback. The warning of an outage has no ids: it is the same for all
    that wait. It has the error itself, and not its text, so that the log repeats it at growing intervals.
    """
    try:
        yield
    except Exception as error:  # a task of a TaskGroup that raises would end all the others
        if isinstance(error, OSError) or getattr(error, "remedy", None) == "retry":
            shown = {} if getattr(error, "is_outage", False) else ids
            log.warning("background_task.interrupted", task=task, error=error, **shown)
        else:
            log.exception("background_task.failed", task=task, **ids)


async def run_shielded(work: Awaitable[Result]) -> Result:
    """Await work that goes on if the caller is cancelled.

    The error of work whose callers are all cancelled is dropped; asyncio would log it with a traceback.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_drop_error)
    return await asyncio.shield(task)


def _drop_error(task: asyncio.Future[Any]) -> None:
    """Have asyncio regard the error of a task as handled."""
    if not task.cancelled():
        task.exception()


async def wait_for_any(*events: asyncio.Event, timeout: float | None = None) -> None:
    """Return when one of the events is set, or after `timeout` seconds; raises nothing."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()

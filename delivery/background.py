"""The rule for background tasks: an error ends one pass of a task, never the gateway process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

log = structlog.get_logger(__name__)


@contextmanager
def log_errors(task: str, **ids: str) -> Iterator[None]:
    """Log an error of the block instead of raising it; cancellation passes.

    `task` names the background task, `ids` what it worked on. An error with the remedy "retry" is a warning,
    any other one is logged with its traceback.
    """
    try:
        yield
    except Exception as error:  # a task of a TaskGroup that raises would end all the others
        if isinstance(error, OSError) or getattr(error, "remedy", None) == "retry":
            log.warning("background_task.interrupted", task=task, error=str(error), **ids)
        else:
            log.exception("background_task.failed", task=task, **ids)

"""The loggers of the product in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

OF_LIBRARIES = "channels.slack.sdk"
"""The one logger of ours that is silent on purpose: the SDK logs texts of messages there."""

_PRODUCT = ("dovecote", "gateway", "delivery", "channels", "sandbox", "egress")


def silent_loggers() -> list[str]:
    """Return the names of loggers of the product that would not log an error."""
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in _PRODUCT]
    return [
        name
        for name in sorted(names)
        if not name.startswith(OF_LIBRARIES)
        and (logging.getLogger(name).disabled or logging.getLogger(name).getEffectiveLevel() > logging.ERROR)
    ]


def log_plain_tracebacks() -> None:
    """Write tracebacks as Python does: those of rich, the default, take a fifth of a second each."""
    *processors, _renderer = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, renderer])


@contextmanager
def restored_logging() -> Iterator[None]:
    """Undo what the block does to logging: the handler of a command has a stream that its test closes."""
    handlers, level = logging.root.handlers, logging.root.level
    kept = [*handlers]
    configured = structlog.get_config() if structlog.is_configured() else None
    yield
    if logging.root.handlers is not handlers:
        logging.root.handlers = kept
        logging.root.setLevel(level)
    if configured is not None:
        structlog.configure(**configured)
    elif structlog.is_configured():
        structlog.reset_defaults()

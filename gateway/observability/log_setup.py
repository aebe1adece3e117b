"""Structured logs without secrets."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, TextIO

import structlog

from delivery.fair_gate import current_account
from delivery.fair_scheduler import SYSTEM
from gateway.observability.log_repeats import RepeatFilter

SECRET_PATTERNS = re.compile(
    r"(?:(?P<bot>\bbot)|(?<![0-9A-Za-z]))\d{5,}:[A-Za-z0-9_-]{20,}"  # Telegram, alone or in a URL's path
    r"|\b(?P<scheme>Bearer|Basic|Bot)\s+[A-Za-z0-9._~+/=:-]{6,}"
    r"|\b(?P<kind>whsec_|dvk_|dvj_|jtk_|job_token_|xox[abeoprs]-|xapp-|sk-|e2b_|dtn_|gh[opsu]_)[A-Za-z0-9_+/=.-]{6,}"
    r"|\b[MNO][A-Za-z0-9_-]{22,60}+\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}"  # Discord: the first part is an id
    r"|(?<=://)[^/@\s:]*+:[^/@\s]++(?=@)"  # user and password of a URL
)
"""Patterns of secrets, wherever they are in a text."""

SECRET_FIELD_NAMES = re.compile(
    r"authorization|token|secret|password|api_?key|admin_key|cookie|env_?vars", re.IGNORECASE
)
"""Fields whose value is never logged."""

QUIET_LOGGERS = (
    "httpx",
    "httpx2",
    "httpcore",
    "telegram",
    "discord",
    "alembic",
    "sqlalchemy",
    "aiohttp.access",
    "asyncio",
)
"""Loggers of libraries that would log URLs, statements or chatter below WARNING."""

MIN_SECRET_LENGTH = 6
"""Shorter values are not redacted: they occur in ordinary text, and logs would become unreadable."""


MAX_FIELD_LENGTH = 4_096
"""A longer text in a log field is cut: a line costs the event loop time for each of its characters."""

MAX_TRACEBACK_LENGTH = 32_768
"""The same for a traceback, which has the message of its exception at the end."""

_TRACEBACKS = frozenset({"exception", "stack"})
_MAX_SECRET_LENGTH = 512
"""A secret of at most this length is removed as a whole if a cut would divide it."""


def redact(text: str) -> str:
    """Return `text` with every secret we recognise blotted out."""
    return SECRET_PATTERNS.sub(_mask, text)


def _cut(text: str, length: int) -> str:
    """Return at most `length` characters of a text, without a secret that the cut would divide."""
    if len(text) <= length:
        return text
    end = length
    for secret in SECRET_PATTERNS.finditer(text, 0, length + _MAX_SECRET_LENGTH):
        if secret.start() < length <= secret.end():
            end = secret.start()
    return f"{text[:end]}… ({len(text) - end} more characters)"


def _mask(match: re.Match[str]) -> str:
    if match["scheme"]:
        return f"{match['scheme']} ***"
    return f"{match['bot'] or match['kind'] or ''}***"


@dataclass(frozen=True, slots=True)
class LogRedactor:
    """A structlog processor that redacts secrets in every field: known values, and patterns."""

    known_secrets: tuple[str, ...] = ()

    def __call__(
        self, _logger: object, _method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Return the log line without secrets."""
        for name in list(event):
            event[name] = self._clean(name, event[name])
        return event

    def _clean(self, name: str, value: object) -> object:
        if isinstance(value, bool | int | float) or value is None:
            return value
        if SECRET_FIELD_NAMES.search(name):
            return "***"
        if isinstance(value, Mapping):
            return {key: self._clean(str(key), inner) for key, inner in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._clean("", inner) for inner in value]
        text = str(value)
        for secret in self.known_secrets:
            text = text.replace(secret, "***")
        return redact(_cut(text, MAX_TRACEBACK_LENGTH if name in _TRACEBACKS else MAX_FIELD_LENGTH))


def set_up_logging(
    log_format: Literal["console", "json"] = "console",
    level: str = "info",
    stream: TextIO | None = None,
    *,
    secrets: Iterable[str] = (),
) -> None:
    """Send log lines of structlog and the standard library through one formatter to `stream` (stderr).

    `secrets` are values that are redacted in addition to the patterns.
    """
    shared = _shared_processors()
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(_formatter(log_format, secrets, colors=target.isatty()))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def json_formatter(secrets: Iterable[str] = ()) -> logging.Formatter:
    """Return the formatter of JSON lines without secrets."""
    return _formatter("json", secrets, colors=False)


def _shared_processors() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        _add_account,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _add_account(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """Name the account for which the task works, unless the line names one."""
    account = current_account()
    if account != SYSTEM:
        fields.setdefault("account", account)
    return fields


def _formatter(log_format: str, secrets: Iterable[str], *, colors: bool) -> logging.Formatter:
    known = sorted((one for one in secrets if len(one) >= MIN_SECRET_LENGTH), key=len, reverse=True)
    steps = _final_processors(log_format, LogRedactor(tuple(known)), colors=colors)
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_shared_processors(), processors=steps)


def _final_processors(log_format: str, redactor: LogRedactor, *, colors: bool) -> list[Any]:
    """Format exceptions before redaction, so that no traceback contains a secret."""
    steps: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        redactor,
    ]
    if log_format == "json":
        return [*steps, structlog.processors.JSONRenderer()]
    return [*steps, structlog.dev.ConsoleRenderer(colors=colors)]

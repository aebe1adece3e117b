"""Read the errors that models' servers answer with, and classify them by status."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.agents.clients.errors import (
    ModelCallError,
    ModelContextExceeded,
    ModelKeyRefused,
    ModelQuotaUsedUp,
    ModelRateLimited,
    ModelRequestRefused,
    ModelServerFailed,
    ModelUnknown,
)

MAX_SHOWN = 500
_MAX_READ = 10_000
_FIRST_SERVER_ERROR = 500
_BY_STATUS: Mapping[int, type[ModelCallError]] = {
    401: ModelKeyRefused,
    402: ModelQuotaUsedUp,
    403: ModelKeyRefused,
    404: ModelUnknown,
    408: ModelRateLimited,
    413: ModelContextExceeded,
    425: ModelRateLimited,
    429: ModelRateLimited,
}
_TOO_LONG = re.compile(
    "maximum context length|reduce the length of the messages|context window"  # OpenAI and many others
    "|prompt is too long|exceed context limit"  # Anthropic
    "|available context size|context size has been exceeded"  # llama.cpp, which may say so with a 500
    "|greater than the context length|context length of only|n_keep"  # LM Studio
    "|maximum model length|too long to fit into the model"  # vLLM
    "|input token count|maximum prompt length|exceeded model token limit|input is too long|prompt too long",
    re.IGNORECASE,
)
"""Words of servers for a conversation that is too long. Many of them speak several vendors' protocols."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A server's error: its `code` and `type`, which may be empty, and its message."""

    code: str = ""
    type: str = ""
    message: str = ""


def read_refusal(body: str) -> Refusal:
    """Return the error of a response's body, which is JSON, or anything if a proxy wrote it."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return Refusal(message=body[:MAX_SHOWN])
    return refusal_of(found.get("error", found) if isinstance(found, dict) else found)


def refusal_of(error: object) -> Refusal:
    """Return the error that a JSON value describes."""
    if not isinstance(error, dict):
        return Refusal(message=str(error)[:MAX_SHOWN])
    return Refusal(
        code=str(error.get("code") or ""),
        type=str(error.get("type") or ""),
        message=str(error.get("message") or error)[:MAX_SHOWN],
    )


def says_too_long(message: str) -> bool:
    """Return whether a server's words mean that the conversation does not fit into the model's context."""
    return _TOO_LONG.search(message[:_MAX_READ]) is not None


def kind_of_status(status: int) -> type[ModelCallError]:
    """Return the error of a status that no code makes more precise."""
    fallback = ModelServerFailed if is_server_error(status) else ModelRequestRefused
    return _BY_STATUS.get(status, fallback)


def is_server_error(status: int) -> bool:
    """Return whether a status is 5xx."""
    return status >= _FIRST_SERVER_ERROR

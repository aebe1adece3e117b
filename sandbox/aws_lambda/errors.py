"""Translate the errors of the Lambda API by one table, and those of a function that failed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sandbox.errors import ProviderRefused, ProviderUnauthorized, ProviderUnreachable, SandboxError

_NOT_FOUND, _FORBIDDEN, _TOO_LARGE, _TOO_MANY, _SERVER_ERROR = 404, 403, 413, 429, 500


class AnswerLost(Exception):
    """The invocation has no answer: the function may or may not have received it."""


class FunctionTimedOut(ProviderUnreachable):
    """Lambda ended the function at its time-out."""


def error_for(status: int, code: str, message: str, function: str) -> SandboxError | AnswerLost:
    """Return our error for an answer of Invoke; AnswerLost if the function may have been started."""
    text = f"lambda: {code or status}: {message}"[:500]
    if status >= _SERVER_ERROR:
        return AnswerLost(text)
    if status == _TOO_MANY:
        return ProviderUnreachable(
            f"{text}: too many runs at once; raise the concurrency of {function} or try again in a minute"
        )
    if status in {401, _FORBIDDEN} or code in {"UnrecognizedClientException", "InvalidSignatureException"}:
        return ProviderUnauthorized(
            f"{text}: check access_key, secret_key and the right to invoke {function}"
        )
    if status == _NOT_FOUND:
        return ProviderRefused(f"{text}: deploy the stack (deploy/lambda) or correct the name {function!r}")
    if status == _TOO_LARGE:
        return ProviderRefused(f"{text}: the request is larger than Lambda accepts")
    return ProviderRefused(text)


def function_error(payload: bytes, function: str) -> SandboxError | FunctionTimedOut:
    """Return our error for a function that failed; `payload` is untrusted."""
    details = _object(payload)
    kind, message = str(details.get("errorType", "")), str(details.get("errorMessage", ""))
    if kind == "Sandbox.Timedout" or "Task timed out after" in message:
        return FunctionTimedOut(message)
    text = f"the function {function} failed: {kind}: {message}"[:500]
    if kind in {"Runtime.OutOfMemory", "Runtime.ExitError"}:
        return ProviderRefused(f"{text}; it may need more memory than the function has")
    if kind in {"URLError", "HTTPError"}:
        return ProviderUnreachable(f"{text}; it cannot reach the bucket")
    return ProviderRefused(text)


def _object(payload: bytes) -> Mapping[str, Any]:
    try:
        details = json.loads(payload)
    except ValueError:
        return {}
    return details if isinstance(details, dict) else {}

"""Translate HTTP statuses that mean the same on every platform into the port's errors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Literal

from channels.errors import (
    Ambiguous,
    ChannelError,
    NotPermitted,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
)
from channels.inbox.calls import HttpResponse, parse_retry_after, parse_seconds
from channels.inbox.text import clean, identifier, mapping, mappings

_SUCCESSES, _REDIRECTS = range(200, 300), range(300, 400)
LimitScope = Literal["room", "account"]

_MEANINGS: Mapping[int, type[ChannelError]] = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.NOT_FOUND: Undeliverable,
}


def status_error(
    status: int, detail: str, own: Mapping[int, type[ChannelError]] = MappingProxyType({})
) -> ChannelError:
    """Return the error of a response that is no success; `own` are a platform's own meanings of statuses.

    After a server's failure, or a success that is not understood, the request may have been carried out; a
    redirect carries out nothing.
    """
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _SUCCESSES:
        return Ambiguous(detail)
    if status in _REDIRECTS:
        return Unreachable(detail)
    return {**_MEANINGS, **own}.get(status, Rejected)(detail)


def rate_limit(
    status: int, headers: Mapping[str, str], default: float, *, scope: LimitScope = "account", words: str = ""
) -> RateLimited | None:
    """Return the limit that a response is about, or None; headers' names are case-insensitive.

    The wait is that of Retry-After, or until the reset of a limit that is used up, or the default. `words`
    are those of the response, in lower case.
    """
    wait, reset = parse_retry_after(headers), parse_seconds(headers.get("X-RateLimit-Reset", ""))
    is_used_up = headers.get("X-RateLimit-Remaining") == "0"
    if wait is None and reset is not None and is_used_up:
        wait = reset - time.time()
    is_limit = wait is not None or is_used_up or "rate limit" in words
    if status != HTTPStatus.TOO_MANY_REQUESTS and not (status == HTTPStatus.FORBIDDEN and is_limit):
        return None
    return RateLimited(default if wait is None else max(1.0, wait), scope=scope)


class NodeNotFound(Rejected):
    """The id in a GraphQL request names nothing (any more)."""


def graphql_status(response: HttpResponse) -> int:
    """Return the status of a response; 429 for a GraphQL answer about a rate limit, sent with the status 200.

    GitHub names the limit by a type (RATE_LIMIT, RATE_LIMITED) or, a secondary one, only by its message.
    """
    if response.status != HTTPStatus.OK or b'"errors"' not in response.body:
        return response.status
    errors = mappings(mapping(response.json).get("errors"))
    is_limit = any(
        clean(one.get("type")).startswith("RATE_LIMIT") or "rate limit" in clean(one.get("message")).lower()
        for one in errors
    )
    return HTTPStatus.TOO_MANY_REQUESTS if is_limit else response.status


def graphql_error(answer: Mapping[str, Any], *, permission: str) -> ChannelError:
    """Return the error of a GraphQL answer without data, whose status is 200; limits are no such answers.

    `permission` is what GitHub refuses by the type FORBIDDEN.
    """
    first = next(iter(mappings(answer.get("errors"))), {})
    kind, detail = first.get("type"), f"graphql: {first.get('message') or 'no data'}"
    if kind == "FORBIDDEN":
        return NotPermitted(permission, f"{detail}: grant the app {permission}")
    if kind == "NOT_FOUND":
        return NodeNotFound(detail)
    return Rejected(detail) if kind else Ambiguous(detail)


def require_id(value: object, what: str) -> str:
    """Return the id of a message that was sent; raises Ambiguous if the response has none."""
    number = identifier(value)
    if not number:
        raise Ambiguous(f"{what}: the response names no message")
    return number

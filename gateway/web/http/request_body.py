"""Request bodies with limits on size, time, nesting and the number of values."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any, NoReturn

from aiohttp import web

from egress.json_values import has_more_values
from gateway.records.errors import json_pointer
from gateway.web.http.connection import is_abandoned
from gateway.web.http.problems import HttpProblem, invalid
from sandbox.config import ConfigProblem as Fault

PRE_AUTH_BYTES = 256 * 1024
"""Bytes of a body before the client is authenticated."""

DEADLINE = 10.0
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
MAX_DEPTH = 32
MAX_VALUES = 50_000
"""Values of a body: strings, numbers, arrays, objects, also nested ones; see `egress.json_values`."""

JSON_TYPES = frozenset({"application/json", "application/merge-patch+json"})


class _InvalidJson(ValueError):
    """The text is JSON to some parsers, but is not accepted."""


async def read_bytes(request: web.Request, *, limit: int, deadline: float = DEADLINE) -> bytes:
    """Return the body; 413 beyond `limit` bytes, 408 after `deadline` seconds, 415 when compressed."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise HttpProblem(415, "compressed bodies are not accepted", close=True)
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    try:
        async with asyncio.timeout(deadline):
            return await _read_bounded(request, limit)
    except TimeoutError:
        raise HttpProblem(408, f"the body did not arrive within {deadline:g} seconds", close=True) from None
    except web.RequestPayloadError as error:
        raise HttpProblem(
            400, "the body does not match its Content-Length or Transfer-Encoding", close=True
        ) from error


async def read_file(request: web.Request, *, limit: int, deadline: float) -> bytes:
    """Return a body that is a file, as `read_bytes`; 415 for a form, which would be stored with its heads."""
    kind = request.headers.get("Content-Type", "").split(";", 1)[0].strip().lower()
    if kind == "multipart/form-data":
        detail = "the body must be the bytes of the file, not a form: use curl --data-binary @FILE, not -F"
        raise HttpProblem(415, detail, close=True)
    return await read_bytes(request, limit=limit, deadline=deadline)


def too_large(limit: int) -> HttpProblem:
    """Return the 413 for a body beyond the limit."""
    return HttpProblem(413, f"the body is larger than {limit} bytes", close=True)


async def _read_bounded(request: web.Request, limit: int) -> bytes:
    """Return the body; raises ConnectionError if the connection was lost, also before the reading began."""
    parts = bytearray()
    try:
        async for part in request.content.iter_any():
            parts += part
            if len(parts) > limit:
                raise too_large(limit)
    except RuntimeError as error:  # aiohttp's for a reader without a connection
        if is_abandoned(request):
            raise ConnectionResetError("the connection was lost before the body was read") from error
        raise
    return bytes(parts)


def require_json(request: web.Request) -> None:
    """Raise 415 for a body that is not JSON: pages of other origins can send those without a preflight."""
    kind = request.headers.get("Content-Type", "").split(";", 1)[0].strip().lower()
    if kind not in JSON_TYPES:
        raise HttpProblem(415, "the Content-Type must be application/json", close=True)


def parse_json(raw: bytes, *, lenient: bool = False) -> Any:
    """Return the value of a JSON text; 400 for invalid JSON, a repeated key, too many values or deep nesting.

    Text that cannot be stored is a 422; with `lenient` the characters are replaced instead.
    """
    if has_more_values(raw, MAX_VALUES):
        raise HttpProblem(400, f"the body has more than {MAX_VALUES} values: send less at once")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HttpProblem(400, f"the body is not UTF-8 (byte {error.start})") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_reject_repeated_keys,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
        value = _check_value(value, (), lenient=lenient)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise HttpProblem(400, f"the body is not JSON: {error.msg} ({where})") from None
    except RecursionError:
        raise HttpProblem(400, f"the body nests deeper than {MAX_DEPTH} levels") from None
    except _InvalidJson as error:
        raise HttpProblem(400, str(error)) from None
    return value


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _InvalidJson("the body repeats a key in one object")
    return found


def _reject_constant(_text: str) -> NoReturn:
    raise _InvalidJson("the body contains NaN or Infinity, which are not JSON")


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _InvalidJson("the body contains a number that is too large")
    return number


def _parse_int(text: str) -> int:
    if len(text) > 20:  # noqa: PLR2004 - digits of the largest 64-bit number, and a sign
        raise _InvalidJson("the body contains a number that is too large")
    return int(text)


def _check_value(value: Any, path: tuple[object, ...], *, lenient: bool) -> Any:
    if len(path) > MAX_DEPTH:
        raise _InvalidJson(f"the body nests deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        return _check_text(value, path, lenient=lenient)
    if isinstance(value, dict):
        return {
            _check_text(key, path, lenient=False): _check_value(inner, (*path, key), lenient=lenient)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_check_value(inner, (*path, place), lenient=lenient) for place, inner in enumerate(value)]
    return value


def _check_text(text: str, path: tuple[object, ...], *, lenient: bool) -> str:
    if not _UNSTORABLE.search(text):
        return text
    if lenient:
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    where = json_pointer(path).encode("utf-8", "replace").decode()
    raise invalid([Fault(pointer=where, detail="must not contain NUL or half of a surrogate pair")])

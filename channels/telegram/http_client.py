"""Make python-telegram-bot's requests with aiohttp: bounded responses, files in chunks, no redirects."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from io import BytesIO
from typing import Any

import aiohttp

from channels.inbox.text import replace_surrogates
from channels.telegram.errors import BotApiError, NotSent
from channels.telegram.library import BaseRequest, NetworkError, RequestData
from egress.policy import EgressRefused

TIMEOUT_SECONDS = 30.0
"""Seconds that a request may take in addition to CONNECT_SECONDS; a slower one raises Ambiguous."""

CONNECT_SECONDS = 10.0
UPLOAD_SECONDS = 300.0
"""Seconds that a request with a file may take in addition."""

MAX_RESPONSE_BYTES = 20_000_000
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_CHUNK = 65536
_ONE_WRITE = 32768
"""A body of at most so many bytes is written together with its headers, or not at all."""

_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, EgressRefused, ValueError)


class HttpClient(BaseRequest):
    """The HTTP client of one bot; the session belongs to the caller, who closes it."""

    __slots__ = ("_session",)

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    @property
    def read_timeout(self) -> float:
        """The seconds that a response may take if a call does not say it."""
        return TIMEOUT_SECONDS

    async def initialize(self) -> None:
        """Do nothing: the session is open."""

    async def shutdown(self) -> None:
        """Do nothing: the caller closes the session."""

    async def do_request(  # noqa: PLR0917 - the library's signature
        self,
        url: str,
        method: str,
        request_data: RequestData | None = None,
        read_timeout: Any = BaseRequest.DEFAULT_NONE,
        write_timeout: Any = BaseRequest.DEFAULT_NONE,
        connect_timeout: Any = BaseRequest.DEFAULT_NONE,
        pool_timeout: Any = BaseRequest.DEFAULT_NONE,
    ) -> tuple[int, bytes]:
        """Send one request; raises NetworkError without a response, BotApiError for one that refuses."""
        del write_timeout, connect_timeout, pool_timeout  # the same for every call
        seconds = float(read_timeout) if isinstance(read_timeout, int | float) else TIMEOUT_SECONDS
        has_files = request_data is not None and request_data.contains_files
        options = {"timeout": _limits(seconds, has_files=has_files), **_body(request_data)}
        try:
            async with self._session.request(method, url, allow_redirects=False, **options) as response:
                payload = await _read(response)
        except _ERRORS as error:
            kind = NotSent if _is_before_sending(error, options) else NetworkError
            raise kind(type(error).__name__) from error
        if response.status != HTTPStatus.OK:
            raise BotApiError(response.status, _parse_object(payload))
        return response.status, payload

    @staticmethod
    def parse_json_payload(payload: bytes) -> Any:
        """Return the result; raises BotApiError if the payload has none."""
        answer = _parse_object(payload)
        if answer.get("ok") is not True or "result" not in answer:
            status = answer.get("error_code")
            raise BotApiError(status if isinstance(status, int) else 502, answer)
        return answer

    async def stream(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file's bytes; raises TelegramError."""
        limits = _limits(TIMEOUT_SECONDS, has_files=True)
        try:
            async with self._session.get(url, allow_redirects=False, timeout=limits) as response:
                if response.status != HTTPStatus.OK:
                    raise BotApiError(response.status, {})
                async for chunk in response.content.iter_chunked(_CHUNK):
                    yield chunk
        except _ERRORS as error:
            raise NetworkError(type(error).__name__) from error


def _is_before_sending(error: Exception, options: Mapping[str, Any]) -> bool:
    """Return whether no byte of a request was sent: no connection, or one that was closed in between."""
    if isinstance(error, _NOT_CONNECTED):
        return True
    body = options.get("data")
    is_one_write = isinstance(body, bytes) and len(body) <= _ONE_WRITE
    return is_one_write and isinstance(error.__cause__, aiohttp.ClientConnectionResetError)


def _limits(seconds: float, *, has_files: bool) -> aiohttp.ClientTimeout:
    """Return time limits: for a free connection and to connect, and for all together.

    A request with a file may take long while bytes come, so each of its reads has a limit. Those of other
    requests have none, because aiohttp would start a timer for every block that it receives.
    """
    return aiohttp.ClientTimeout(
        total=CONNECT_SECONDS + seconds + (UPLOAD_SECONDS if has_files else 0.0),
        connect=CONNECT_SECONDS,
        sock_connect=CONNECT_SECONDS,
        sock_read=seconds if has_files else None,
    )


def _body(data: RequestData | None) -> Mapping[str, Any]:
    """Return a request's body: a form, which has several parts if it contains files."""
    if data is None:
        return {}
    if not data.contains_files:
        return {"data": data.url_encoded_parameters().encode(), "headers": _FORM}
    # Quoted fields would have their names percent-encoded, and Telegram shows the name as it is sent.
    form = aiohttp.FormData(quote_fields=False, default_to_multipart=True)
    for name, value in data.json_parameters.items():
        form.add_field(name, value)
    for name, (file_name, content, media_type) in data.multipart_data.items():
        stream = BytesIO(content) if isinstance(content, bytes) else content
        form.add_field(name, stream, filename=_escape(file_name), content_type=media_type)
    return {"data": form}


def _escape(file_name: str) -> str:
    """Return a file name without the signs that would end its header, escaped as browsers do."""
    plain = replace_surrogates(file_name).replace('"', "%22")
    return "".join(sign if sign >= " " and sign != "\x7f" else f"%{ord(sign):02X}" for sign in plain)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise ValueError(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
    return b"".join(parts)


def _parse_object(payload: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(payload.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}

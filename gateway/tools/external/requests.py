"""Send the HTTP requests of tools through guarded connections, and turn the answers into results."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import structlog
from yarl import URL

from egress.guard import EgressGuard
from egress.policy import EgressRefused, refusal
from egress.sessions import open_session
from gateway.agents.clients.text import repair_surrogates
from gateway.agents.port import ToolResult
from gateway.tools.mcp.server import MAX_ANSWER_BYTES
from gateway.tools.tool import InvalidArguments

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 30.0
_FIRST_FAILURE = 400
_SLOW_CHARSETS = frozenset({"idna", "punycode"})
"""Encodings whose time to decode grows faster than the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request of a tool. `body` is sent as JSON; None: no body. `timeout` is in seconds."""

    method: str
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    body: Any
    timeout: int


class RequestSession:
    """Sends the requests of one turn; the session is opened for the first one."""

    def __init__(self, guard: EgressGuard) -> None:
        self._guard = guard
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: HttpRequest, *, limit: int, key: str) -> ToolResult:
        """Send a request; refused connections, failures and time-outs are results."""
        if self._session is None:
            within = aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS
            )  # each request has its own
            self._session = open_session(self._guard, headers={"User-Agent": "Dovecote"}, timeout=within)
        try:
            async with asyncio.timeout(request.timeout):
                return await self._send(self._session, request, limit=limit, key=key)
        except TimeoutError:
            return _failed(f"no answer within {request.timeout} s", may_have_run=True)
        except (aiohttp.ClientError, EgressRefused, OSError) as error:
            refused = refusal(error)
            if refused is not None:
                return _failed(f"the address is refused: {refused}", may_have_run=False)
            log.info("http_tool.failed", error=str(error))
            connected = not isinstance(error, aiohttp.ClientConnectorError)
            return _failed(f"the request failed: {type(error).__name__}", may_have_run=connected)

    async def _send(
        self, session: aiohttp.ClientSession, request: HttpRequest, *, limit: int, key: str
    ) -> ToolResult:
        headers = dict(request.headers)
        headers.setdefault("Idempotency-Key", key)
        async with session.request(
            request.method, request.url, headers=headers, json=request.body, allow_redirects=False
        ) as response:
            content = await _read(response)
        text = decode(content, response.charset)
        truncated = len(text) > limit
        shown = f"{text[:limit]}\n[output truncated]" if truncated else text
        return ToolResult(
            ok=response.status < _FIRST_FAILURE,
            content=repair_surrogates(f"HTTP {response.status}\n{shown}").replace("\0", "\ufffd"),
            detail={"status": response.status} | ({"truncated": True} if truncated else {}),
        )

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the body, MAX_ANSWER_BYTES at most."""
    content = bytearray()
    while len(content) < MAX_ANSWER_BYTES:
        chunk = await response.content.read(MAX_ANSWER_BYTES - len(content))
        if not chunk:
            break
        content += chunk
    return bytes(content)


def decode(content: bytes, charset: str | None) -> str:
    """Return a body as text; a charset that is missing, unknown or no text encoding counts as UTF-8."""
    try:
        name = codecs.lookup(charset or "utf-8").name
        if name not in _SLOW_CHARSETS:
            return content.decode(name, "replace")
    except (LookupError, ValueError):
        pass
    return content.decode("utf-8", "replace")


def url_part(name: str, value: Any) -> str:
    """Return an argument as it stands in a URL's path; raises InvalidArguments."""
    text = plain_text(value)
    if not isinstance(value, str | int | float) or text in {"", ".", ".."}:
        raise InvalidArguments(f"{name} must be a text or a number, and neither empty nor . nor ..")
    return quote(text.encode("utf-8", "replace"), safe="")


def plain_text(value: Any) -> str:
    """Return an argument as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _failed(reason: str, *, may_have_run: bool) -> ToolResult:
    advice = "\nThe request may have had an effect: check before you repeat it." if may_have_run else ""
    return ToolResult(ok=False, content=f"{reason}{advice}")

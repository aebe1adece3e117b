"""One connection to an MCP server over streamable HTTP, from its handshake to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mcp import Client, MCPError
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    Implementation,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from egress.guard import EgressGuard
from egress.httpx2_client import GuardedClient, open_httpx2_client
from egress.policy import refusal
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.tools.mcp.results import MAX_ERROR
from gateway.tools.mcp.server import (
    CLIENT_NAME,
    CLIENT_VERSION,
    MAX_ANSWER_BYTES,
    Challenge,
    McpUnavailable,
)

UNAUTHORIZED, FORBIDDEN = 401, 403
INSUFFICIENT_SCOPE = "insufficient_scope"
"""The error of a 403 for a token that is good, but not for this request (RFC 6750)."""

MAX_SCOPE = 1000
"""Characters of a scope that a server may require."""

Answer = TypeVar("Answer")

CONNECT_TIMEOUT = 15.0
"""Seconds to connect and agree on a version, or to list the tools."""

CLOSE_TIMEOUT = 3.0
BREAK_TIMEOUT = 1.0
"""Seconds in which a broken connection ends, after its pending requests were told so."""

SESSION_REFUSED = frozenset({400, 404})
"""Statuses of a server that has forgotten the session: 404 in the protocol's text, 400 of some servers. The
request was not processed."""

_REFUSALS = range(400, 500)
"""Statuses of a server that did not process the request."""

NO_STREAMABLE_HTTP = frozenset({404, 405})
"""Answers of an address that takes no POST; servers of the transport HTTP+SSE are reached by GET."""

_UNCLEAR = frozenset({CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT})
"""Errors, most of them made by the SDK, for an answer that is missing, cut off or no JSON-RPC."""


class SessionGone(Exception):
    """The server has forgotten the session, for example because it was restarted."""


class TokenRefused(Exception):
    """The server refuses the token: it is missing, at its end, or revoked (401), or lacks a scope (403)."""

    def __init__(self, status: int, challenge: Challenge) -> None:
        super().__init__(f"status {status}{challenge.note}")
        self.lacks_scope = status == FORBIDDEN
        self.challenge = challenge


class McpConnection:
    """One connection, from its handshake to its end."""

    def __init__(
        self,
        config: McpServerConfig,
        guard: EgressGuard,
        list_changed: asyncio.Event,
        *,
        token: str | None = None,
    ) -> None:
        self._config = config
        self._guard = guard
        self._list_changed = list_changed
        self._stop = asyncio.Event()
        self._last_status = 0
        self._challenge = Challenge()
        self._cut = ""
        self._http = self._open_http()
        if token is not None:
            self.set_token(token)
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold())

    @property
    def is_broken(self) -> bool:
        """Whether the connection has ended."""
        return self._holder.done()

    async def open(self) -> None:
        """Wait for the handshake; raises McpUnavailable, TokenRefused."""
        ends: set[asyncio.Future[Any]] = {self._client, self._holder}
        await asyncio.wait(ends, timeout=CONNECT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not self._client.done():
            if refused := self._token_refused():
                await self.aclose()
                raise refused
            problem = _reason(self._holder) if self.is_broken else f"no answer within {CONNECT_TIMEOUT:g} s"
            await self.aclose()
            raise McpUnavailable(f"the MCP server cannot be reached: {problem}{self._status_note()}")

    def _status_note(self) -> str:
        """Return the status with which the server refused the handshake, and what it often means."""
        if self._last_status < _REFUSALS.start:
            return ""
        if self._last_status not in NO_STREAMABLE_HTTP:
            return f" (status {self._last_status})"
        return f" (status {self._last_status}: the address may be wrong, or of the older transport HTTP+SSE)"

    def _token_refused(self) -> TokenRefused | None:
        """Return the error if the last answer refuses the token."""
        lacks_scope = self._last_status == FORBIDDEN and self._challenge.error == INSUFFICIENT_SCOPE
        if lacks_scope or self._last_status == UNAUTHORIZED:
            return TokenRefused(self._last_status, self._challenge)
        return None

    def set_token(self, token: str | None) -> None:
        """Send this token of the person with each later request; None: send none."""
        self._http.headers.pop("Authorization", None)
        if token is not None:
            self._http.headers["Authorization"] = f"Bearer {token}"

    async def send(self, send: Callable[[Client], Awaitable[Answer]], *, timeout: float) -> Answer:
        """Send a request and return its answer; raises McpUnavailable, SessionGone, TokenRefused."""
        self._cut = ""
        answer = asyncio.ensure_future(send(self._client.result()))
        try:
            await asyncio.wait({answer, self._holder}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if self.is_broken:
                raise self._broken()
            raise McpUnavailable(f"the MCP server did not answer within {timeout:g} s", may_have_run=True)
        except MCPError as error:
            raise await self._error(error) from error
        except ValidationError as error:
            raise McpUnavailable(
                "the MCP server's answer does not follow the protocol", may_have_run=True
            ) from error
        finally:
            answer.cancel()
            await asyncio.wait({answer})

    async def _error(self, error: MCPError) -> Exception:
        if self._cut:
            return McpUnavailable(f"the connection to the MCP server broke: {self._cut}", may_have_run=True)
        if refused := self._token_refused():
            return refused
        if self._last_status in SESSION_REFUSED:
            return SessionGone(str(error)[:MAX_ERROR])
        if error.code == CONNECTION_CLOSED:
            await asyncio.wait({self._holder}, timeout=BREAK_TIMEOUT)
            if self.is_broken:
                return self._broken()
        status = f" (status {self._last_status})" if self._last_status >= _REFUSALS.start else ""
        return McpUnavailable(
            f"the MCP server answered with an error{status}: {str(error)[:MAX_ERROR]}",
            may_have_run=self._last_status not in _REFUSALS and error.code in _UNCLEAR,
        )

    def _broken(self) -> McpUnavailable:
        reason = _reason(self._holder)
        return McpUnavailable(f"the connection to the MCP server broke: {reason}", may_have_run=True)

    async def aclose(self) -> None:
        """End the connection."""
        self._stop.set()
        await asyncio.wait({self._holder}, timeout=CLOSE_TIMEOUT)
        self._holder.cancel()
        await asyncio.wait({self._holder})
        if not self._holder.cancelled():
            self._holder.exception()  # it was reported to those who waited for an answer

    async def _note_status(self, response: Any) -> None:
        """Note the status of the last answer to a POST, which the SDK does not report."""
        if response.request.method == "POST":
            self._last_status = response.status_code
            self._challenge = Challenge(
                error=extract_field_from_www_auth(response, "error") or "",
                scope=_scope(extract_field_from_www_auth(response, "scope") or ""),
            )

    def _note_cut(self, reason: str) -> None:
        """Note why an answer was cut, which the SDK does not report of an event stream."""
        self._cut = reason

    async def _note_message(self, message: object) -> None:
        """Note that the server announced another list of tools."""
        if isinstance(message, ToolListChangedNotification):
            self._list_changed.set()

    def _open_http(self) -> GuardedClient:
        http = open_httpx2_client(
            self._guard,
            headers={name: value.get_secret_value() for name, value in self._config.headers.items()},
            read_seconds=float(self._config.timeout) + CONNECT_TIMEOUT,
            max_bytes=MAX_ANSWER_BYTES,
            report=self._note_cut,
        )
        http.event_hooks["response"].append(self._note_status)
        return http

    async def _hold(self) -> None:
        """Hold the connection until it is closed or breaks."""
        async with self._http:
            transport = streamable_http_client(
                self._config.url or "", http_client=self._http, max_sse_event_size=MAX_ANSWER_BYTES
            )
            client = Client(
                transport,
                client_info=Implementation(name=CLIENT_NAME, version=CLIENT_VERSION),
                message_handler=self._note_message,
                cache=None,
            )
            async with client:
                self._client.set_result(client)
                await self._stop.wait()


def _scope(text: str) -> str:
    """Return the scope of a challenge if it is one (RFC 6749, section 3.3), else nothing."""
    is_scope = text.isascii() and text.isprintable() and not {'"', "\\"} & set(text)
    return " ".join(text.split()) if is_scope and len(text) <= MAX_SCOPE else ""


def _reason(holder: asyncio.Task[None]) -> str:
    """Return why a connection ended, without addresses or other details of the gateway."""
    error: BaseException | None = None if holder.cancelled() else holder.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None:
        return "it was closed"
    refused = refusal(error)
    return str(refused or error)[:MAX_ERROR] or type(error).__name__

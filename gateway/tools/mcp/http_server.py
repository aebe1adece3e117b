"""An MCP server over streamable HTTP, through the official client and guarded connections.

Importing this module loads the SDK, which takes a second and 60 MB; only turns with such a server need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequest,
    GetPromptResult,
    Implementation,
    ListPromptsRequest,
    ListPromptsResult,
    ListResourcesRequest,
    ListResourcesResult,
    ListResourceTemplatesRequest,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequest,
    ReadResourceResult,
    ServerCapabilities,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from egress.guard import EgressGuard
from egress.httpx2_client import open_httpx2_client
from egress.policy import refusal
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.tools.mcp.results import MAX_ERROR, list_tools
from gateway.tools.mcp.server import (
    CLIENT_NAME,
    CLIENT_VERSION,
    MAX_ANSWER_BYTES,
    McpOffer,
    McpServer,
    McpSignInRequired,
    McpUnavailable,
    ReadMethod,
    Tokens,
)
from gateway.tools.mcp.sign_in_grant import SignInUnavailable
from gateway.tools.tool import ToolContext

UNAUTHORIZED = 401

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

_READS: Mapping[ReadMethod, tuple[type[Any], type[Any]]] = {
    "resources/list": (ListResourcesRequest, ListResourcesResult),
    "resources/templates/list": (ListResourceTemplatesRequest, ListResourceTemplatesResult),
    "resources/read": (ReadResourceRequest, ReadResourceResult),
    "prompts/list": (ListPromptsRequest, ListPromptsResult),
    "prompts/get": (GetPromptRequest, GetPromptResult),
}
"""The classes of each request and its result."""


class HttpMcpServer(McpServer):
    """A connection that the first use opens, and that is opened again after it broke.

    A task of its own holds it, so that a failure of the connection never cancels the turn.
    """

    def __init__(self, config: McpServerConfig, guard: EgressGuard, tokens: Tokens | None = None) -> None:
        """Set how the server is reached; `tokens` are those of the person, if people sign in there."""
        self._config = config
        self._guard = guard
        self._tokens = tokens
        self._token: str | None = None
        self._connection: McpConnection | None = None
        self._list_changed = asyncio.Event()

    async def describe(self, context: ToolContext) -> McpOffer:
        """Return what the server declares, with its tools."""
        del context
        offered = await self._request(_capabilities, timeout=CONNECT_TIMEOUT)
        resources, prompts = offered.resources is not None, offered.prompts is not None
        if offered.tools is None and (resources or prompts):
            return McpOffer(tools=(), resources=resources, prompts=prompts)
        return McpOffer(tools=await list_tools(self._list_page), resources=resources, prompts=prompts)

    async def _list_page(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        page = PaginatedRequestParams.model_validate(params)
        listed = await self._request(
            lambda client: client.session.list_tools(params=page), timeout=CONNECT_TIMEOUT
        )
        return _to_json(listed)

    async def call_tool(self, context: ToolContext, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call a tool. The result is not checked against the server's own schema of it."""
        del context
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=dict(args)))
        result = await self._request(
            lambda client: client.session.send_request(request, CallToolResult),
            timeout=float(self._config.timeout),
        )
        return _to_json(result)

    async def read(
        self, context: ToolContext, method: ReadMethod, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Send a request that changes nothing."""
        del context
        request_type, result_type = _READS[method]
        request = request_type.model_validate({"method": method, "params": dict(params)})
        result = await self._request(
            lambda client: client.session.send_request(request, result_type),
            timeout=float(self._config.timeout),
        )
        return _to_json(result)

    def take_list_changed(self) -> bool:
        """Return whether a notification came since the last question."""
        changed = self._list_changed.is_set()
        self._list_changed.clear()
        return changed

    async def aclose(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.aclose()

    async def _request(self, send: Callable[[Client], Awaitable[Answer]], *, timeout: float) -> Answer:
        """Send a request; one that the server refused, because it forgot the session or for its token, is
        sent once more."""
        try:
            return await self._send(send, timeout=timeout)
        except SessionGone:
            await self.aclose()
        except TokenRefused:
            await self.aclose()
            self._token = await self._get_token(refused=self._token or "")
        try:
            return await self._send(send, timeout=timeout)
        except TokenRefused as error:
            await self.aclose()
            raise McpSignInRequired(SIGN_IN_REQUIRED) from error
        except SessionGone as error:
            raise McpUnavailable(f"the MCP server refused the request: {error}") from error

    async def _send(self, send: Callable[[Client], Awaitable[Answer]], *, timeout: float) -> Answer:
        if self._connection is None or self._connection.is_broken:
            await self.aclose()
            if self._tokens is not None and self._token is None:
                self._token = await self._load_token(None)
            self._connection = McpConnection(self._config, self._guard, self._list_changed, token=self._token)
            await self._connection.open()
        return await self._connection.send(send, timeout=timeout)

    async def _get_token(self, *, refused: str | None) -> str:
        """Return another token than the refused one; raises McpUnavailable, McpSignInRequired."""
        if not self._config.lets_people_sign_in:
            raise McpUnavailable("the MCP server refuses the configured key (status 401)")
        token = await self._load_token(refused)
        if token is None:
            raise McpSignInRequired(SIGN_IN_REQUIRED)
        return token

    async def _load_token(self, refused: str | None) -> str | None:
        try:
            return await self._tokens(refused) if self._tokens is not None else None
        except SignInUnavailable as error:
            raise McpUnavailable(f"the token for the MCP server cannot be renewed now: {error}") from error


class SessionGone(Exception):
    """The server has forgotten the session, for example because it was restarted."""


class TokenRefused(Exception):
    """The server answers 401: the token is missing, at its end, or revoked."""


SIGN_IN_REQUIRED = "the MCP server requires that the person signs in"


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
        self._token = token
        self._config = config
        self._guard = guard
        self._list_changed = list_changed
        self._stop = asyncio.Event()
        self._last_status = 0
        self._cut = ""
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
            if self._last_status == UNAUTHORIZED:
                await self.aclose()
                raise TokenRefused
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
        if self._last_status == UNAUTHORIZED:
            return TokenRefused()
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

    def _note_cut(self, reason: str) -> None:
        """Note why an answer was cut, which the SDK does not report of an event stream."""
        self._cut = reason

    async def _note_message(self, message: object) -> None:
        """Note that the server announced another list of tools."""
        if isinstance(message, ToolListChangedNotification):
            self._list_changed.set()

    async def _hold(self) -> None:
        """Hold the connection until it is closed or breaks."""
        headers = {name: value.get_secret_value() for name, value in self._config.headers.items()}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        http = open_httpx2_client(
            self._guard,
            headers=headers,
            read_seconds=float(self._config.timeout) + CONNECT_TIMEOUT,
            max_bytes=MAX_ANSWER_BYTES,
            report=self._note_cut,
        )
        http.event_hooks["response"].append(self._note_status)
        async with http:
            transport = streamable_http_client(
                self._config.url or "", http_client=http, max_sse_event_size=MAX_ANSWER_BYTES
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


async def _capabilities(client: Client) -> ServerCapabilities:
    return client.server_capabilities


def _to_json(result: Any) -> Mapping[str, Any]:
    made: Mapping[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return made


def _reason(holder: asyncio.Task[None]) -> str:
    """Return why a connection ended, without addresses or other details of the gateway."""
    error: BaseException | None = None if holder.cancelled() else holder.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is None:
        return "it was closed"
    refused = refusal(error)
    return str(refused or error)[:MAX_ERROR] or type(error).__name__

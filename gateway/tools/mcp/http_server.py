"""An MCP server over streamable HTTP, through the official client and guarded connections.

Importing this module loads the SDK, which takes a second and 60 MB; only turns with such a server need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp import Client
from mcp_types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequest,
    GetPromptResult,
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
)

from egress.guard import EgressGuard
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.tools.mcp.http_connection import (
    CONNECT_TIMEOUT,
    Answer,
    McpConnection,
    SessionGone,
    TokenRefused,
)
from gateway.tools.mcp.results import list_tools
from gateway.tools.mcp.server import (
    Challenge,
    McpOffer,
    McpServer,
    McpSignInRequired,
    McpUnavailable,
    ReadMethod,
    Tokens,
)
from gateway.tools.mcp.sign_ins.grant import SignInUnavailable
from gateway.tools.tool import ToolContext

SIGN_IN_REQUIRED = "the MCP server requires that the person signs in"

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
        except TokenRefused as error:
            await self.aclose()
            if error.lacks_scope:
                raise self._scope_required(error.challenge) from error
            self._token = await self._get_token(refused=self._token or "")
        try:
            return await self._send(send, timeout=timeout)
        except TokenRefused as error:
            await self.aclose()
            raise self._scope_required(error.challenge) from error
        except SessionGone as error:
            raise McpUnavailable(f"the MCP server refused the request: {error}") from error

    async def _send(self, send: Callable[[Client], Awaitable[Answer]], *, timeout: float) -> Answer:
        if self._tokens is not None:
            self._token = await self._load_token(None)  # the person may have signed out since
        if self._connection is None or self._connection.is_broken:
            await self.aclose()
            self._connection = McpConnection(self._config, self._guard, self._list_changed, token=self._token)
            await self._connection.open()
        elif self._tokens is not None:
            self._connection.set_token(self._token)
        return await self._connection.send(send, timeout=timeout)

    def _scope_required(self, challenge: Challenge) -> McpUnavailable:
        """Return the error for a token that no renewal makes suffice; a person can sign in once more."""
        if not self._config.lets_people_sign_in:
            return McpUnavailable(f"the MCP server refuses the configured key{challenge.note}")
        fixed = self._config.oauth.scope if self._config.oauth is not None else None
        if fixed is not None and not set(challenge.scope.split()) <= set(fixed.split()):
            remedy = f"`oauth.scope` of the server in the agent's record is {fixed!r}: add it there"
            return McpUnavailable(f"the MCP server refuses the person's token{challenge.note}, and {remedy}")
        if self._tokens is not None:
            self._tokens.require(challenge.scope)
        return McpSignInRequired(f"{SIGN_IN_REQUIRED} once more{challenge.note}")

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
            return await self._tokens.get(refused) if self._tokens is not None else None
        except SignInUnavailable as error:
            raise McpUnavailable(f"the token for the MCP server cannot be renewed now: {error}") from error


async def _capabilities(client: Client) -> ServerCapabilities:
    return client.server_capabilities


def _to_json(result: Any) -> Mapping[str, Any]:
    made: Mapping[str, Any] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return made

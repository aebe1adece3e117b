"""What a turn needs of an MCP server, whatever its transport: what it offers, calls and reads."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from gateway.tools.tool import ToolContext

CLIENT_NAME = "dovecote"
CLIENT_VERSION = "1"

_CLIENT_MODULES = ("gateway.tools.mcp.http_server", "gateway.tools.mcp.sign_ins.oauth_flow")
"""What imports the SDK."""

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Bytes of one answer of a server; a longer one fails the call."""


class McpUnavailable(Exception):
    """The server cannot be used now; the message is for the model and the log. `may_have_run`: the call was
    sent, and its outcome is unknown."""

    def __init__(self, detail: str, *, may_have_run: bool = False) -> None:
        super().__init__(detail)
        self.may_have_run = may_have_run


class McpSignInRequired(McpUnavailable):
    """The server refuses the request until the person who asks signs in, perhaps once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """Why a server refuses a request, and the scope that it requires (RFC 6750); empty without a reason."""

    error: str = ""
    scope: str = ""

    @property
    def note(self) -> str:
        """The scope as the end of a sentence."""
        return f": it requires the scope {self.scope!r}" if self.scope else ""


class Tokens(Protocol):
    """The tokens of the person who asks, at one server."""

    @abstractmethod
    async def get(self, refused: str | None) -> str | None:
        """Return the present token, another one than the refused; None if there is none.

        An empty text: the server refuses a request without a token. Raises SignInUnavailable.
        """

    @abstractmethod
    def require(self, scope: str) -> None:
        """Note that the present token does not suffice, and which scope (RFC 6749) the server requires.

        Raises nothing.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolSpec:
    """A tool as its server describes it. `repeatable`: the server declares that a repeat changes nothing."""

    name: str
    description: str
    schema: Mapping[str, Any]
    repeatable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOffer:
    """What a server offers: its tools, and whether it has resources and prompts.

    `announces_at_start`: it announces another list whenever it is started, also if the list is the same.
    """

    tools: Sequence[McpToolSpec]
    resources: bool = False
    prompts: bool = False
    announces_at_start: bool = False


ReadMethod = Literal[
    "resources/list", "resources/templates/list", "resources/read", "prompts/list", "prompts/get"
]
"""A request of the protocol that changes nothing."""


class McpServer(Protocol):
    """An MCP server during one turn."""

    @abstractmethod
    async def describe(self, context: ToolContext) -> McpOffer:
        """Return what the server offers; raises McpUnavailable."""

    @abstractmethod
    async def call_tool(self, context: ToolContext, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the result of a call as the protocol's JSON (`CallToolResult`); raises McpUnavailable."""

    @abstractmethod
    async def read(
        self, context: ToolContext, method: ReadMethod, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the result of a request as the protocol's JSON; raises McpUnavailable."""

    @abstractmethod
    def take_list_changed(self) -> bool:
        """Return whether the server announced another list of tools since the last call. Raises nothing."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what the turn opened. Idempotent; raises nothing if the server is away."""


class MissingClient(McpServer):
    """A server over HTTP in a gateway without the client library."""

    async def describe(self, context: ToolContext) -> McpOffer:
        """Raise McpUnavailable with the remedy."""
        del context
        raise McpUnavailable("the gateway has no MCP client: the operator must install the extra `mcp`")

    async def call_tool(self, context: ToolContext, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raise McpUnavailable with the remedy."""
        del name, args
        await self.describe(context)
        return {}

    async def read(
        self, context: ToolContext, method: ReadMethod, params: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Raise McpUnavailable with the remedy."""
        del method, params
        await self.describe(context)
        return {}

    def take_list_changed(self) -> bool:
        """Return False: nothing is heard of the server."""
        return False

    async def aclose(self) -> None:
        """Do nothing."""


def has_client() -> bool:
    """Return whether the SDK for servers over HTTP is installed."""
    return find_spec("mcp") is not None


async def load_client() -> None:
    """Import the SDK beside the event loop, which would stop for up to a second; nothing if it is missing."""
    if has_client():
        for name in _CLIENT_MODULES:
            await asyncio.to_thread(import_module, name)

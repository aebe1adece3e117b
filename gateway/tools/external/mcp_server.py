"""What a turn needs of an MCP server, whatever its transport: its tools, and calls of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.tools.tool import ToolContext

CLIENT_NAME = "dovecote"
CLIENT_VERSION = "1"

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Bytes of one answer of a server; a longer one fails the call."""


class McpUnavailable(Exception):
    """The server cannot be used now; the message is for the model and the log. `may_have_run`: the call was
    sent, and its outcome is unknown."""

    def __init__(self, detail: str, *, may_have_run: bool = False) -> None:
        super().__init__(detail)
        self.may_have_run = may_have_run


@dataclass(frozen=True, slots=True, kw_only=True)
class McpToolSpec:
    """A tool as its server describes it. `repeatable`: the server declares that a repeat changes nothing."""

    name: str
    description: str
    schema: Mapping[str, Any]
    repeatable: bool = False


class McpServer(Protocol):
    """An MCP server during one turn."""

    @abstractmethod
    async def list_tools(self, context: ToolContext) -> Sequence[McpToolSpec]:
        """Return the server's tools; raises McpUnavailable."""

    @abstractmethod
    async def call_tool(self, context: ToolContext, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the result of a call as the protocol's JSON (`CallToolResult`); raises McpUnavailable."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what the turn opened."""

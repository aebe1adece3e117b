"""The sign-ins of one turn: the tokens of the person who asks, and the tools that ask for a sign-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from egress.guard import EgressGuard
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.store.accounts import mcp_sign_ins
from gateway.store.accounts.mcp_sign_ins import SignInKey
from gateway.tools.external_tools import tool_name
from gateway.tools.mcp.server import Tokens
from gateway.tools.mcp.sign_ins.grant import SignInUnavailable
from gateway.tools.mcp.sign_ins.links import SignInLinks
from gateway.tools.mcp.sign_ins.sign_in_tool import sign_in_tool
from gateway.tools.mcp.sign_ins.stored_sign_ins import SignInPlace
from gateway.tools.tool import Tool, ToolContext

SOME_TOKEN = "used"  # noqa: S105 - a state, no token


@dataclass(kw_only=True)
class TurnSignIns:
    """Who asks, and at which of the agent's servers that person can sign in or has done so."""

    agent: str
    configs: Mapping[str, McpServerConfig]
    guard: EgressGuard
    place: SignInPlace | None = None
    links: SignInLinks | None = None
    stored: frozenset[str] = frozenset()
    """The servers at which the person had signed in when the turn's attempt began."""
    required: set[str] = field(default_factory=set)
    """The servers that refused a request of this turn because the person has not signed in."""
    scopes: dict[str, str] = field(default_factory=dict)
    """The scope that a server requires for a request that it refused, if it names one."""
    unsigned: set[str] = field(default_factory=set)
    """The servers at which the person has not signed in; most require no sign-in, some for calls alone."""

    def tokens(self, server: str) -> Tokens | None:
        """Return the person's tokens at a server; None if no person can sign in there."""
        if self.links is None or self.place is None or not self.configs[server].lets_people_sign_in:
            return None
        return _ServerTokens(self, server)

    async def token(self, server: str, refused: str | None) -> str | None:
        """Return the person's present token at a server; raises SignInUnavailable."""
        if self.links is None or self.place is None:
            return None
        key = SignInKey(agent=self.agent, server=server, person=self.place.person)
        found = await self.links.sign_ins.access_token(key, self.configs[server], self.guard, refused=refused)
        if found is None:
            self.unsigned.add(server)
            if refused is not None or server in self.stored:
                self.required.add(server)
        return found

    def list_key(self, server: str) -> tuple[str, str, str]:
        """Return the key of a list of tools: a person who signed in may see others than other people."""
        person = self.place.person if self.place is not None and server in self.stored else ""
        return (self.agent, server, person)

    def require(self, server: str, reason: str) -> str:
        """Note that a server requires a sign-in, and return the text for the model."""
        if self.tokens(server) is None:
            return f"{reason}, and this turn has no person who can sign in"
        self.required.add(server)
        return f"{reason}. Call {_tool(server)} if you need it: it asks the person, and waits."

    def require_scope(self, server: str, scope: str) -> None:
        """Note that a server refuses the person's present token."""
        self.required.add(server)
        self.scopes[server] = scope

    def tools(self) -> Mapping[str, Tool]:
        """Return a tool for each server that may require a sign-in, or at which the person has signed in."""
        if self.links is None or self.place is None:
            return {}
        return {
            _tool(server): sign_in_tool(
                _tool(server),
                server,
                place=self.place,
                links=self.links,
                is_required=partial(self.required.__contains__, server),
                scope=partial(self._required_scope, server),
                token=partial(self._present_token, server),
            )
            for server in sorted(self.required | self.unsigned | self.stored)
        }

    def _required_scope(self, server: str) -> str:
        return self.scopes.get(server, "")

    async def _present_token(self, server: str) -> str | None:
        try:
            return await self.token(server, None)
        except SignInUnavailable:
            return SOME_TOKEN  # there is one, which cannot be renewed now


class _ServerTokens(NamedTuple):
    """The tokens of a turn's person at one server."""

    sign_ins: TurnSignIns
    server: str

    async def get(self, refused: str | None) -> str | None:
        """Return the present token."""
        return await self.sign_ins.token(self.server, refused)

    def require(self, scope: str) -> None:
        """Have the person asked to sign in once more."""
        self.sign_ins.require_scope(self.server, scope)


def _tool(server: str) -> str:
    return tool_name(f"{server}_sign_in")


async def open_turn_sign_ins(
    context: ToolContext,
    configs: Mapping[str, McpServerConfig],
    guard: EgressGuard,
    links: SignInLinks | None,
) -> TurnSignIns:
    """Return the sign-ins of a turn; empty ones if none of its servers lets people sign in."""
    place, stored = None, frozenset[str]()
    if links is not None and any(config.lets_people_sign_in for config in configs.values()):
        place = await links.sign_ins.place_of(context.turn.conversation, context.turn.asker)
        async with context.jobs.read() as connection:
            found = await mcp_sign_ins.list_servers(connection, context.turn.agent, place.person)
        stored = frozenset(found) & configs.keys()
    return TurnSignIns(
        agent=context.turn.agent,
        configs=configs,
        guard=guard,
        place=place if place is not None and place.person else None,
        links=links,
        stored=stored if place is not None and place.person else frozenset(),
    )

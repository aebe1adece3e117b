"""Offer what an agent's MCP servers have in a turn, under names that a model accepts."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from delivery.errors import as_sentence
from egress.guard import EgressGuard
from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.records import Records
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.store.accounts.mcp_sign_ins import SignInKey
from gateway.tools.approval_rules import rule_needs_approval
from gateway.tools.external_tools import ExternalTools, tool_name
from gateway.tools.mcp.prompt_commands import (
    PromptCommand,
    TypedCommand,
    WrongArguments,
    fill_in,
    list_prompts,
)
from gateway.tools.mcp.reads import ReadableServer, read_tools
from gateway.tools.mcp.results import failed_result, to_tool_result
from gateway.tools.mcp.server import (
    McpOffer,
    McpServer,
    McpSignInRequired,
    McpToolSpec,
    McpUnavailable,
    MissingClient,
    Tokens,
    has_client,
    load_client,
)
from gateway.tools.mcp.sign_ins.links import SignInLinks
from gateway.tools.mcp.sign_ins.turn_sign_ins import TurnSignIns, open_turn_sign_ins
from gateway.tools.mcp.stdio_server import StdioMcpServer
from gateway.tools.tool import InvalidArguments, JobCalls, Tool, ToolContext, definition_of, fixed

log = structlog.get_logger(__name__)

LIST_SECONDS = 600.0
"""Seconds for which the list of a stdio server is used again: each listing starts it in the sandbox."""

MAX_LISTS = 1000
"""Lists of tools that are kept in memory."""

SLOW_SECONDS = 5.0
"""A server that fails after a longer time is not asked by the turns of the next REST_SECONDS."""

REST_SECONDS = 60.0

LIST_CHANGED = "\n[the server's list of tools changed: the new list is offered from the next message on]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownList:
    digest: str
    listed_at: float
    offer: McpOffer


@dataclass(frozen=True, slots=True)
class _SlowFailure:
    """Why a request failed, and until when it is not made again."""

    until: float
    reason: str


class McpTools:
    """Opens the MCP servers of agents for their turns.

    The last list of each server is kept, for a server that does not answer at the start of a turn. One that
    fails slowly delays one turn a minute, and not each of them.
    """

    def __init__(
        self,
        records: Records,
        links: SignInLinks | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        """Set where servers come from; without `links` no person can sign in to one."""
        self._records = records
        self._links = links
        self._clock = clock
        self._lists: OrderedDict[tuple[str, str, str], _KnownList] = OrderedDict()
        self._slow_seconds = slow_seconds
        self._resting: dict[tuple[object, ...], _SlowFailure] = {}
        self._prompts_listed_at: dict[SignInKey, float] = {}

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[ExternalTools]:
        """Yield the tools of the agent's servers; connections are closed with the block."""
        configs = self._records.mcp_servers(context.agent) if context.agent is not None else {}
        if context.agent is None or not configs:
            yield ExternalTools()
            return
        guard = self._records.guard_of(context.agent)
        sign_ins = await open_turn_sign_ins(context, configs, guard, self._links)
        if any(config.command is None for config in configs.values()):
            await load_client()
        servers = {
            name: _open_server(config, guard, sign_ins.tokens(name)) for name, config in configs.items()
        }
        try:
            listed = await asyncio.gather(
                *(
                    self._list(context, name, configs[name], server, sign_ins)
                    for name, server in servers.items()
                )
            )
            opened = {
                name: _OpenServer(
                    name,
                    configs[name],
                    server,
                    discard=partial(self._lists.pop, sign_ins.list_key(name), None),
                    require=partial(sign_ins.require, name),
                )
                for name, server in servers.items()
            }
            offers = dict(zip(servers, listed, strict=True))
            offer = _offer(opened, offers)
            offer = replace(offer, tools={**sign_ins.tools(), **offer.tools})
            yield await self._with_prompt(context, offer, _prompt_servers(opened, offers), sign_ins)
        finally:
            await asyncio.gather(*(server.aclose() for server in servers.values()))

    async def _with_prompt(
        self,
        context: ToolContext,
        offer: ExternalTools,
        servers: Mapping[str, ReadableServer],
        sign_ins: TurnSignIns,
    ) -> ExternalTools:
        """Return the offer with the prompt that the turn's message names, or with the reason why not."""
        typed = TypedCommand.parse(context.turn.input) if context.turn.paused is None else None
        for name, server in servers.items():
            is_meant = typed is not None and typed.may_be_of(name)
            try:
                prompts = await self._prompts(context, name, server, sign_ins, fresh=is_meant)
                known = next((one for one in prompts if typed and one.command == typed.name), None)
                if typed is not None and known is not None:
                    return replace(offer, prompt=await fill_in(context, typed, known, server))
            except (McpUnavailable, WrongArguments) as error:
                log.warning("mcp.prompts_unavailable", server=name, error=str(error))
                if typed is not None and is_meant:
                    why = as_sentence(str(error))
                    note = f"The command /{typed.name} of the MCP server {name} was not executed: {why}"
                    return replace(offer, notes=(*offer.notes, f"{note} Tell the person."))
        return offer

    async def _prompts(
        self, context: ToolContext, name: str, server: ReadableServer, sign_ins: TurnSignIns, *, fresh: bool
    ) -> Sequence[PromptCommand]:
        """Return a server's prompts and store them for `/help`; nothing if that was done a short time ago."""
        agent, _server, person = sign_ins.list_key(name)
        key = SignInKey(agent=agent, server=name, person=person)
        if not fresh and self._is_resting(("prompts", *sign_ins.list_key(name))):
            return ()
        if not fresh and self._clock() - self._prompts_listed_at.get(key, -LIST_SECONDS) < LIST_SECONDS:
            return ()
        with self._remember_slow_failure(("prompts", *sign_ins.list_key(name))):
            prompts = await list_prompts(context, name, server)
        if len(self._prompts_listed_at) > MAX_LISTS:
            self._prompts_listed_at.clear()
        self._prompts_listed_at[key] = self._clock()
        if self._links is not None:
            await self._links.sign_ins.save_prompts(key, [one.usage for one in prompts])
        return prompts

    async def _list(
        self,
        context: ToolContext,
        name: str,
        config: McpServerConfig,
        server: McpServer,
        sign_ins: TurnSignIns,
    ) -> McpOffer | str:
        """Return what a server offers, or why that is unknown."""
        key, digest = sign_ins.list_key(name), _digest(config)
        known = self._lists.get(key)
        if known is not None and known.digest != digest:
            known = None
        if known is not None and config.command and self._is_recent(known, context):
            return known.offer
        if self._is_resting((*key, digest)):
            failure = self._resting[(*key, digest)]
            reason = f"{failure.reason}; the gateway asks it again within a minute"
            return reason if known is None else known.offer
        try:
            with self._remember_slow_failure((*key, digest)):
                offer = await server.describe(context)
        except McpSignInRequired as error:
            return sign_ins.require(name, str(error))
        except McpUnavailable as error:
            log.warning("mcp.server_unavailable", agent=context.turn.agent, server=name, error=str(error))
            return str(error) if known is None else known.offer
        self._lists[key] = _KnownList(digest=digest, listed_at=self._clock(), offer=offer)
        self._lists.move_to_end(key)
        if len(self._lists) > MAX_LISTS:
            self._lists.popitem(last=False)
        return offer

    def _is_recent(self, known: _KnownList, context: ToolContext) -> bool:
        """Return whether a list can be used again. An approved call is compared with the present list."""
        return context.turn.paused is None and self._clock() - known.listed_at < LIST_SECONDS

    def _is_resting(self, request: tuple[object, ...]) -> bool:
        failure = self._resting.get(request)
        return failure is not None and self._clock() < failure.until

    @contextmanager
    def _remember_slow_failure(self, request: tuple[object, ...]) -> Iterator[None]:
        """Remember the failure of a request if it took long."""
        begun = self._clock()
        try:
            yield
        except McpSignInRequired:
            raise  # the server answers; what took long may be the renewal of a token
        except McpUnavailable as error:
            if self._clock() - begun >= self._slow_seconds:
                if len(self._resting) >= MAX_LISTS:
                    self._resting.clear()
                self._resting[request] = _SlowFailure(self._clock() + REST_SECONDS, str(error))
            raise
        self._resting.pop(request, None)


def _open_server(config: McpServerConfig, guard: EgressGuard, tokens: Tokens | None) -> McpServer:
    if config.command is not None:
        return StdioMcpServer(config)
    if not has_client():
        return MissingClient()
    from gateway.tools.mcp.http_server import HttpMcpServer

    return HttpMcpServer(config, guard, tokens)


@dataclass(frozen=True, slots=True)
class _OpenServer:
    """A server of a turn. `discard` drops the list that later turns would use, `require` has people asked."""

    name: str
    config: McpServerConfig
    server: McpServer
    discard: Callable[[], object]
    require: Callable[[str], str]

    def readable(self) -> ReadableServer:
        """Return it for the tools that read."""
        return ReadableServer(config=self.config, server=self.server)


def _offer(opened: Mapping[str, _OpenServer], listed: Mapping[str, McpOffer | str]) -> ExternalTools:
    offers = {name: found for name, found in listed.items() if isinstance(found, McpOffer)}
    notes = tuple(
        f"The tools of the MCP server {name} are missing in this turn: {found}"
        for name, found in listed.items()
        if isinstance(found, str)
    )
    tools = dict(
        read_tools(
            {
                name: opened[name].readable()
                for name, one in offers.items()
                if _has_resources(opened[name], one)
            },
            _prompt_servers(opened, offers),
        )
    )
    for name, offer in offers.items():
        for offered, spec in _named(name, opened[name].config, offer.tools):
            tools.setdefault(offered, _to_tool(offered, spec, opened[name], offer))
    return ExternalTools(tools=tools, notes=notes)


def _prompt_servers(
    opened: Mapping[str, _OpenServer], listed: Mapping[str, McpOffer | str]
) -> dict[str, ReadableServer]:
    return {
        name: opened[name].readable()
        for name, found in listed.items()
        if isinstance(found, McpOffer) and _has_prompts(opened[name], found)
    }


def _has_resources(opened: _OpenServer, offer: McpOffer) -> bool:
    return offer.resources and opened.config.resources


def _has_prompts(opened: _OpenServer, offer: McpOffer) -> bool:
    return offer.prompts and opened.config.prompts


def _named(
    server: str, config: McpServerConfig, specs: Sequence[McpToolSpec]
) -> Iterator[tuple[str, McpToolSpec]]:
    """Yield the tools that the filter offers, with their names for the model."""
    prefix = f"{server}_" if config.prefix is None else config.prefix
    for spec in specs:
        if config.offers(spec.name):
            yield tool_name(prefix + spec.name), spec


def _to_tool(offered: str, spec: McpToolSpec, opened: _OpenServer, offer: McpOffer) -> Tool:
    shown = ToolSpec(name=offered, description=spec.description, schema=spec.schema)
    config = opened.config

    async def run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
        try:
            async with asyncio.timeout(config.timeout + 1.0):
                result = await opened.server.call_tool(context, spec.name, args)
        except McpSignInRequired as error:
            return failed_result(opened.require(str(error)), may_have_run=error.may_have_run)
        except McpUnavailable as error:
            return failed_result(str(error), may_have_run=error.may_have_run)
        except TimeoutError:
            return failed_result(f"no answer within {config.timeout} s", may_have_run=True)
        answer = to_tool_result(result, tool=offered, limit=context.environment.config.output_limit)
        return answer if offer.announces_at_start else _with_changes(opened, answer)

    return Tool(
        spec=fixed(shown),
        needs_approval=lambda sandbox: rule_needs_approval(config.approval, sandbox),
        run=run,
        idempotent=spec.repeatable,
        validate=_validate,
        uses_workspace=False,
        address=lambda _args: config.url or config.command or "",
        definition=definition_of(shown),
        jobs=JobCalls(after=config.background_after, server=opened.name) if config.may_be_job else None,
    )


def _with_changes(opened: _OpenServer, result: ToolResult) -> ToolResult:
    """Return the result; it says so if the server announced another list of tools."""
    if not opened.server.take_list_changed():
        return result
    opened.discard()
    return replace(result, content=result.content + LIST_CHANGED)


def _validate(schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArguments for a missing argument; the server checks the rest.

    Its schema is foreign: a pattern in it could keep the gateway busy.
    """
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in args:
            raise InvalidArguments(f"{name} is missing")


def _digest(config: McpServerConfig) -> str:
    secrets = {name: value.get_secret_value() for name, value in (config.headers | config.env).items()}
    return hashlib.sha256(f"{config!r}{sorted(secrets.items())}".encode()).hexdigest()

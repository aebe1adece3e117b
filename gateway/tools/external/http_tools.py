"""The HTTP requests of an agent record as tools, through guarded connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from yarl import URL

from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.records import Records
from gateway.records.tools.http_requests import PLACEHOLDER, HttpToolConfig
from gateway.tools.external.external_tools import ExternalTools, OpenExternalTools
from gateway.tools.external.requests import (
    HttpRequest,
    RequestSession,
    needs_approval,
    plain_text,
    url_part,
)
from gateway.tools.tool import InvalidArguments, Tool, ToolContext

_QUERY_METHODS = frozenset({"GET", "DELETE"})


class HttpTools:
    """Offers the HTTP tools of agent records beside other external tools."""

    def __init__(self, records: Records, others: OpenExternalTools) -> None:
        self._records = records
        self._others = others

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[ExternalTools]:
        """Yield the agent's HTTP tools, and the others; connections are closed with the block."""
        agent = context.agent
        configs = self._records.http_tools(agent) if agent is not None else {}
        async with self._others(context) as others:
            if agent is None or not configs:
                yield others
                return
            requests = RequestSession(self._records.guard_of(agent))
            try:
                tools = {name: _to_tool(name, config, requests) for name, config in configs.items()}
                yield replace(others, tools={**others.tools, **tools})
            finally:
                await requests.aclose()


def build_request(config: HttpToolConfig, args: Mapping[str, Any]) -> tuple[URL, dict[str, Any]]:
    """Return the address of a call, and the arguments that its body has; raises InvalidArguments."""
    used = set(config.placeholders())
    path = PLACEHOLDER.sub(lambda found: url_part(found[1], args.get(found[1])), config.url)
    rest = {name: value for name, value in args.items() if name not in used}
    url = URL(path, encoded=True)
    if config.method in _QUERY_METHODS and rest:
        url = url.update_query({name: plain_text(value) for name, value in rest.items() if value is not None})
        rest = {}
    return url, rest


def _to_tool(name: str, config: HttpToolConfig, requests: RequestSession) -> Tool:
    spec = ToolSpec(name=name, description=config.description, schema=config.arguments_schema())

    async def run(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        url, rest = build_request(config, args)
        request = HttpRequest(
            method=config.method,
            url=url,
            headers={name: value.get_secret_value() for name, value in config.headers.items()},
            body=None if config.method in _QUERY_METHODS else rest,
            timeout=config.timeout,
        )
        return await requests.send(request, limit=context.environment.config.output_limit, key=key)

    return Tool(
        spec=lambda _context: spec,
        needs_approval=lambda sandbox: needs_approval(config.approval, sandbox),
        run=run,
        idempotent=config.repeatable,
        validate=lambda schema, args: _validate(config, schema, args),
        uses_workspace=False,
        address=lambda args: _address(config, args),
    )


def _address(config: HttpToolConfig, args: Mapping[str, Any]) -> str:
    try:
        url, _body = build_request(config, args)
    except InvalidArguments:
        return f"{config.method} {config.url}"
    return f"{config.method} {url}"


def _validate(config: HttpToolConfig, schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArguments for missing and unknown arguments; the server checks the values.

    The schema is the account's: a pattern in it could keep the gateway busy.
    """
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if args.get(name) is None:
            raise InvalidArguments(f"{name} is missing")
    for name in args:
        if name not in properties and not schema.get("additionalProperties", False):
            raise InvalidArguments(f"there is no argument {name!r}; there are {', '.join(properties)}")
    build_request(config, args)

"""The operations of an agent's OpenAPI documents as tools, through guarded connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from yarl import URL

from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.records import Records
from gateway.records.tools.openapi_document import Operation, Parameter
from gateway.records.tools.openapi_tools import OpenApiToolsConfig
from gateway.tools.external.external_tools import ExternalTools, OpenExternalTools, tool_name
from gateway.tools.external.requests import (
    HttpRequest,
    RequestSession,
    needs_approval,
    plain_text,
    url_part,
)
from gateway.tools.tool import InvalidArguments, Tool, ToolContext

_REPEATABLE = frozenset({"GET"})


class OpenApiTools:
    """Offers the operations of documents in agent records beside other external tools."""

    def __init__(self, records: Records, others: OpenExternalTools) -> None:
        self._records = records
        self._others = others

    @asynccontextmanager
    async def open(self, context: ToolContext) -> AsyncIterator[ExternalTools]:
        """Yield the operations, and the others; connections are closed with the block."""
        agent = context.agent
        configs = self._records.openapi_tools(agent) if agent is not None else {}
        async with self._others(context) as others:
            if agent is None or not configs:
                yield others
                return
            requests = RequestSession(self._records.guard_of(agent))
            try:
                yield replace(others, tools={**others.tools, **dict(_tools(configs, requests))})
            finally:
                await requests.aclose()


def _tools(configs: Mapping[str, OpenApiToolsConfig], requests: RequestSession) -> Iterator[tuple[str, Tool]]:
    for document, config in configs.items():
        prefix = f"{document}_" if config.prefix is None else config.prefix
        for name in config.operation_names():
            offered = tool_name(prefix + name)
            yield (
                offered,
                _Call(config, without_headers_of(config, config.operation(name))).to_tool(offered, requests),
            )


def without_headers_of(config: OpenApiToolsConfig, operation: Operation) -> Operation:
    """Return an operation without the parameters that the record's headers set."""
    given = {name.lower() for name in config.headers}
    kept = [one for one in operation.parameters if one.place != "header" or one.name.lower() not in given]
    return replace(operation, parameters=kept)


class _Call:
    """Makes requests of one operation."""

    def __init__(self, config: OpenApiToolsConfig, operation: Operation) -> None:
        self._config = config
        self._operation = operation

    def to_tool(self, name: str, requests: RequestSession) -> Tool:
        """Return the operation as a tool."""
        config, operation = self._config, self._operation
        spec = ToolSpec(name=name, description=operation.description, schema=operation.arguments_schema())

        async def run(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
            limit = context.environment.config.output_limit
            return await requests.send(self.build(args), limit=limit, key=key)

        return Tool(
            spec=lambda _context: spec,
            needs_approval=lambda sandbox: needs_approval(config.approval, sandbox),
            run=run,
            idempotent=operation.method in _REPEATABLE,
            validate=self._validate,
            uses_workspace=False,
            address=self._address,
        )

    def build(self, args: Mapping[str, Any]) -> HttpRequest:
        """Return the request of a call; raises InvalidArguments."""
        headers = {one.name: _header(one, args[one.argument]) for one in self._given("header", args)}
        headers |= {name: value.get_secret_value() for name, value in self._config.headers.items()}
        return HttpRequest(
            method=self._operation.method,
            url=self._url(args),
            headers=headers,
            body=args.get("body") if self._operation.body is not None else None,
            timeout=self._config.timeout,
        )

    def _url(self, args: Mapping[str, Any]) -> URL:
        path = self._operation.path
        for one in self._operation.parameters:
            if one.place == "path":
                path = path.replace(f"{{{one.name}}}", url_part(one.argument, args.get(one.argument)))
        url = URL(self._config.server + path, encoded=True)
        query = [
            (one.name, plain_text(value))
            for one in self._given("query", args)
            for value in _values(args[one.argument])
        ]
        return url.extend_query(query) if query else url

    def _given(self, place: str, args: Mapping[str, Any]) -> Iterator[Parameter]:
        for one in self._operation.parameters:
            if one.place == place and args.get(one.argument) is not None:
                yield one

    def _validate(self, schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        """Raise InvalidArguments for missing and unknown arguments; the server checks the values.

        The schema is foreign: a pattern in it could keep the gateway busy.
        """
        for name in schema.get("required", ()):
            if args.get(name) is None:
                raise InvalidArguments(f"{name} is missing")
        for name in args:
            if name not in schema["properties"]:
                known = ", ".join(schema["properties"]) or "none"
                raise InvalidArguments(f"there is no argument {name!r}; the arguments are: {known}")
        self.build(args)

    def _address(self, args: Mapping[str, Any]) -> str:
        try:
            return f"{self._operation.method} {self._url(args)}"
        except InvalidArguments:
            return f"{self._operation.method} {self._config.server}{self._operation.path}"


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _header(parameter: Parameter, value: Any) -> str:
    text = plain_text(value)
    if not (text.isascii() and text.isprintable()):
        raise InvalidArguments(
            f"{parameter.argument} is a header: it must have visible ASCII characters only"
        )
    return text

"""The operations of an agent's OpenAPI documents as tools, through guarded connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from yarl import URL

from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.tools.openapi_document import Operation, Parameter
from gateway.records.tools.openapi_tools import OpenApiToolsConfig
from gateway.store.accounts.records import Record
from gateway.tools.approval_rules import rule_needs_approval
from gateway.tools.external.request_tools import RequestTools
from gateway.tools.external.requests import (
    HttpRequest,
    RequestSession,
    plain_text,
    url_part,
)
from gateway.tools.external_tools import tool_name
from gateway.tools.tool import (
    InvalidArguments,
    JobCalls,
    Tool,
    ToolContext,
    check_argument_names,
    definition_of,
    fixed,
)

_REPEATABLE = frozenset({"GET"})


class OpenApiTools(RequestTools[OpenApiToolsConfig]):
    """Offers the operations of documents in agent records beside other external tools."""

    def configs_of(self, agent: Record) -> Mapping[str, OpenApiToolsConfig]:
        """Return the agent's documents by name."""
        return self.records.openapi_tools(agent)

    def build(
        self, configs: Mapping[str, OpenApiToolsConfig], requests: RequestSession
    ) -> Mapping[str, Tool]:
        """Return the operations by the names that they are offered with."""
        return dict(_tools(configs, requests))


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
            spec=fixed(spec),
            needs_approval=lambda sandbox: rule_needs_approval(config.approval, sandbox),
            run=run,
            idempotent=operation.method in _REPEATABLE,
            validate=self._validate,
            uses_workspace=False,
            address=self._address,
            definition=definition_of(spec),
            jobs=JobCalls() if config.is_async else None,
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
        """Raise InvalidArguments unless a request can be built; the server checks the values."""
        check_argument_names(schema, args)
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

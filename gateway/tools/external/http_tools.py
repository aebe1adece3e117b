"""The HTTP requests of an agent record as tools, through guarded connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yarl import URL

from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.tools.http_requests import PLACEHOLDER, HttpToolConfig
from gateway.store.accounts.records import Record
from gateway.tools.approval_rules import rule_needs_approval
from gateway.tools.external.request_tools import RequestTools
from gateway.tools.external.requests import (
    HttpRequest,
    RequestSession,
    plain_text,
    url_part,
)
from gateway.tools.tool import (
    InvalidArguments,
    JobCalls,
    Tool,
    ToolContext,
    check_argument_names,
    definition_of,
    fixed,
)

_QUERY_METHODS = frozenset({"GET", "DELETE"})


class HttpTools(RequestTools[HttpToolConfig]):
    """Offers the HTTP tools of agent records beside other external tools."""

    def configs_of(self, agent: Record) -> Mapping[str, HttpToolConfig]:
        """Return the agent's HTTP tools by name."""
        return self.records.http_tools(agent)

    def build(self, configs: Mapping[str, HttpToolConfig], requests: RequestSession) -> Mapping[str, Tool]:
        """Return the tools by name."""
        return {name: _to_tool(name, config, requests) for name, config in configs.items()}


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
        spec=fixed(spec),
        needs_approval=lambda sandbox: rule_needs_approval(config.approval, sandbox),
        run=run,
        idempotent=config.repeatable,
        validate=lambda schema, args: _validate(config, schema, args),
        uses_workspace=False,
        address=lambda args: _address(config, args),
        definition=definition_of(spec),
        jobs=JobCalls() if config.is_async else None,
    )


def _address(config: HttpToolConfig, args: Mapping[str, Any]) -> str:
    try:
        url, _body = build_request(config, args)
    except InvalidArguments:
        return f"{config.method} {config.url}"
    return f"{config.method} {url}"


def _validate(config: HttpToolConfig, schema: Mapping[str, Any], args: Mapping[str, Any]) -> None:
    """Raise InvalidArguments unless a request can be built; the server checks the values."""
    check_argument_names(schema, args)
    build_request(config, args)

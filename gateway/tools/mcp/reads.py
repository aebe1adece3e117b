"""Tools that read the resources and prompts of a turn's MCP servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.records.tools.mcp_servers import McpServerConfig
from gateway.tools.approval_rules import commands_need_approval
from gateway.tools.mcp.results import (
    failed_result,
    render_prompt,
    render_prompts,
    render_resource,
    render_resource_list,
    to_text_result,
)
from gateway.tools.mcp.server import McpServer, McpUnavailable, ReadMethod
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, ToolFunction, fixed, validate_arguments
from sandbox.config import SandboxConfig

LIST_RESOURCES, READ_RESOURCE = "mcp_list_resources", "mcp_read_resource"
LIST_PROMPTS, GET_PROMPT = "mcp_list_prompts", "mcp_get_prompt"
READ_TOOLS = (LIST_RESOURCES, READ_RESOURCE, LIST_PROMPTS, GET_PROMPT)

_MAX_URI = 8000
_CURSOR = {"type": "string", "description": "the `next` of the page before; leave it out for the first page"}

Render = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableServer:
    """A connected server with its configuration."""

    config: McpServerConfig
    server: McpServer

    @property
    def address(self) -> str:
        """What a request goes to."""
        return self.config.url or self.config.command or ""


Servers = Mapping[str, ReadableServer]


def read_tools(resources: Servers, prompts: Servers) -> Iterator[tuple[str, Tool]]:
    """Yield the tools for servers with resources, and for those with prompts, by name."""
    if resources:
        yield LIST_RESOURCES, _list_resources(resources)
        yield READ_RESOURCE, _read_resource(resources)
    if prompts:
        yield LIST_PROMPTS, _list_prompts(prompts)
        yield GET_PROMPT, _get_prompt(prompts)


def _list_resources(servers: Servers) -> Tool:
    spec = _spec(
        LIST_RESOURCES,
        "List the resources of an MCP server, or with templates: true its patterns of resource addresses.",
        servers,
        {"templates": {"type": "boolean"}, "cursor": _CURSOR},
    )

    async def run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
        method: ReadMethod = "resources/templates/list" if args.get("templates") else "resources/list"
        return await _read(context, servers, args, request=(method, _page(args)), render=render_resource_list)

    return _tool(spec, servers, run)


def _read_resource(servers: Servers) -> Tool:
    uri = {"type": "string", "description": "the resource's address, as its server names it"}
    spec = _spec(READ_RESOURCE, "Read a resource of an MCP server.", servers, {"uri": uri}, "uri")

    async def run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
        if len(args["uri"]) > _MAX_URI:
            raise InvalidArguments(f"uri must have at most {_MAX_URI} characters")
        return await _read(
            context, servers, args, request=("resources/read", {"uri": args["uri"]}), render=render_resource
        )

    return _tool(spec, servers, run)


def _list_prompts(servers: Servers) -> Tool:
    spec = _spec(LIST_PROMPTS, "List the prompts that an MCP server has ready.", servers, {"cursor": _CURSOR})

    async def run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
        return await _read(
            context, servers, args, request=("prompts/list", _page(args)), render=render_prompts
        )

    return _tool(spec, servers, run)


def _get_prompt(servers: Servers) -> Tool:
    described = {
        "name": {"type": "string", "description": "the prompt's name"},
        "arguments": {"type": "object", "description": "the prompt's arguments; each value is a text"},
    }
    spec = _spec(GET_PROMPT, "Get a prompt of an MCP server, filled in.", servers, described, "name")

    async def run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
        given: Mapping[str, Any] = args.get("arguments") or {}
        if not all(isinstance(value, str) for value in given.values()):
            raise InvalidArguments("each value of arguments must be a text")
        params = {"name": args["name"], "arguments": dict(given)}
        return await _read(context, servers, args, request=("prompts/get", params), render=render_prompt)

    return _tool(spec, servers, run)


def _spec(
    name: str, description: str, servers: Servers, properties: Mapping[str, Any], *required: str
) -> ToolSpec:
    server = {"type": "string", "enum": list(servers), "description": "which MCP server"}
    schema = {
        "type": "object",
        "properties": {"server": server, **properties},
        "required": ["server", *required],
    }
    return ToolSpec(name=name, description=description, schema=schema)


def _page(args: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"cursor": args["cursor"]} if args.get("cursor") else {}


async def _read(
    context: ToolContext,
    servers: Servers,
    args: Mapping[str, Any],
    *,
    request: tuple[ReadMethod, Mapping[str, Any]],
    render: Render,
) -> ToolResult:
    method, params = request
    try:
        result = await servers[args["server"]].server.read(context, method, params)
    except McpUnavailable as error:
        return failed_result(str(error), may_have_run=False)
    return to_text_result(render(result), limit=context.environment.config.output_limit)


def _tool(spec: ToolSpec, servers: Servers, run: ToolFunction) -> Tool:
    def follows_mode(sandbox: SandboxConfig) -> bool:
        asks = any(one.config.approval == "default" for one in servers.values())
        return asks and commands_need_approval(sandbox)

    def always_asks(args: Mapping[str, Any]) -> bool:
        return servers[args["server"]].config.approval == "always"

    def address(args: Mapping[str, Any]) -> str:
        named = servers.get(str(args.get("server")))
        return named.address if named is not None else ""

    return Tool(
        spec=fixed(spec),
        needs_approval=follows_mode,
        call_needs_approval=always_asks,
        run=run,
        idempotent=True,
        validate=validate_arguments,
        uses_workspace=False,
        address=address,
    )

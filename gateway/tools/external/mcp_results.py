"""Read what MCP servers answer: descriptions of tools, and results of calls. All of it is foreign text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.agents.clients.text import repair_surrogates
from gateway.agents.port import ToolResult
from gateway.tools.external.mcp_server import McpToolSpec

MAX_TOOLS = 100
"""Tools of one server; further ones are left out."""
MAX_DESCRIPTION = 4000
MAX_SCHEMA_BYTES = 32 * 1024
MAX_ERROR = 500
_MAX_TYPE = 100


def parse_tools(listed: Sequence[object]) -> list[McpToolSpec]:
    """Return the tools of a list; those with a missing name or an unusable schema are left out."""
    specs = (_parse_tool(one) for one in listed if isinstance(one, Mapping))
    return [one for one in specs if one is not None][:MAX_TOOLS]


def _parse_tool(tool: Mapping[str, Any]) -> McpToolSpec | None:
    name, schema = tool.get("name"), tool.get("inputSchema")
    if not isinstance(name, str) or not name or not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(properties, Mapping):
        return None
    if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
        return None
    hints = tool.get("annotations")
    hints = hints if isinstance(hints, Mapping) else {}
    return McpToolSpec(
        name=name,
        description=_text(tool.get("description") or tool.get("title") or name)[:MAX_DESCRIPTION],
        schema={**schema, "properties": properties},
        repeatable=hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True,
    )


def to_tool_result(result: Mapping[str, Any], *, limit: int) -> ToolResult:
    """Return a result for the model, with at most `limit` characters of text."""
    content = result.get("content")
    blocks = [one for one in content if isinstance(one, Mapping)] if isinstance(content, list) else []
    text = "\n".join(_render(blocks))
    structured = result.get("structuredContent")
    if not text and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    truncated = len(text) > limit
    shown = f"{text[:limit]}\n[output truncated]" if truncated else text
    detail = {"truncated": True} if truncated else {}
    return ToolResult(ok=result.get("isError") is not True, content=repair_surrogates(shown), detail=detail)


def _render(blocks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for block in blocks:
        match block.get("type"):
            case "text":
                yield _text(block.get("text"))
            case "image" | "audio" as kind:
                yield f"[{kind}, {_text(block.get('mimeType'))[:_MAX_TYPE]}, not shown]"
            case "resource_link":
                yield f"[resource {_text(block.get('uri'))}: {_text(block.get('name'))}]"
            case "resource":
                yield _render_resource(block.get("resource"))
            case _:
                yield "[content of an unknown type]"


def _render_resource(resource: object) -> str:
    if not isinstance(resource, Mapping):
        return "[an unreadable resource]"
    if isinstance(resource.get("text"), str):
        return _text(resource["text"])
    return (
        f"[resource {_text(resource.get('uri'))}, {_text(resource.get('mimeType'))[:_MAX_TYPE]}, not shown]"
    )


def _text(value: object) -> str:
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else ""

"""Read what MCP servers answer: tools, results, resources, prompts. All of it is foreign text."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gateway.agents.clients.text import repair_surrogates
from gateway.agents.port import AgentImage, ToolResult
from gateway.files.attachments import MAX_IMAGE_BYTES
from gateway.files.media_types import IMAGES, detect_media_type
from gateway.tools.mcp.server import McpToolSpec

MAX_TOOLS = 100
"""Tools of one server; further ones are left out."""
MAX_DESCRIPTION = 4000
MAX_SCHEMA_BYTES = 32 * 1024
MAX_ERROR = 500
_MAX_TYPE = 100


async def list_tools(
    get_page: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]],
) -> list[McpToolSpec]:
    """Return the tools of all pages, MAX_TOOLS at most; `get_page` sends `tools/list` with parameters."""
    listed: list[object] = []
    params: Mapping[str, Any] = {}
    while True:
        page = await get_page(params)
        tools, cursor = page.get("tools"), page.get("nextCursor")
        listed += tools if isinstance(tools, list) else []
        if not tools or not isinstance(cursor, str) or len(listed) >= MAX_TOOLS:
            return parse_tools(listed)
        params = {"cursor": cursor}


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


def to_tool_result(result: Mapping[str, Any], *, tool: str, limit: int) -> ToolResult:
    """Return a result for the model, with at most `limit` characters of text and the images it can see."""
    blocks = _objects(result.get("content"))
    images = _find_images(blocks, tool)
    text = "\n".join(_render(blocks, images))
    structured = result.get("structuredContent")
    if not text and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    shown = to_text_result(text, limit=limit, ok=result.get("isError") is not True)
    return replace(shown, images=tuple(images.values()))


def _find_images(blocks: Sequence[Mapping[str, Any]], tool: str) -> dict[int, AgentImage]:
    """Return the images that models accept, by their places among the blocks, named after the tool."""
    images: dict[int, AgentImage] = {}
    for place, block in enumerate(blocks):
        content = _image_bytes(block)
        kind = detect_media_type(content, "")
        if kind in IMAGES and len(content) <= MAX_IMAGE_BYTES:
            name = f"{tool} {len(images) + 1}"
            images[place] = AgentImage(name=name, media_type=kind, content=content)
    return images


def _image_bytes(block: Mapping[str, Any]) -> bytes:
    """Return the bytes of an image, or of a resource in the result; empty for other blocks."""
    resource = block.get("resource")
    encoded = resource.get("blob") if isinstance(resource, Mapping) else block.get("data")
    try:
        return base64.b64decode(encoded, validate=True) if isinstance(encoded, str) else b""
    except ValueError:
        return b""


def to_text_result(text: str, *, limit: int, ok: bool = True) -> ToolResult:
    """Return a text for the model, cut at `limit` characters."""
    truncated = len(text) > limit
    shown = f"{text[:limit]}\n[output truncated]" if truncated else text
    return ToolResult(
        ok=ok, content=repair_surrogates(shown), detail={"truncated": True} if truncated else {}
    )


def failed_result(reason: str, *, may_have_run: bool) -> ToolResult:
    """Return the result of a request without an answer."""
    advice = "\nThe call may have run: check before you repeat it." if may_have_run else ""
    return ToolResult(ok=False, content=f"{reason}{advice}")


def render_resource_list(result: Mapping[str, Any]) -> str:
    """Return the resources, or the templates of them, one a line as JSON."""
    items = _objects(result.get("resources")) + _objects(result.get("resourceTemplates"))
    return _lines(items, ("uri", "uriTemplate", "name", "title", "description", "mimeType", "size"), result)


def render_resource(result: Mapping[str, Any]) -> str:
    """Return the contents of a resource; binary contents are named only."""
    contents = _objects(result.get("contents"))
    return "\n".join(_render_resource(one) for one in contents) or "[the resource is empty]"


def render_prompts(result: Mapping[str, Any]) -> str:
    """Return the prompts with their arguments, one a line as JSON."""
    return _lines(_objects(result.get("prompts")), ("name", "title", "description", "arguments"), result)


def render_prompt(result: Mapping[str, Any]) -> str:
    """Return the messages of a prompt, each below the role that says it."""
    messages = _objects(result.get("messages"))
    return "\n\n".join(
        f"{_text(one.get('role'))}:\n" + "\n".join(_render(_objects([one.get("content")])))
        for one in messages
    )


def render_input(result: Mapping[str, Any]) -> str:
    """Return the messages of a prompt as a message: without roles if the user says all of them."""
    messages = _objects(result.get("messages"))
    if any(one.get("role") != "user" for one in messages):
        return render_prompt(result)
    return "\n\n".join("\n".join(_render(_objects([one.get("content")]))) for one in messages)


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _lines(items: Sequence[Mapping[str, Any]], keys: Sequence[str], result: Mapping[str, Any]) -> str:
    lines = [
        json.dumps({key: one[key] for key in keys if one.get(key) is not None}, ensure_ascii=False)
        for one in items
    ]
    following = result.get("nextCursor")
    if isinstance(following, str):
        lines.append(json.dumps({"next": following}))
    return "\n".join(lines) or "[the list is empty]"


def _render(
    blocks: Sequence[Mapping[str, Any]], images: Mapping[int, AgentImage] = MappingProxyType({})
) -> Iterator[str]:
    for place, block in enumerate(blocks):
        if image := images.get(place):
            yield f"[image {image.name}, {image.media_type}, follows]"
            continue
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

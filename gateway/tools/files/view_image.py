"""The view_image tool: show an image of the workspace to the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import AgentImage, ToolResult, ToolSpec
from gateway.files.attachments import MAX_IMAGE_BYTES
from gateway.files.media_types import IMAGES, detect_media_type, render_size
from gateway.tools.approval_rules import never_needs_approval
from gateway.tools.files.file_arguments import (
    PATH_SCHEMA,
    has_files,
    path_argument,
    read_file,
    with_file_errors,
)
from gateway.tools.tool import Tool, ToolContext, fixed

_SPEC = ToolSpec(
    name="view_image",
    description=(
        "See an image of your workspace (PNG, JPEG, GIF or WebP of at most "
        f"{render_size(MAX_IMAGE_BYTES)}), such as a chart or a screenshot that you made."
    ),
    schema={
        "type": "object",
        "properties": {"path": PATH_SCHEMA},
        "required": ["path"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    path = path_argument(args)
    content = await read_file(context, path)
    kind, size = detect_media_type(content, path), render_size(len(content))
    if kind not in IMAGES:
        return ToolResult(ok=False, content=f"{path} is no PNG, JPEG, GIF or WebP image but {kind}")
    if len(content) > MAX_IMAGE_BYTES:
        most = render_size(MAX_IMAGE_BYTES)
        return ToolResult(ok=False, content=f"{path} has {size}, the most is {most}: make a smaller copy")
    return ToolResult(
        ok=True,
        content=f"{path} ({kind}, {size}) follows. If you do not see it, call view_image again.",
        detail={"path": path, "type": kind, "size": len(content)},
        images=(AgentImage(name=path, media_type=kind, content=content),),
    )


view_image = Tool(
    spec=fixed(_SPEC),
    needs_approval=never_needs_approval,
    run=with_file_errors(_run),
    idempotent=True,
    is_available=has_files,
)

"""Pictures of a screen: into the workspace, to the model, and to the chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import AgentImage, ToolResult
from gateway.files.attachments import MAX_IMAGE_BYTES
from gateway.files.collection import FileRejected
from gateway.files.media_types import IMAGES, detect_media_type, render_size
from gateway.tools.tool import InvalidArguments, ToolContext, bool_argument, str_argument
from sandbox.errors import UnsafePath
from sandbox.lifecycle.screen_driver import Program, ScreenReply

MAX_PATH_LENGTH = 300

PICTURE_SCHEMA: Mapping[str, Any] = {
    "path": {
        "type": "string",
        "description": "for screenshot: the file in the workspace; screenshots/… if left out",
    },
    "send": {
        "type": "boolean",
        "description": "for screenshot: whether people get it with your answer; true if left out",
    },
}


def picture_request(program: Program, args: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the fields of a request for a screenshot; raises InvalidArguments."""
    path = str_argument(args, "path", required=False) or f"screenshots/{program}-{key[-8:]}.png"
    if len(path) > MAX_PATH_LENGTH or "\0" in path:
        raise InvalidArguments(f"path must have at most {MAX_PATH_LENGTH} characters, and no NUL")
    return {"path": path, "max_bytes": MAX_IMAGE_BYTES}


async def show_picture(
    context: ToolContext, args: Mapping[str, Any], key: str, reply: ScreenReply, said: str
) -> ToolResult:
    """Return the result of a screenshot that was written into the workspace: the model sees it at once."""
    path = str(reply.fields.get("path", ""))
    sandbox = await context.environment_resolver.sandbox(context.environment)
    try:
        content = await sandbox.read(path, limit=MAX_IMAGE_BYTES + 1)
    except (OSError, UnsafePath) as error:
        return ToolResult(
            ok=False, content=f"the screenshot {path[:MAX_PATH_LENGTH]} cannot be read: {error}"
        )
    kind = detect_media_type(content, path)
    if kind not in IMAGES or len(content) > MAX_IMAGE_BYTES:
        size = render_size(len(content))
        return ToolResult(ok=False, content=f"{path[:MAX_PATH_LENGTH]} is no image to show: {kind}, {size}")
    sent = await _send(context, args, key, path)
    return ToolResult(
        ok=True,
        content=f"{said}{path} ({kind}, {render_size(len(content))}) follows{sent}. "
        "If you do not see it, call view_image.",
        detail={"path": path, "type": kind, "size": len(content)},
        images=(AgentImage(name=path, media_type=kind, content=content),),
    )


async def _send(context: ToolContext, args: Mapping[str, Any], key: str, path: str) -> str:
    """Queue the picture for the chat unless the call says otherwise; return what became of it."""
    if args.get("send") is not None and not bool_argument(args, "send"):
        return ""
    try:
        await context.files.deliver(context.turn, context.environment, path, caption="", key=key)
    except (FileRejected, UnsafePath) as error:
        return f" (it is not sent to people: {error})"
    return " and goes out with your answer"

"""The deliver_file tool: hand a file of the workspace to the person, as an attachment of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.files.collection import FileRejected
from gateway.files.media_types import render_size
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, fixed, str_argument
from sandbox.errors import UnsafePath

MAX_CAPTION_LENGTH = 500
MAX_PATH_LENGTH = 1000


_SPEC = ToolSpec(
    name="deliver_file",
    description=(
        "Send a file of your workspace to the person you talk with, as an attachment of your answer. "
        "Files that you leave in outbox/ are sent as well, without this tool."
    ),
    schema={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "the file, relative to the workspace"},
            "caption": {"type": "string", "description": "a line that is shown with it"},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
    path, caption = str_argument(args, "path"), str_argument(args, "caption", required=False)
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidArguments(f"path has more than {MAX_PATH_LENGTH} characters")
    if len(caption) > MAX_CAPTION_LENGTH:
        raise InvalidArguments(f"caption has more than {MAX_CAPTION_LENGTH} characters")
    try:
        file = await context.files.deliver(context.turn, context.environment, path, caption=caption, key=key)
    except (FileRejected, UnsafePath) as error:
        return ToolResult(ok=False, content=f"{path} was not sent: {error}")
    said = f"{file.path} ({render_size(file.size)}, {file.type}) is queued and goes out with your answer"
    detail = {"path": file.path, "name": file.name, "size": file.size, "type": file.type}
    return ToolResult(ok=True, content=said, detail=detail | {"sha256": file.sha256})


deliver_file = Tool(
    spec=fixed(_SPEC),
    needs_approval=lambda _config: False,
    run=_run,
    idempotent=True,
    is_available=lambda context: (
        context.environment.workspace is not None and not context.environment.files_only
    ),
)

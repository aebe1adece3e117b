"""The deliver_file tool: hand a file of the workspace to the person, as an attachment of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.files.collection import Declined
from gateway.files.media_types import shown_size
from gateway.tools.tool import BadArguments, Desk, Tool, text
from sandbox.errors import Unsafe

LONGEST_CAPTION = 500
LONGEST_PATH = 1000


def _spec(_desk: Desk) -> ToolSpec:
    return ToolSpec(
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


async def _act(desk: Desk, args: Mapping[str, Any], key: str) -> ToolResult:
    path, caption = text(args, "path"), text(args, "caption", needed=False)
    if len(path) > LONGEST_PATH:
        raise BadArguments(f"path has more than {LONGEST_PATH} characters")
    if len(caption) > LONGEST_CAPTION:
        raise BadArguments(f"caption has more than {LONGEST_CAPTION} characters")
    try:
        file = await desk.files.offer(desk.turn, desk.bench, path, caption=caption, key=key)
    except (Declined, Unsafe) as error:
        return ToolResult(ok=False, content=f"{path} was not sent: {error}")
    said = f"{file.path} ({shown_size(file.size)}, {file.type}) is queued and goes out with your answer"
    detail = {"path": file.path, "name": file.name, "size": file.size, "type": file.type}
    return ToolResult(ok=True, content=said, detail=detail | {"sha256": file.sha256})


deliver_file = Tool(
    spec=_spec,
    asks=lambda _config: False,
    act=_act,
    repeatable=True,
    fits=lambda desk: desk.bench.workspace is not None and not desk.bench.files_only,
)

"""The read tool: a file of the workspace with numbered lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import never_needs_approval
from gateway.tools.files.file_arguments import (
    PATH_SCHEMA,
    has_files,
    int_argument,
    path_argument,
    read_file,
    with_file_errors,
)
from gateway.tools.tool import Tool, ToolContext, fixed

MAX_LINES = 2000
MAX_LINE_LENGTH = 2000
SNIFF_BYTES = 8192


_SPEC = ToolSpec(
    name="read",
    description=(
        f"Read a text file of your workspace, with line numbers; at most {MAX_LINES} lines at a time. "
        "For a part of a long file give offset and limit."
    ),
    schema={
        "type": "object",
        "properties": {
            "path": PATH_SCHEMA,
            "offset": {"type": "integer", "minimum": 1, "description": "the first line, from 1"},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LINES},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    path = path_argument(args)
    first, most = (
        int_argument(args, "offset", default=1, maximum=10**9),
        int_argument(args, "limit", default=MAX_LINES, maximum=MAX_LINES),
    )
    content = await read_file(context, path)
    if b"\0" in content[:SNIFF_BYTES]:
        return ToolResult(ok=False, content=f"{path} is not text ({len(content)} bytes): use bash")
    lines = content.decode("utf-8", "replace").splitlines()
    detail = {"path": path, "lines": len(lines)}
    if not lines:
        return ToolResult(ok=True, content=f"{path} is empty", detail=detail)
    if first > len(lines):
        return ToolResult(ok=False, content=f"{path} has {len(lines)} lines", detail=detail)
    return ToolResult(ok=True, content=number_lines(lines, first, most), detail=detail)


def number_lines(lines: list[str], first: int, limit: int) -> str:
    """Return a part of a file with line numbers, and a note about what was left out."""
    part = lines[first - 1 : first - 1 + limit]
    shown = [f"{place:6}\t{_truncate(line)}" for place, line in enumerate(part, start=first)]
    left = len(lines) - (first - 1 + len(part))
    return "\n".join([*shown, *([f"[{left} more lines; the file has {len(lines)}]"] if left else [])])


def _truncate(line: str) -> str:
    return (
        line
        if len(line) <= MAX_LINE_LENGTH
        else f"{line[:MAX_LINE_LENGTH]}[… {len(line) - MAX_LINE_LENGTH} more]"
    )


read = Tool(
    spec=fixed(_SPEC),
    needs_approval=never_needs_approval,
    run=with_file_errors(_run),
    idempotent=True,
    is_available=has_files,
)

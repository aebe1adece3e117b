"""The read tool: a file of the workspace with numbered lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.file_arguments import PATH, explained, has_files, never, number, path_of, whole
from gateway.tools.tool import Desk, Tool

LINES = 2000
LONGEST_LINE = 2000
SNIFFED = 8192


def _spec(_desk: Desk) -> ToolSpec:
    return ToolSpec(
        name="read",
        description=(
            f"Read a text file of your workspace, with line numbers; at most {LINES} lines at a time. "
            "For a part of a long file give offset and limit."
        ),
        schema={
            "type": "object",
            "properties": {
                "path": PATH,
                "offset": {"type": "integer", "minimum": 1, "description": "the first line, from 1"},
                "limit": {"type": "integer", "minimum": 1, "maximum": LINES},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    )


async def _act(desk: Desk, args: Mapping[str, Any], _key: str) -> ToolResult:
    path = path_of(args)
    first, most = (
        number(args, "offset", default=1, most=10**9),
        number(args, "limit", default=LINES, most=LINES),
    )
    content = await whole(desk, path)
    if b"\0" in content[:SNIFFED]:
        return ToolResult(ok=False, content=f"{path} is not text ({len(content)} bytes): use bash")
    lines = content.decode("utf-8", "replace").splitlines()
    detail = {"path": path, "lines": len(lines)}
    if not lines:
        return ToolResult(ok=True, content=f"{path} is empty", detail=detail)
    if first > len(lines):
        return ToolResult(ok=False, content=f"{path} has {len(lines)} lines", detail=detail)
    return ToolResult(ok=True, content=numbered(lines, first, most), detail=detail)


def numbered(lines: list[str], first: int, most: int) -> str:
    """Return a part of a file with the number of each line before it, and what was left out."""
    part = lines[first - 1 : first - 1 + most]
    told = [f"{place:6}\t{_cut(line)}" for place, line in enumerate(part, start=first)]
    left = len(lines) - (first - 1 + len(part))
    return "\n".join([*told, *([f"[{left} more lines; the file has {len(lines)}]"] if left else [])])


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}[… {len(line) - LONGEST_LINE} more]"


read = Tool(spec=_spec, asks=never, act=explained(_act), repeatable=True, fits=has_files)

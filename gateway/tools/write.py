"""The write tool: a file of the workspace, made or replaced whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.file_arguments import LARGEST, PATH, explained, has_workspace, path_of
from gateway.tools.tool import BadArguments, Desk, Tool


def _spec(_desk: Desk) -> ToolSpec:
    return ToolSpec(
        name="write",
        description=(
            "Write a file of your workspace: a new one, or in place of what it held. Directories are made. "
            "To change a part of a file use edit."
        ),
        schema={
            "type": "object",
            "properties": {"path": PATH, "content": {"type": "string"}},
            "required": ["path", "content"],
            "additionalProperties": False,
        },
    )


async def _act(desk: Desk, args: Mapping[str, Any], _key: str) -> ToolResult:
    path, content = path_of(args), args.get("content")
    if not isinstance(content, str):
        raise BadArguments(f"content must be a text, not {content!r}")
    raw = content.encode("utf-8", "replace")
    if len(raw) > LARGEST:
        raise BadArguments(f"content has more than {LARGEST // 1024**2} MiB: write it by a command")
    sandbox = await desk.workbench.sandbox(desk.bench)
    await sandbox.write(path, raw)
    return ToolResult(
        ok=True, content=f"wrote {path}, {len(raw)} bytes", detail={"path": path, "size": len(raw)}
    )


write = Tool(
    spec=_spec,
    asks=lambda config: config.permission_mode == "ask",
    act=explained(_act),
    repeatable=True,
    fits=has_workspace,
    changes_files=True,
)

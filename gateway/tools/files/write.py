"""The write tool: create or replace a file of the workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import edits_need_approval
from gateway.tools.files.file_arguments import (
    MAX_FILE_BYTES,
    PATH_SCHEMA,
    has_workspace,
    path_argument,
    with_file_errors,
)
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, fixed

_SPEC = ToolSpec(
    name="write",
    description=(
        "Create or replace a file of your workspace. Missing directories are created. "
        "To change a part of a file use edit."
    ),
    schema={
        "type": "object",
        "properties": {"path": PATH_SCHEMA, "content": {"type": "string"}},
        "required": ["path", "content"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    path, content = path_argument(args), args.get("content")
    if not isinstance(content, str):
        raise InvalidArguments(f"content must be a text, not {content!r}")
    raw = content.encode("utf-8", "replace")
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidArguments(
            f"content has more than {MAX_FILE_BYTES // 1024**2} MiB: write it by a command"
        )
    sandbox = await context.environment_resolver.sandbox(context.environment)
    await sandbox.write(path, raw)
    return ToolResult(
        ok=True, content=f"wrote {path}, {len(raw)} bytes", detail={"path": path, "size": len(raw)}
    )


write = Tool(
    spec=fixed(_SPEC),
    needs_approval=edits_need_approval,
    run=with_file_errors(_run),
    idempotent=True,
    is_available=has_workspace,
    changed_text=lambda args, _before: str(args["content"]),
    changes_files=True,
)

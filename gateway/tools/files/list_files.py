"""The list_files tool: list a directory of the workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import never_needs_approval
from gateway.tools.files.file_arguments import (
    PATH_SCHEMA,
    has_workspace,
    one_line,
    path_argument,
    with_file_errors,
)
from gateway.tools.tool import Tool, ToolContext, fixed
from sandbox.exec.shell_files import ShellFiles
from sandbox.paths import relative_path

MAX_ENTRIES = 1000


_SPEC = ToolSpec(
    name="list_files",
    description="List a directory of your workspace: names, kinds and sizes in bytes.",
    schema={
        "type": "object",
        "properties": {"path": PATH_SCHEMA | {"description": "the directory; default: the workspace"}},
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    path = relative_path(path_argument(args, required=False), context.environment.spec.mount)
    sandbox = await context.environment_resolver.sandbox(context.environment)
    entries = await ShellFiles(run=sandbox.run, root=".").list(path)
    lines = [
        f"{one_line(one.name)}/"
        if one.kind == "directory"
        else f"{one_line(one.name)}  {one.size}{_kind_suffix(one.kind)}"
        for one in entries[:MAX_ENTRIES]
    ]
    more = [f"[{len(entries) - MAX_ENTRIES} more]"] if len(entries) > MAX_ENTRIES else []
    names = [one.name for one in entries[:MAX_ENTRIES]]
    return ToolResult(ok=True, content="\n".join([*lines, *more]) or "empty", detail={"names": names})


def _kind_suffix(kind: str) -> str:
    return "" if kind == "file" else f"  ({kind})"


list_files = Tool(
    spec=fixed(_SPEC),
    needs_approval=never_needs_approval,
    run=with_file_errors(_run),
    idempotent=True,
    is_available=has_workspace,
)

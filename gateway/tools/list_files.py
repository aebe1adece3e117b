"""The list_files tool: what stands in a directory of the workspace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.file_arguments import PATH, explained, has_workspace, never, path_of
from gateway.tools.tool import Desk, Tool
from sandbox.exec.shell_files import ShellFiles
from sandbox.paths import relative

MOST = 1000


def _spec(_desk: Desk) -> ToolSpec:
    return ToolSpec(
        name="list_files",
        description="List a directory of your workspace: names, kinds and sizes in bytes.",
        schema={
            "type": "object",
            "properties": {"path": PATH | {"description": "the directory; the workspace itself if left out"}},
            "additionalProperties": False,
        },
    )


async def _act(desk: Desk, args: Mapping[str, Any], _key: str) -> ToolResult:
    path = relative(path_of(args, needed=False), desk.bench.spec.mount)
    sandbox = await desk.workbench.sandbox(desk.bench)
    entries = await ShellFiles(run=sandbox.run, root=".").list(path)
    told = [
        f"{one.name}/" if one.kind == "directory" else f"{one.name}  {one.size}" + _sort(one.kind)
        for one in entries[:MOST]
    ]
    more = [f"[{len(entries) - MOST} more]"] if len(entries) > MOST else []
    names = [one.name for one in entries[:MOST]]
    return ToolResult(ok=True, content="\n".join([*told, *more]) or "empty", detail={"names": names})


def _sort(kind: str) -> str:
    return "" if kind == "file" else f"  ({kind})"


list_files = Tool(spec=_spec, asks=never, act=explained(_act), repeatable=True, fits=has_workspace)

"""The load_skill tool: put a skill's files into the workspace and read how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.environments.agent_files import STAGED_SKILLS
from gateway.tools.file_arguments import explained, has_workspace, never
from gateway.tools.tool import Desk, Tool, text

MANUAL = "SKILL.md"
SHOWN = 64 * 1024


def _spec(desk: Desk) -> ToolSpec:
    known = "; ".join(
        f"{one.name}: {one.description}" if one.description else one.name for one in desk.skills
    )
    return ToolSpec(
        name="load_skill",
        description=f"Load a skill: instructions and files for a kind of work. There are: {known}",
        schema={
            "type": "object",
            "properties": {"name": {"type": "string", "enum": [one.name for one in desk.skills]}},
            "required": ["name"],
            "additionalProperties": False,
        },
    )


async def _act(desk: Desk, args: Mapping[str, Any], _key: str) -> ToolResult:
    name = text(args, "name")
    if desk.bundles is None or name not in {one.name for one in desk.skills}:
        return ToolResult(ok=False, content=f"there is no skill {name!r}")
    sandbox = await desk.workbench.sandbox(desk.bench)
    files = await desk.bundles.load(desk.turn.account, name, sandbox)
    if files is None:
        return ToolResult(ok=False, content=f"there is no skill {name!r} any more")
    place = f"{STAGED_SKILLS}/{name}"
    manual = files.get(MANUAL, b"")[:SHOWN].decode("utf-8", "replace")
    said = f"The skill stands in {place}: {', '.join(files) or 'no files'}\n\n{manual}".rstrip()
    return ToolResult(ok=True, content=said, detail={"place": place, "files": list(files)})


load_skill = Tool(
    spec=_spec,
    asks=never,
    act=explained(_act),
    repeatable=True,
    fits=lambda desk: has_workspace(desk) and not desk.bench.spec.read_only and bool(desk.skills),
)

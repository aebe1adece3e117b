"""The load_skill tool: install a skill's files into the workspace and return its instructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.environments.agent_files import SKILLS_DIRECTORY
from gateway.tools.approval_rules import never_needs_approval
from gateway.tools.files.file_arguments import has_workspace, with_file_errors
from gateway.tools.tool import Tool, ToolContext, str_argument

MANUAL = "SKILL.md"
MAX_MANUAL_BYTES = 64 * 1024


def _spec(context: ToolContext) -> ToolSpec:
    known = "; ".join(
        f"{one.name}: {one.description}" if one.description else one.name for one in context.skills
    )
    return ToolSpec(
        name="load_skill",
        description=f"Load a skill: instructions and files for a kind of work. There are: {known}",
        schema={
            "type": "object",
            "properties": {"name": {"type": "string", "enum": [one.name for one in context.skills]}},
            "required": ["name"],
            "additionalProperties": False,
        },
    )


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    name = str_argument(args, "name")
    if context.agent_files is None or name not in {one.name for one in context.skills}:
        return ToolResult(ok=False, content=f"there is no skill {name!r}")
    sandbox = await context.environment_resolver.sandbox(context.environment)
    files = await context.agent_files.load_skill(context.turn.account, name, sandbox)
    if files is None:
        return ToolResult(ok=False, content=f"there is no skill {name!r} any more")
    place = f"{SKILLS_DIRECTORY}/{name}"
    manual = files.get(MANUAL, b"")[:MAX_MANUAL_BYTES].decode("utf-8", "replace")
    content = f"The skill is in {place}: {', '.join(files) or 'no files'}\n\n{manual}".rstrip()
    return ToolResult(ok=True, content=content, detail={"place": place, "files": list(files)})


load_skill = Tool(
    spec=_spec,
    needs_approval=never_needs_approval,
    run=with_file_errors(_run),
    idempotent=True,
    is_available=lambda context: (
        has_workspace(context) and not context.environment.spec.read_only and bool(context.skills)
    ),
)

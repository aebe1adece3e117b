"""The edit tool: an exact piece of a file replaced by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import edits_need_approval
from gateway.tools.files.file_arguments import (
    PATH_SCHEMA,
    has_workspace,
    path_argument,
    read_file,
    with_file_errors,
)
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, bool_argument, fixed, str_argument


class NoSingleMatch(ValueError):
    """The text to replace is missing, or occurs more than once."""


_SPEC = ToolSpec(
    name="edit",
    description=(
        "Replace a piece of text in a file of your workspace. old_text must be there exactly once, "
        "spaces and line ends included; include more of the text around it, or set replace_all."
    ),
    schema={
        "type": "object",
        "properties": {
            "path": PATH_SCHEMA,
            "old_text": {"type": "string"},
            "new_text": {"type": "string"},
            "replace_all": {"type": "boolean"},
        },
        "required": ["path", "old_text", "new_text"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    path, old, new = path_argument(args), str_argument(args, "old_text"), args.get("new_text")
    if not isinstance(new, str):
        raise InvalidArguments(f"new_text must be a text, not {new!r}")
    content = (await read_file(context, path)).decode("utf-8", "surrogateescape")
    try:
        changed, count = replace_text(content, old, new, replace_all=bool_argument(args, "replace_all"))
    except NoSingleMatch as error:
        return ToolResult(ok=False, content=f"{path} was not changed: {error}")
    sandbox = await context.environment_resolver.sandbox(context.environment)
    await sandbox.write(path, changed.encode("utf-8", "surrogateescape"))
    times = "one place" if count == 1 else f"{count} places"
    return ToolResult(ok=True, content=f"changed {path} in {times}", detail={"path": path, "count": count})


def replace_text(content: str, old: str, new: str, *, replace_all: bool) -> tuple[str, int]:
    """Return the text with one piece replaced and how often it was; raises NoSingleMatch."""
    count = content.count(old)
    if old == new:
        raise NoSingleMatch("old_text and new_text are the same")
    if count == 0:
        raise NoSingleMatch("old_text is not in it")
    if count > 1 and not replace_all:
        raise NoSingleMatch(
            f"old_text is in it {count} times: include more of the surrounding text, or replace_all"
        )
    return content.replace(old, new), count


def _changed_text(args: Mapping[str, Any], before: str) -> str:
    old, new = str(args["old_text"]), str(args["new_text"])
    return replace_text(before, old, new, replace_all=args.get("replace_all") is True)[0]


edit = Tool(
    spec=fixed(_SPEC),
    needs_approval=edits_need_approval,
    run=with_file_errors(_run),
    idempotent=False,
    is_available=has_workspace,
    changed_text=_changed_text,
    changes_files=True,
)

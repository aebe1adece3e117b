"""The edit tool: an exact piece of a file replaced by another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.file_arguments import PATH, explained, has_workspace, path_of, whole
from gateway.tools.tool import BadArguments, Desk, Tool, flag, text


class NoSingleMatch(ValueError):
    """The text to replace is not there, or there more than once."""


def _spec(_desk: Desk) -> ToolSpec:
    return ToolSpec(
        name="edit",
        description=(
            "Replace a piece of text in a file of your workspace. old_text must be there exactly once, "
            "spaces and line ends included; give more of what stands around it, or set replace_all."
        ),
        schema={
            "type": "object",
            "properties": {
                "path": PATH,
                "old_text": {"type": "string"},
                "new_text": {"type": "string"},
                "replace_all": {"type": "boolean"},
            },
            "required": ["path", "old_text", "new_text"],
            "additionalProperties": False,
        },
    )


async def _act(desk: Desk, args: Mapping[str, Any], _key: str) -> ToolResult:
    path, old, new = path_of(args), text(args, "old_text"), args.get("new_text")
    if not isinstance(new, str):
        raise BadArguments(f"new_text must be a text, not {new!r}")
    content = (await whole(desk, path)).decode("utf-8", "surrogateescape")
    try:
        changed, count = replaced(content, old, new, every=flag(args, "replace_all"))
    except NoSingleMatch as error:
        return ToolResult(ok=False, content=f"{path} was not changed: {error}")
    sandbox = await desk.workbench.sandbox(desk.bench)
    await sandbox.write(path, changed.encode("utf-8", "surrogateescape"))
    times = "one place" if count == 1 else f"{count} places"
    return ToolResult(ok=True, content=f"changed {path} in {times}", detail={"path": path, "count": count})


def replaced(content: str, old: str, new: str, *, every: bool) -> tuple[str, int]:
    """Return the text with one piece replaced and how often it was; raises NoSingleMatch."""
    count = content.count(old)
    if old == new:
        raise NoSingleMatch("old_text and new_text are the same")
    if count == 0:
        raise NoSingleMatch("old_text is not in it")
    if count > 1 and not every:
        raise NoSingleMatch(
            f"old_text is in it {count} times: give more of what stands around it, or replace_all"
        )
    return content.replace(old, new), count


edit = Tool(
    spec=_spec,
    asks=lambda config: config.permission_mode == "ask",
    act=explained(_act),
    repeatable=False,
    fits=has_workspace,
    changes_files=True,
)

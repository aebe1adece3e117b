"""The glob tool: files of the workspace by their names, the newest first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.environments.stored_workspace import StoredFiles
from gateway.tools.file_arguments import PATH, explained, has_files, never, path_of
from gateway.tools.tool import BadArguments, Desk, Tool, text
from sandbox.model import OUTPUT_CAP, Command, Result
from sandbox.paths import relative

MOST = 200

SCRIPT = """cd -- {place} || exit 44
shopt -s globstar nullglob dotglob
IFS=
pattern={pattern}
names=()
for name in $pattern; do
  [ -f "$name" ] && [ ! -L "$name" ] && names+=("$name")
done
for ((at = 0; at < ${{#names[@]}}; at += 500)); do
  stat -c '%Y %n' -- "${{names[@]:at:500}}"
done | sort -t ' ' -k 1,1nr -k 2 | head -n {most}
"""
"""Expanded by bash itself: `**` enters directories and follows no links."""


def _spec(_desk: Desk) -> ToolSpec:
    return ToolSpec(
        name="glob",
        description=(
            "Find files of your workspace by a pattern such as **/*.py or src/*.ts; the newest come first, "
            f"{MOST} at most."
        ),
        schema={
            "type": "object",
            "properties": {
                "pattern": {"type": "string"},
                "path": PATH | {"description": "the directory to begin in; the workspace itself if left out"},
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
    )


async def _act(desk: Desk, args: Mapping[str, Any], _key: str) -> ToolResult:
    place, pattern = (
        relative(path_of(args, needed=False), desk.bench.spec.mount),
        plain(text(args, "pattern")),
    )
    if desk.bench.files_only:
        return await _in_store(desk, place, pattern)
    sandbox = await desk.workbench.sandbox(desk.bench)
    script = SCRIPT.format(place=shlex.quote(place), pattern=shlex.quote(pattern), most=MOST + 1)
    result = await sandbox.run(Command(script=script, timeout=60.0, output_limit=OUTPUT_CAP))
    if result.exit_code == 44:  # noqa: PLR2004 - the script's own
        return ToolResult(ok=False, content=f"there is no directory {place}")
    return found(result, place)


async def _in_store(desk: Desk, place: str, pattern: str) -> ToolResult:
    held = await desk.workbench.files(desk.bench)
    assert isinstance(held, StoredFiles)
    names = await held.newest(place, pattern, most=MOST + 1)
    return told([name if place == "." else f"{place}/{name}" for name in names])


def plain(pattern: str) -> str:
    """Return a pattern that stays in the workspace; raises BadArguments."""
    if pattern.startswith("/") or ".." in pattern.split("/") or "\0" in pattern:
        raise BadArguments("pattern must be relative to the workspace and not climb out of it")
    return pattern


def found(result: Result, place: str) -> ToolResult:
    """Return the names that a search printed, each with its time before it."""
    if result.timed_out:
        return ToolResult(ok=False, content="the search took too long: begin in a directory further down")
    prefix = "" if place == "." else f"{place}/"
    lines = result.stdout.decode("utf-8", "replace").splitlines()
    return told([prefix + line.partition(" ")[2] for line in lines])


def told(names: list[str]) -> ToolResult:
    """Return names as a result, as many as are shown."""
    more = ["[there are more: narrow the pattern]"] if len(names) > MOST else []
    said = "\n".join([*names[:MOST], *more]) or "no file matches"
    return ToolResult(ok=True, content=said, detail={"files": names[:MOST]})


glob = Tool(spec=_spec, asks=never, act=explained(_act), repeatable=True, fits=has_files)

"""The glob tool: files of the workspace by their names, the newest first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.environments.glob_pattern import ensure_bounded
from gateway.environments.stored_workspace import StoredWorkspace
from gateway.tools.approval_rules import never_needs_approval
from gateway.tools.files.file_arguments import (
    PATH_SCHEMA,
    has_files,
    one_line,
    path_argument,
    with_file_errors,
)
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, fixed, str_argument
from sandbox.model import OUTPUT_CAP, ExecRequest, ExecResult
from sandbox.paths import relative_path

MAX_FILES = 200

SCRIPT = r"""cd -- {place} || exit 44
shopt -s globstar nullglob dotglob
IFS=
pattern={pattern}
names=()
for name in $pattern; do
  [ -f "$name" ] && [ ! -L "$name" ] && names+=("$name")
done
IFS=$' \n'
for ((at = 0; at < ${{#names[@]}}; at += 500)); do
  some=("${{names[@]:at:500}}")
  times=($(stat -c '%Y' -- "${{some[@]}}"))
  ((${{#times[@]}} == ${{#some[@]}})) || {{
    times=()
    for name in "${{some[@]}}"; do times+=("$(stat -c '%Y' -- "$name" || echo 0)"); done
  }}
  for ((place = 0; place < ${{#some[@]}}; place += 1)); do
    printf '%s %s\0' "${{times[place]}}" "${{some[place]}}"
  done
done | sort -z -t ' ' -k 1,1nr -k 2
"""
"""Expanded by bash itself: `**` enters directories and follows no links. Each record ends with NUL; if a file
is deleted during the search, the times of its block are read one by one."""


_SPEC = ToolSpec(
    name="glob",
    description=(
        "Find files of your workspace by a pattern such as **/*.py or src/*.ts; the newest come first, "
        f"{MAX_FILES} at most."
    ),
    schema={
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": PATH_SCHEMA | {"description": "the directory to start in; default: the workspace"},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    place, pattern = (
        relative_path(path_argument(args, required=False), context.environment.spec.mount),
        relative_pattern(str_argument(args, "pattern")),
    )
    if context.environment.files_only:
        return await _search_store(context, place, pattern)
    sandbox = await context.environment_resolver.sandbox(context.environment)
    script = SCRIPT.format(place=shlex.quote(place), pattern=shlex.quote(pattern))
    result = await sandbox.run(ExecRequest(script=script, timeout=60.0, output_limit=OUTPUT_CAP))
    if result.exit_code == 44:  # noqa: PLR2004 - the script's own
        return ToolResult(ok=False, content=f"there is no directory {place}")
    return to_result(result, place)


async def _search_store(context: ToolContext, directory: str, pattern: str) -> ToolResult:
    files = await context.environment_resolver.files(context.environment)
    assert isinstance(files, StoredWorkspace)
    names = await files.list_newest(directory, pattern, limit=MAX_FILES + 1)
    return render_names([name if directory == "." else f"{directory}/{name}" for name in names])


def relative_pattern(pattern: str) -> str:
    """Return a pattern that stays in the workspace; raises InvalidArguments for others and for long ones."""
    if pattern.startswith("/") or ".." in pattern.split("/") or "\0" in pattern:
        raise InvalidArguments("pattern must be relative to the workspace and must not contain ..")
    try:
        ensure_bounded(pattern)
    except ValueError as error:
        raise InvalidArguments(str(error)) from None
    return pattern


def to_result(result: ExecResult, directory: str) -> ToolResult:
    """Return the names that a search printed, each with its time before it."""
    if result.timed_out:
        return ToolResult(ok=False, content="the search took too long: start in a deeper directory")
    prefix = "" if directory == "." else f"{directory}/"
    records = result.stdout.decode("utf-8", "replace").split("\0")[:-1]
    return render_names([prefix + record.partition(" ")[2] for record in records[: MAX_FILES + 1]])


def render_names(names: list[str]) -> ToolResult:
    """Return names as a result, as many as are shown."""
    more = ["[there are more: narrow the pattern]"] if len(names) > MAX_FILES else []
    content = "\n".join([*map(one_line, names[:MAX_FILES]), *more]) or "no file matches"
    return ToolResult(ok=True, content=content, detail={"files": names[:MAX_FILES]})


glob = Tool(
    spec=fixed(_SPEC),
    needs_approval=never_needs_approval,
    run=with_file_errors(_run),
    idempotent=True,
    is_available=has_files,
)

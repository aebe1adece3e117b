"""The grep tool: lines of the workspace's files that match a regular expression."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import never_needs_approval
from gateway.tools.files.file_arguments import (
    PATH_SCHEMA,
    has_workspace,
    int_argument,
    path_argument,
    with_file_errors,
)
from gateway.tools.files.glob import relative_pattern
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, bool_argument, fixed, str_argument
from sandbox.model import ExecRequest, ExecResult
from sandbox.paths import relative_path

OUTPUTS = ("content", "files", "count")
MAX_MATCHES = 500
MAX_PATTERN_LENGTH = 2000
SCRIPT = """[ -e {place} ] || exit 44
if command -v rg >/dev/null; then
  rg --no-config --color never --no-heading --with-filename --sort path --max-columns 500 \\
    {rg} -e {pattern} -- {place}
else
  shopt -s globstar nullglob dotglob
  IFS=
  only={only}
  names=()
  [ -f {place} ] && names=({place})
  [ -d {place} ] && for name in {place}/**; do
    case $name in */.git/*) continue ;; esac
    case ${{name##*/}} in ${{only:-*}}) ;; *) case $name in ./$only) ;; *) continue ;; esac ;; esac
    [ -f "$name" ] && [ ! -L "$name" ] && names+=("$name")
  done
  for ((at = 0; at < ${{#names[@]}}; at += 500)); do
    LC_ALL=C.UTF-8 grep -I -H -P {grep} -e {pattern} -- "${{names[@]:at:500}}"
  done
fi
"""


_SPEC = ToolSpec(
    name="grep",
    description=(
        "Search the files of your workspace for a regular expression: matching lines with their numbers "
        "(content), the names of the files (files), or how many lines match in each (count)."
    ),
    schema={
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": PATH_SCHEMA | {"description": "a file or directory; default: the workspace"},
            "glob": {"type": "string", "description": "only files whose names match, such as *.py"},
            "output": {"type": "string", "enum": list(OUTPUTS)},
            "ignore_case": {"type": "boolean"},
            "context": {"type": "integer", "minimum": 1, "maximum": 20},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    place = relative_path(path_argument(args, required=False), context.environment.spec.mount)
    sandbox = await context.environment_resolver.sandbox(context.environment)
    command = ExecRequest(
        script=_script(args, place), timeout=60.0, output_limit=context.environment.config.output_limit
    )
    return _to_result(await sandbox.run(command), place)


def _script(args: Mapping[str, Any], path: str) -> str:
    pattern, only = str_argument(args, "pattern"), str_argument(args, "glob", required=False)
    output = str_argument(args, "output", required=False) or "content"
    if output not in OUTPUTS:
        raise InvalidArguments(f"output must be one of {', '.join(OUTPUTS)}, not {output!r}")
    if len(pattern) > MAX_PATTERN_LENGTH or "\n" in pattern:
        raise InvalidArguments(f"pattern is one line of at most {MAX_PATTERN_LENGTH} characters")
    words = {"content": ["-n"], "files": ["-l"], "count": ["-c"]}[output]
    if bool_argument(args, "ignore_case"):
        words.append("-i")
    if output == "content" and "context" in args:
        words.append(f"-C{int_argument(args, 'context', default=1, maximum=20)}")
    quoted = shlex.quote(relative_pattern(only))
    return SCRIPT.format(
        place=shlex.quote(path),
        pattern=shlex.quote(pattern),
        rg=" ".join([*words, f"--glob={quoted}"] if only else words),
        grep=" ".join(words),
        only=quoted if only else "",
    )


def _to_result(result: ExecResult, path: str) -> ToolResult:
    if result.exit_code == 44:  # noqa: PLR2004 - the script's own
        return ToolResult(ok=False, content=f"there is no {path}")
    if result.timed_out:
        return ToolResult(
            ok=False, content="the search took too long: start in a deeper directory, or narrow glob"
        )
    lines = result.stdout.decode("utf-8", "replace").splitlines()
    if result.stderr and not lines:
        said = result.stderr.decode("utf-8", "replace")[:500]
        return ToolResult(ok=False, content=f"the search was refused: {said}")
    kept = [line.removeprefix("./") for line in lines[:MAX_MATCHES] if not line.endswith(":0")]
    cut = len(lines) > MAX_MATCHES or result.stdout_truncated
    more = ["[there is more: narrow the pattern, or search further down]"] if cut else []
    said = "\n".join([*kept, *more]) or "nothing matches"
    return ToolResult(ok=True, content=said, detail={"lines": len(kept), "truncated": cut})


grep = Tool(
    spec=fixed(_SPEC),
    needs_approval=never_needs_approval,
    run=with_file_errors(_run),
    idempotent=True,
    is_available=has_workspace,
)

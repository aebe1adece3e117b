"""The search tool: lines with a literal text, in a workspace without a sandbox; elsewhere there is grep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.environments import workspace_search
from gateway.environments.workspace_search import WorkspaceQuery
from gateway.tools.approval_rules import never_needs_approval
from gateway.tools.files.file_arguments import (
    PATH_SCHEMA,
    has_files,
    has_workspace,
    one_line,
    path_argument,
    with_file_errors,
)
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, bool_argument, fixed, str_argument
from sandbox.paths import relative_path

MAX_MATCHES = 200


_SPEC = ToolSpec(
    name="search",
    description="Search the files of your workspace for a text: matching lines with their numbers.",
    schema={
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "compared as it is; no pattern"},
            "path": PATH_SCHEMA | {"description": "a file or directory; default: the workspace"},
            "glob": {"type": "string", "description": "only files whose names match, such as *.py"},
            "ignore_case": {"type": "boolean"},
        },
        "required": ["text"],
        "additionalProperties": False,
    },
)


async def _run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    query = WorkspaceQuery(
        text=str_argument(args, "text"),
        path=relative_path(path_argument(args, required=False), context.environment.spec.mount),
        glob=str_argument(args, "glob", required=False),
        ignore_case=bool_argument(args, "ignore_case"),
        limit=MAX_MATCHES,
    )
    store = context.environment_resolver.workspaces.store
    try:
        found = await workspace_search.search(store, context.environment.spec.namespace, query)
    except ValueError as error:
        raise InvalidArguments(str(error)) from None
    lines = [f"{one_line(one.path)}:{one.line}:{one.text}" for one in found.matches]
    more = ["[there may be more: narrow the text, or search further down]"] if found.truncated else []
    detail = {"lines": len(lines), "truncated": found.truncated}
    return ToolResult(ok=True, content="\n".join([*lines, *more]) or "nothing matches", detail=detail)


search = Tool(
    spec=fixed(_SPEC),
    needs_approval=never_needs_approval,
    run=with_file_errors(_run),
    idempotent=True,
    is_available=lambda context: has_files(context) and not has_workspace(context),
)

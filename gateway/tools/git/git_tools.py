"""The tools git_clone, git_status, git_diff, git_commit and git_push: they run git in the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.agents.port import ToolSpec
from gateway.tools.approval_rules import commands_need_approval
from gateway.tools.files.file_arguments import has_workspace
from gateway.tools.git import git_actions
from gateway.tools.git.git_arguments import DIRECTORY_SCHEMA, PATHS_SCHEMA
from gateway.tools.tool import Tool, ToolContext, ToolFunction, fixed

RUNTIME = "git"
"""The runtime that a sandbox record lists if its sandbox has git."""

_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}


def _is_offered(context: ToolContext) -> bool:
    environment = context.environment
    declared = RUNTIME in environment.config.runtimes and RUNTIME not in environment.missing_runtimes
    return declared and has_workspace(context)


SpecOf = Callable[[ToolContext], ToolSpec]


def _spec(name: str, description: str, properties: Mapping[str, Any], *required: str) -> SpecOf:
    schema = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
    return fixed(ToolSpec(name=name, description=description, schema=schema))


def _tool(spec: SpecOf, run: ToolFunction, *, changes: bool, remote: bool = False) -> Tool:
    """Return a tool. Git runs programs that a repository names, so each call is approved as a command is."""
    return Tool(
        spec=spec,
        needs_approval=commands_need_approval,
        run=run,
        idempotent=not changes,
        is_available=_is_offered,
        changes_files=changes and not remote,
        address=(lambda args: str(args.get("url") or args.get("remote") or "origin")) if remote else None,
    )


GIT_TOOLS: Mapping[str, Tool] = {
    "git_clone": _tool(
        _spec(
            "git_clone",
            "Clone a Git repository into your workspace. The account's credentials log in by themselves.",
            {"url": _TEXT, "directory": DIRECTORY_SCHEMA, "branch": _TEXT},
            "url",
        ),
        git_actions.clone,
        changes=True,
    ),
    "git_status": _tool(
        _spec("git_status", "Show the branch and the changed files.", {"directory": DIRECTORY_SCHEMA}),
        git_actions.status,
        changes=False,
    ),
    "git_diff": _tool(
        _spec(
            "git_diff",
            "Show the changes that are not staged; with staged the staged ones, or those against a commit.",
            {"directory": DIRECTORY_SCHEMA, "staged": _FLAG, "against": _TEXT, "paths": PATHS_SCHEMA},
        ),
        git_actions.diff,
        changes=False,
    ),
    "git_commit": _tool(
        _spec(
            "git_commit",
            "Commit the paths, or all changes, in the name of the person who asked; branch makes a new one.",
            {"directory": DIRECTORY_SCHEMA, "message": _TEXT, "paths": PATHS_SCHEMA, "branch": _TEXT},
            "message",
        ),
        git_actions.commit,
        changes=True,
    ),
    "git_push": _tool(
        _spec(
            "git_push",
            "Push the current commit to a branch of a remote (origin, and the branch of the same name).",
            {"directory": DIRECTORY_SCHEMA, "remote": _TEXT, "branch": _TEXT},
        ),
        git_actions.push,
        changes=True,
        remote=True,
    ),
}

"""What the Git tools do: each runs one or several commands of git in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.agents.port import ToolResult
from gateway.tools.builtin.bash import missing_runtime_note, to_response, to_text
from gateway.tools.git.author import author_of
from gateway.tools.git.git_arguments import (
    commit_argument,
    directory_argument,
    git_command,
    message_argument,
    name_argument,
    paths_argument,
    url_argument,
)
from gateway.tools.tool import ToolContext, bool_argument
from sandbox.model import ExecRequest


async def _git(context: ToolContext, command: str, stdin: bytes = b"") -> ToolResult:
    """Run a command of git and return its result as that of a command."""
    sandbox = await context.environment_resolver.sandbox(context.environment)
    config = context.environment.config
    result = await sandbox.run(
        ExecRequest(
            script=f"exec 2>&1; {command}",
            stdin=stdin,
            timeout=float(config.timeout),
            output_limit=config.output_limit,
            on_output=context.on_output,
        )
    )
    shape = to_response(result) | missing_runtime_note(result)
    return ToolResult(ok=result.ok, content=to_text(shape, timeout=config.timeout), detail=shape)


async def clone(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    """Clone a repository into a directory that is named after it, unless the call names another one."""
    url, branch = url_argument(args), name_argument(args, "branch")
    default = "./" + (url.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository")
    target = directory_argument(args) if args.get("directory") else directory_argument({"directory": default})
    chosen = ["--branch", branch] if branch else []
    return await _git(context, git_command(".", "clone", "--quiet", *chosen, "--", url, target))


async def status(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    """Show the branch and the changed files."""
    return await _git(context, git_command(directory_argument(args), "status", "--short", "--branch"))


async def diff(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    """Show changes, without the programs that a repository names for that."""
    against = commit_argument(args, "against")
    words = ["--cached"] if bool_argument(args, "staged") else []
    words += [against] if against else []
    paths = paths_argument(args)
    command = git_command(
        directory_argument(args), "diff", "--no-color", "--no-ext-diff", "--no-textconv", *words, "--", *paths
    )
    return await _git(context, command)


async def commit(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    """Stage the paths (all changes without any) and commit them in the asker's name."""
    directory, paths = directory_argument(args), paths_argument(args)
    message, branch = message_argument(args), name_argument(args, "branch")
    author = await author_of(context)
    if branch:
        switched = await _git(context, git_command(directory, "switch", "--quiet", "--create", branch))
        if not switched.ok:
            return switched
    staged = await _git(context, git_command(directory, "add", "--all", "--", *(paths or ["."])))
    if not staged.ok:
        return staged
    words = ["commit", "--quiet", "--cleanup=whitespace", "--file=-"]
    command = git_command(directory, *words, environment=author.environment())
    done = await _git(context, command, message.encode())
    if not done.ok:
        return done
    shown = git_command(
        directory, "log", "-1", "--no-color", "--no-ext-diff", "--format=%h %an: %s", "--stat"
    )
    return await _git(context, shown)


async def push(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
    """Push the current commit, and never force it."""
    remote, branch = name_argument(args, "remote", "origin"), name_argument(args, "branch")
    source = f"HEAD:refs/heads/{branch}" if branch else "HEAD"
    words = ["push", "--porcelain", "--set-upstream", "--", remote, source]
    return await _git(context, git_command(directory_argument(args), *words))

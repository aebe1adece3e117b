"""The tools stat, mkdir, rename, copy and remove: what else an agent does with files of its workspace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.agents.port import ToolResult, ToolSpec
from gateway.tools.approval_rules import edits_need_approval, never_needs_approval
from gateway.tools.files.file_arguments import (
    MAX_PATH_LENGTH,
    PATH_SCHEMA,
    has_workspace,
    one_line,
    path_argument,
    with_file_errors,
)
from gateway.tools.tool import InvalidArguments, Tool, ToolContext, ToolFunction, fixed, str_argument
from sandbox.exec.shell_files import ShellFiles
from sandbox.paths import relative_path

Operation = Callable[[ShellFiles, ToolContext, Mapping[str, Any]], Awaitable[ToolResult]]


def _spec(name: str, description: str, *, with_target: bool = False) -> Callable[[ToolContext], ToolSpec]:
    properties = {"path": PATH_SCHEMA} | ({"to": PATH_SCHEMA} if with_target else {})
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return fixed(ToolSpec(name=name, description=description, schema=schema))


def _in_sandbox(operation: Operation) -> ToolFunction:
    """Return a tool's function that works on the files inside the sandbox."""

    async def run(context: ToolContext, args: Mapping[str, Any], _key: str) -> ToolResult:
        sandbox = await context.environment_resolver.sandbox(context.environment)
        return await operation(ShellFiles(run=sandbox.run, root="."), context, args)

    return with_file_errors(run)


def _path(context: ToolContext, args: Mapping[str, Any], name: str = "path") -> str:
    path = path_argument(args) if name == "path" else str_argument(args, name)
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidArguments(f"{name} has more than {MAX_PATH_LENGTH} characters")
    return relative_path(path, context.environment.spec.mount)


async def _stat(files: ShellFiles, context: ToolContext, args: Mapping[str, Any]) -> ToolResult:
    path = _path(context, args)
    entry = await files.stat(path)
    when = entry.modified_at.isoformat(timespec="seconds")
    detail = {"path": path, "kind": entry.kind, "size": entry.size, "modified": when}
    content = f"{one_line(path)}: {entry.kind}, {entry.size} bytes, changed {when}"
    return ToolResult(ok=True, content=content, detail=detail)


async def _mkdir(files: ShellFiles, context: ToolContext, args: Mapping[str, Any]) -> ToolResult:
    path = _path(context, args)
    await files.mkdir(path)
    return ToolResult(ok=True, content=f"{one_line(path)} is a directory", detail={"path": path})


async def _rename(files: ShellFiles, context: ToolContext, args: Mapping[str, Any]) -> ToolResult:
    path, target = _move(context, args)
    await files.rename(path, target)
    return _moved("renamed", path, target)


async def _copy(files: ShellFiles, context: ToolContext, args: Mapping[str, Any]) -> ToolResult:
    path, target = _move(context, args)
    await files.copy(path, target)
    return _moved("copied", path, target)


async def _remove(files: ShellFiles, context: ToolContext, args: Mapping[str, Any]) -> ToolResult:
    path = _path(context, args)
    await files.remove(path)
    return ToolResult(ok=True, content=f"removed {one_line(path)}", detail={"path": path})


def _move(context: ToolContext, args: Mapping[str, Any]) -> tuple[str, str]:
    path, target = _path(context, args), _path(context, args, "to")
    if target == path or target.startswith(f"{path}/"):
        raise InvalidArguments("to must not be the path itself or below it")
    return path, target


def _moved(verb: str, path: str, target: str) -> ToolResult:
    detail = {"path": path, "to": target}
    return ToolResult(ok=True, content=f"{verb} {one_line(path)} to {one_line(target)}", detail=detail)


def _changing_tool(spec: Callable[[ToolContext], ToolSpec], run: Operation, *, idempotent: bool) -> Tool:
    return Tool(
        spec=spec,
        needs_approval=edits_need_approval,
        run=_in_sandbox(run),
        idempotent=idempotent,
        is_available=has_workspace,
        changes_files=True,
    )


stat = Tool(
    spec=_spec("stat", "Describe a file or directory of your workspace: kind, size in bytes, last change."),
    needs_approval=never_needs_approval,
    run=_in_sandbox(_stat),
    idempotent=True,
    is_available=has_workspace,
)
mkdir = _changing_tool(
    _spec("mkdir", "Create a directory of your workspace, and its parents."), _mkdir, idempotent=True
)
rename = _changing_tool(
    _spec(
        "rename",
        "Rename or move a file or directory of your workspace. An existing file is replaced.",
        with_target=True,
    ),
    _rename,
    idempotent=False,
)
copy = _changing_tool(
    _spec("copy", "Copy a file or directory of your workspace to a path that is free.", with_target=True),
    _copy,
    idempotent=False,
)
remove = _changing_tool(
    _spec("remove", "Remove a file of your workspace, or a directory with everything in it."),
    _remove,
    idempotent=False,
)

FILE_OPERATIONS: Mapping[str, Tool] = {
    "stat": stat,
    "mkdir": mkdir,
    "rename": rename,
    "copy": copy,
    "remove": remove,
}

"""Shared parts of the file tools: path arguments, and errors as results that a model can act on."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any

from gateway.agents.port import ToolResult
from gateway.tools.tool import InvalidArguments, ToolContext, ToolFunction, str_argument
from sandbox.errors import UnsafePath
from sandbox.lifecycle.waits import Wait, reported_wait

MAX_FILE_BYTES = 10 * 1024 * 1024
"""Maximum bytes of a file that the tools read or write as a whole."""

MAX_PATH_LENGTH = 4096

PATH_SCHEMA = {"type": "string", "description": "relative to the workspace"}


def path_argument(args: Mapping[str, Any], *, required: bool = True) -> str:
    """Return the path argument; `.` is the workspace."""
    path = str_argument(args, "path", required=required) or "."
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidArguments(f"path has more than {MAX_PATH_LENGTH} characters")
    return path


def int_argument(args: Mapping[str, Any], name: str, *, default: int, maximum: int) -> int:
    """Return a whole number of at least one; raises InvalidArguments."""
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise InvalidArguments(f"{name} must be a whole number from 1 to {maximum}, not {value!r}")
    return value


def one_line(name: str) -> str:
    """Return a name for a list with one name per line; one with line breaks or control characters as JSON."""
    plain = len(name.splitlines()) <= 1 and not any(unicodedata.category(letter) == "Cc" for letter in name)
    return name if plain else json.dumps(name)


def has_files(context: ToolContext) -> bool:
    """Return whether there is a workspace to read from."""
    return context.environment.workspace is not None


def has_workspace(context: ToolContext) -> bool:
    """Return whether there is a workspace with a sandbox."""
    return has_files(context) and not context.environment.files_only


async def read_file(context: ToolContext, path: str) -> bytes:
    """Return a file's content; raises InvalidArguments for one that is too large."""
    files = await context.environment_resolver.files(context.environment)
    content = await files.read(path, limit=MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise InvalidArguments(f"{path} has more than {MAX_FILE_BYTES // 1024**2} MiB: use bash")
    return content


def with_file_errors(run: ToolFunction) -> ToolFunction:
    """Turn file errors into failed results; without a sandbox, a long wait for the store is reported."""

    async def wrapped(context: ToolContext, args: Mapping[str, Any], key: str) -> ToolResult:
        with reported_wait(Wait.LOADING) if context.environment.files_only else nullcontext():
            return await _run_with_file_errors(lambda: run(context, args, key), str(args.get("path") or "."))

    return wrapped


async def _run_with_file_errors(run: Callable[[], Awaitable[ToolResult]], path: str) -> ToolResult:
    try:
        return await run()
    except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        return _failure(_REASONS[type(error)].format(path=path))
    except PermissionError as error:
        return _failure(f"{path} cannot be changed: {error.strerror or 'the workspace is read-only'}")
    except UnsafePath as error:
        return _failure(str(error))


_REASONS: Mapping[type[OSError], str] = {
    FileNotFoundError: "there is no file {path}",
    FileExistsError: "there is a file or directory at the new path already",
    IsADirectoryError: "{path} is a directory",
    NotADirectoryError: "a part of {path} is a file, not a directory",
}


def _failure(why: str) -> ToolResult:
    return ToolResult(ok=False, content=why)

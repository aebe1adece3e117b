"""What the file tools share: a path below the workspace, and errors in words a model can act on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway.agents.port import ToolResult
from gateway.tools.tool import Act, BadArguments, Desk, text
from sandbox.config import SandboxConfig
from sandbox.errors import Unsafe

LARGEST = 10 * 1024 * 1024
"""Bytes of a file that the tools take as a whole; for more there is bash."""

LONGEST_PATH = 4096

PATH = {"type": "string", "description": "relative to the workspace"}


def path_of(args: Mapping[str, Any], *, needed: bool = True) -> str:
    """Return the path argument; `.` is the workspace."""
    path = text(args, "path", needed=needed) or "."
    if len(path) > LONGEST_PATH:
        raise BadArguments(f"path has more than {LONGEST_PATH} characters")
    return path


def number(args: Mapping[str, Any], name: str, *, default: int, most: int) -> int:
    """Return a count of at least one; raises BadArguments."""
    value = args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadArguments(f"{name} must be a whole number from 1 to {most}, not {value!r}")
    return value


def never(_config: SandboxConfig) -> bool:
    """Ask nobody."""
    return False


def has_files(desk: Desk) -> bool:
    """Say whether there is a workspace to read from."""
    return desk.bench.workspace is not None


def has_workspace(desk: Desk) -> bool:
    """Say whether there is a workspace to work in."""
    return has_files(desk) and not desk.bench.files_only


async def whole(desk: Desk, path: str) -> bytes:
    """Return a file's content; raises BadArguments for one that is too large."""
    held = await desk.workbench.files(desk.bench)
    content = await held.read(path, limit=LARGEST + 1)
    if len(content) > LARGEST:
        raise BadArguments(f"{path} has more than {LARGEST // 1024**2} MiB: use bash")
    return content


def explained(act: Act) -> Act:
    """Turn what goes wrong with a file into a result that says so."""

    async def acting(desk: Desk, args: Mapping[str, Any], key: str) -> ToolResult:
        return await _explained(lambda: act(desk, args, key), str(args.get("path") or "."))

    return acting


async def _explained(perform: Callable[[], Awaitable[ToolResult]], path: str) -> ToolResult:
    try:
        return await perform()
    except FileNotFoundError:
        return _no(f"there is no file {path}")
    except IsADirectoryError:
        return _no(f"{path} is a directory")
    except NotADirectoryError:
        return _no(f"a part of {path} is a file, not a directory")
    except PermissionError as error:
        return _no(f"{path} cannot be changed: {error.strerror or 'the workspace is read-only'}")
    except Unsafe as error:
        return _no(str(error))


def _no(why: str) -> ToolResult:
    return ToolResult(ok=False, content=why)

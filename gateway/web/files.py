"""A workspace's files over HTTP, by paths the kernel itself keeps inside the workspace."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from aiohttp import web
from pydantic import Field, StrictStr

from gateway.web import bodies
from gateway.web.auth import Key
from gateway.web.pages import Items
from gateway.web.problems import Problem, not_found
from gateway.web.surface import Surface
from gateway.web.typed import Call, Nothing, Route, Shown, Strict
from sandbox.errors import Unsafe
from sandbox.host import files
from sandbox.scope import namespace

AS_DATA = {
    "Content-Type": "application/octet-stream",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "no-store",
}
"""A sandbox may have written anything: a browser must store it, never show it."""

Returned = TypeVar("Returned")


class FileShown(Shown):
    """A name in a directory; `path` is below the workspace."""

    name: str
    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    modified_at: datetime


class FilePage(Strict):
    """Which part of a directory; `cursor` is the `next` of the page before."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    cursor: Annotated[StrictStr, Field(max_length=1000)] = ""


async def folder_of(call: Call[Any, Any]) -> Path:
    """Return the directory of the workspace a path names; 404 when the account has none such."""
    if call.surface.workspaces is None:
        raise Problem(503, "this process has no workspace store")
    async with call.surface.database.read() as connection:
        record = await call.surface.book.get(connection, call.account, "workspace", call.path["id"])
    folder = call.surface.workspaces / namespace(call.account, record.id)
    await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    return folder


async def forget(surface: Surface, account: str, workspace: str) -> None:
    """Remove a workspace's directory with everything in it, after its record is gone."""
    if surface.workspaces is not None:
        folder = surface.workspaces / namespace(account, workspace)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _off_the_loop(work: Callable[..., Returned], *given: object) -> Returned:
    try:
        return await asyncio.to_thread(work, *given)
    except FileNotFoundError:
        raise not_found("there is no such file in this workspace") from None
    except Unsafe as error:
        raise Problem(422, str(error)) from None
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise Problem(409, f"a file and a directory are in each other's way: {error.strerror}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is no usable path"
        raise Problem(422, f"the file system refuses: {reason}") from None


def _path(call: Call[Any, Any]) -> str:
    path = call.path.get("path", "")
    if path.startswith("/"):
        raise Problem(422, "a path is relative to the workspace")
    try:
        return files.relative(path, "/")
    except Unsafe as error:
        raise Problem(422, str(error)) from None


async def look(call: Call[Nothing, FilePage]) -> web.Response | Items[FileShown]:
    """Return a file's bytes, or what stands in a directory."""
    folder, path = await folder_of(call), _path(call)
    most = call.surface.bounds.file_bytes
    try:
        content = await _off_the_loop(files.read, folder, path, most + 1)
    except Problem as problem:
        if problem.status != 409:  # noqa: PLR2004 - a directory is listed instead
            raise
        return await _listed(folder, path, call.query)
    if len(content) > most:
        raise Problem(413, f"the file is larger than {most} bytes")
    return web.Response(body=content, headers=AS_DATA)


async def _listed(folder: Path, path: str, page: FilePage) -> Items[FileShown]:
    found = [one for one in await _off_the_loop(files.entries, folder, path) if one.name > page.cursor]
    below = "" if path == "." else f"{path}/"
    shown = [
        FileShown.model_validate(
            {
                "name": _readable(one.name),
                "path": _readable(below + one.name),
                "kind": one.kind,
                "size": one.size,
                "modified_at": datetime.fromtimestamp(one.modified, UTC),
            }
        )
        for one in found[: page.limit]
    ]
    return Items[FileShown](items=shown, next=shown[-1].name if len(found) > page.limit else None)


def _readable(name: str) -> str:
    """Show names that are not UTF-8 as well as can be."""
    return name.encode("utf-8", "replace").decode()


async def put(call: Call[Nothing, Nothing]) -> None:
    """Write a file whole; directories above it are made."""
    folder, path = await folder_of(call), _path(call)
    if path == ".":
        raise Problem(422, "a file needs a name")
    bounds = call.surface.bounds
    content = await bodies.read_bytes(
        call.request, limit=bounds.file_bytes, deadline=bounds.body_deadline * 12
    )
    await _off_the_loop(files.write, folder, path, content)


async def remove(call: Call[Nothing, Nothing]) -> None:
    """Remove a file, or a directory with all in it."""
    folder, path = await folder_of(call), _path(call)
    await _off_the_loop(files.remove, folder, path)


_EVERY = "/accounts/me/workspaces/{id}/files"
_ONE = f"{_EVERY}/{{path:.+}}"
_BINARY = "application/octet-stream"

ROUTES = (
    Route(
        method="GET",
        path=_EVERY,
        access=Key("read"),
        handler=look,
        summary="list a workspace's files",
        query=FilePage,
        gives=Items[FileShown],
        tag="workspaces",
    ),
    Route(
        method="GET",
        path=_ONE,
        access=Key("read"),
        handler=look,
        summary="download a file, or list a directory",
        query=FilePage,
        media=_BINARY,
        gives=Items[FileShown],
        tag="workspaces",
    ),
    Route(
        method="PUT",
        path=_ONE,
        access=Key("admin"),
        handler=put,
        summary="upload a file",
        raw=True,
        status=204,
        also={409: "a directory is in the way"},
        tag="workspaces",
    ),
    Route(
        method="DELETE",
        path=_ONE,
        access=Key("admin"),
        handler=remove,
        summary="remove a file or a directory",
        status=204,
        tag="workspaces",
    ),
)

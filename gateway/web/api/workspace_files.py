"""A workspace's files over HTTP, by paths the kernel itself keeps inside the workspace."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

import structlog
from aiohttp import web
from pydantic import Field, StrictStr

from gateway.environments.quotas import refusal
from gateway.web.http import request_body
from gateway.web.http.auth import Key
from gateway.web.http.context import Surface
from gateway.web.http.pagination import Items
from gateway.web.http.problems import IN_PATH, Problem, misplaced, not_found
from gateway.web.http.route import Call, Nothing, Route, Shown, Strict
from sandbox.errors import SandboxError, Unsafe
from sandbox.labels import namespace
from sandbox.paths import Entry, relative
from sandbox.workspaces.port import Store

log = structlog.get_logger(__name__)

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


async def _place_of(call: Call[Any, Any]) -> tuple[Store, str]:
    """Return the store, and the namespace of the workspace a path names; 404 for none of the account's."""
    if call.surface.workspaces is None:
        raise Problem(503, "this process has no workspace store")
    async with call.surface.database.read() as connection:
        record = await call.surface.book.get(connection, call.account, "workspace", call.path["id"])
    return call.surface.workspaces.store, namespace(call.account, record.id)


async def forget(surface: Surface, account: str, workspace: str) -> None:
    """Remove a workspace's files, after its record is gone."""
    if surface.workspaces is not None:
        await surface.workspaces.forget(namespace(account, workspace))


async def _told(asked: Awaitable[Returned]) -> Returned:
    """Wait for the store; what goes wrong is told in the words of HTTP."""
    try:
        return await asked
    except FileNotFoundError:
        raise not_found("there is no such file in this workspace") from None
    except Unsafe as error:
        raise misplaced(IN_PATH, str(error)) from None
    except SandboxError as error:
        log.warning("workspaces.unusable", error=str(error))
        raise Problem(503, "the workspace store cannot be used now") from None
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise Problem(409, f"a file and a directory are in each other's way: {error.strerror}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is no usable path"
        raise misplaced(IN_PATH, f"the file system refuses: {reason}") from None


def _path(call: Call[Any, Any]) -> str:
    path = call.path.get("path", "")
    if path.startswith("/"):
        raise misplaced(IN_PATH, "a path is relative to the workspace")
    try:
        return relative(path, "/")
    except Unsafe as error:
        raise misplaced(IN_PATH, str(error)) from None


async def look(call: Call[Nothing, FilePage]) -> web.Response | Items[FileShown]:
    """Return a file's bytes, or what stands in a directory."""
    (store, space), path = await _place_of(call), _path(call)
    most = call.surface.bounds.file_bytes
    try:
        content = await _told(store.read(space, path, most + 1))
    except Problem as problem:
        if problem.status != 409:  # noqa: PLR2004 - a directory is listed instead
            raise
        return _listed(await _told(store.entries(space, path)), path, call.query)
    if len(content) > most:
        raise Problem(413, f"the file is larger than {most} bytes")
    return web.Response(body=content, headers=AS_DATA)


def _listed(entries: Sequence[Entry], path: str, page: FilePage) -> Items[FileShown]:
    found = [one for one in entries if one.name > page.cursor]
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
    (store, space), path = await _place_of(call), _path(call)
    if path == ".":
        raise misplaced(IN_PATH, "a file needs a name")
    bounds = call.surface.bounds
    content = await request_body.read_bytes(
        call.request, limit=bounds.file_bytes, deadline=bounds.body_deadline * 12
    )
    await _check_room(call, path, len(content))
    await _told(store.write(space, path, content))


async def _check_room(call: Call[Nothing, Nothing], path: str, size: int) -> None:
    """Raise 413 where a file has no room in the workspace's quota."""
    async with call.surface.database.read() as connection:
        record = await call.surface.book.get(connection, call.account, "workspace", call.path["id"])
        limit = await call.surface.quotas.limit(connection, call.surface.book, record)
    if limit is None:
        return
    store, space = await _place_of(call)
    against = await _told(refusal(store, space, limit, path, size))
    if against is not None:
        raise Problem(413, against)


async def remove(call: Call[Nothing, Nothing]) -> None:
    """Remove a file, or a directory with all in it."""
    (store, space), path = await _place_of(call), _path(call)
    await _told(store.remove(space, path))


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
        also={409: "a directory is in the way", 413: "it is too large, or the workspace is full"},
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

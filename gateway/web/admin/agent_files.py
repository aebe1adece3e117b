"""Files of agents and skills over HTTP: listed, uploaded, downloaded, removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from aiohttp import web

from gateway.environments.agent_files import GUIDE, PLACES
from gateway.store.accounts import agent_files as store
from gateway.store.accounts.records import Kind, Record
from gateway.web.api.workspace_files import AS_DATA
from gateway.web.http import request_body
from gateway.web.http.auth import Key
from gateway.web.http.pagination import Items
from gateway.web.http.problems import IN_PATH, Problem, misplaced, not_found
from gateway.web.http.route import Call, Nothing, Route, Shown

LARGEST = 1024 * 1024
HEAVIEST = 10 * 1024 * 1024
MOST = 200
LONGEST_PATH = 500


class BundleFileShown(Shown):
    """A file of a bundle."""

    path: str
    size: int
    sha256: str
    updated_at: datetime


async def _record(call: Call[Any, Any], kind: Kind) -> Record:
    async with call.surface.database.read() as connection:
        return await call.surface.book.get(connection, call.account, kind, call.path["id"])


def _path(call: Call[Any, Any], kind: Kind) -> str:
    """Return the path, below the bundle; an agent's files have their places."""
    path = PurePosixPath(call.path["path"])
    plain = str(path)
    odd = path.is_absolute() or ".." in path.parts or plain == "." or len(plain) > LONGEST_PATH
    if odd or any(ord(letter) < ord(" ") for letter in plain):
        raise misplaced(IN_PATH, f"{plain!r} is no path below the bundle")
    if kind == "agent" and plain != GUIDE and not plain.startswith(PLACES):
        raise misplaced(IN_PATH, f"an agent's files are {GUIDE} and what is below {', '.join(PLACES)}")
    return plain


def listing(kind: Kind) -> Callable[[Call[Nothing, Nothing]], Awaitable[Items[BundleFileShown]]]:
    """Return the handler that lists a bundle."""

    async def show(call: Call[Nothing, Nothing]) -> Items[BundleFileShown]:
        record = await _record(call, kind)
        async with call.surface.database.read() as connection:
            held = await store.listed(connection, record.id)
        return Items[BundleFileShown](
            items=[
                BundleFileShown(path=one.path, size=one.size, sha256=one.sha256, updated_at=one.updated_at)
                for one in held
            ]
        )

    return show


def look(kind: Kind) -> Callable[[Call[Nothing, Nothing]], Awaitable[web.Response]]:
    """Return the handler that downloads a file."""

    async def show(call: Call[Nothing, Nothing]) -> web.Response:
        record = await _record(call, kind)
        async with call.surface.database.read() as connection:
            content = await store.content(connection, record.id, _path(call, kind))
        if content is None:
            raise not_found(f"this {kind} has no such file")
        return web.Response(body=content, headers=AS_DATA)

    return show


def put(kind: Kind) -> Callable[[Call[Nothing, Nothing]], Awaitable[None]]:
    """Return the handler that uploads a file."""

    async def write(call: Call[Nothing, Nothing]) -> None:
        record, path = await _record(call, kind), _path(call, kind)
        content = await request_body.read_bytes(
            call.request, limit=LARGEST, deadline=call.surface.bounds.body_deadline * 3
        )
        async with call.surface.database.begin() as connection:
            count, size = await store.weight(connection, record.id, besides=path)
            if count >= MOST or size + len(content) > HEAVIEST:
                raise Problem(413, f"a bundle has at most {MOST} files and {HEAVIEST} bytes")
            await store.put(connection, record.id, path, content)

    return write


def remove(kind: Kind) -> Callable[[Call[Nothing, Nothing]], Awaitable[None]]:
    """Return the handler that removes a file, or a directory with all in it."""

    async def drop(call: Call[Nothing, Nothing]) -> None:
        record, path = await _record(call, kind), _path(call, kind)
        async with call.surface.database.begin() as connection:
            if not await store.remove(connection, record.id, path):
                raise not_found(f"this {kind} has no such file")

    return drop


def _routes(kind: Kind, plural: str) -> tuple[Route, ...]:
    every = f"/accounts/me/{plural}/{{id}}/files"
    one = f"{every}/{{path:.+}}"
    listed = Items[BundleFileShown]
    binary = "application/octet-stream"
    return (
        Route(
            method="GET",
            path=every,
            access=Key("read"),
            handler=listing(kind),
            summary=f"list the files of one of the {plural}",
            gives=listed,
            tag=plural,
        ),
        Route(
            method="GET",
            path=one,
            access=Key("read"),
            handler=look(kind),
            summary="download a file",
            media=binary,
            tag=plural,
        ),
        Route(
            method="PUT",
            path=one,
            access=Key("admin"),
            handler=put(kind),
            summary="upload a file",
            raw=True,
            status=204,
            also={413: "it, or the bundle, is too large"},
            tag=plural,
        ),
        Route(
            method="DELETE",
            path=one,
            access=Key("admin"),
            handler=remove(kind),
            summary="remove a file or a directory",
            status=204,
            tag=plural,
        ),
    )


ROUTES = (*_routes("agent", "agents"), *_routes("skill", "skills"))
"""The bundles' lines of the URL table."""

"""Files of agents and skills over HTTP: list, upload, download and delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from aiohttp import web

from gateway.environments.agent_files import FOLDERS, INSTRUCTIONS_FILE
from gateway.store.accounts import agent_files as store
from gateway.store.accounts.records import Record, RecordKind
from gateway.web.api.files.workspace_files import DOWNLOAD_HEADERS
from gateway.web.http import request_body
from gateway.web.http.auth import KeyAccess
from gateway.web.http.pagination import ListPage
from gateway.web.http.problems import PATH_POINTER, HttpProblem, invalid_field, not_found
from gateway.web.http.route import PATH_PARAMETER, ApiCall, ApiRoute, NoContent, ResponseModel

MAX_FILE_BYTES = 1024 * 1024
MAX_TOTAL_BYTES = 10 * 1024 * 1024
MAX_FILES = 200
MAX_PATH_LENGTH = 500


class AgentFileResponse(ResponseModel):
    """A file of an agent or a skill."""

    path: str
    size: int
    sha256: str
    updated_at: datetime


async def _record(call: ApiCall[Any, Any], kind: RecordKind) -> Record:
    async with call.context.database.read() as connection:
        return await call.context.records.get(connection, call.account, kind, call.path["id"])


async def _changeable(call: ApiCall[Any, Any], kind: RecordKind) -> Record:
    """Return the record; 409 for a skill whose files come from a directory of the operator."""
    record = await _record(call, kind)
    if kind == "skill":
        call.context.records.ensure_not_managed(record)
    return record


def _path(call: ApiCall[Any, Any], kind: RecordKind) -> str:
    """Return a valid path of a file; raises HttpProblem 422 where an agent cannot have files."""
    path = PurePosixPath(call.path["path"])
    plain = str(path)
    odd = path.is_absolute() or ".." in path.parts or plain == "." or len(plain) > MAX_PATH_LENGTH
    if odd or any(ord(letter) < ord(" ") for letter in plain):
        raise invalid_field(PATH_POINTER, f"{plain!r} is no path of a file below this record")
    if kind == "agent" and plain != INSTRUCTIONS_FILE and not plain.startswith(FOLDERS):
        raise invalid_field(
            PATH_POINTER, f"an agent's files are {INSTRUCTIONS_FILE} and those below {', '.join(FOLDERS)}"
        )
    return plain


def list_files(
    kind: RecordKind,
) -> Callable[[ApiCall[NoContent, NoContent]], Awaitable[ListPage[AgentFileResponse]]]:
    """Return the handler that lists an agent's or a skill's files."""

    async def show(call: ApiCall[NoContent, NoContent]) -> ListPage[AgentFileResponse]:
        record = await _record(call, kind)
        async with call.context.database.read() as connection:
            held = await store.list_files(connection, record.id)
        return ListPage[AgentFileResponse](
            items=[
                AgentFileResponse(path=one.path, size=one.size, sha256=one.sha256, updated_at=one.updated_at)
                for one in held
            ]
        )

    return show


def get_file(kind: RecordKind) -> Callable[[ApiCall[NoContent, NoContent]], Awaitable[web.Response]]:
    """Return the handler that downloads a file."""

    async def show(call: ApiCall[NoContent, NoContent]) -> web.Response:
        record = await _record(call, kind)
        async with call.context.database.read() as connection:
            content = await store.read(connection, record.id, _path(call, kind))
        if content is None:
            raise not_found(f"this {kind} has no such file")
        return web.Response(body=content, headers=DOWNLOAD_HEADERS)

    return show


def put_file(kind: RecordKind) -> Callable[[ApiCall[NoContent, NoContent]], Awaitable[None]]:
    """Return the handler that uploads a file."""

    async def write(call: ApiCall[NoContent, NoContent]) -> None:
        record, path = await _changeable(call, kind), _path(call, kind)
        content = await request_body.read_file(
            call.request, limit=MAX_FILE_BYTES, deadline=call.context.limits.body_deadline * 3
        )
        quota = call.context.storage_quota
        async with (
            quota.reserve(call.account, len(content)) if quota else nullcontext(),
            call.context.database.begin() as connection,
        ):
            await call.context.records.get(connection, call.account, kind, record.id, locked=True)
            count, size = await store.count_and_size(connection, record.id, excluding=path)
            if count >= MAX_FILES or size + len(content) > MAX_TOTAL_BYTES:
                raise HttpProblem(
                    413, f"an agent or a skill has at most {MAX_FILES} files and {MAX_TOTAL_BYTES} bytes"
                )
            await store.write(connection, record.id, path, content)

    return write


def delete_file(kind: RecordKind) -> Callable[[ApiCall[NoContent, NoContent]], Awaitable[None]]:
    """Return the handler that deletes a file, or a directory with its contents."""

    async def drop(call: ApiCall[NoContent, NoContent]) -> None:
        record, path = await _changeable(call, kind), _path(call, kind)
        async with call.context.database.begin() as connection:
            await call.context.records.get(connection, call.account, kind, record.id, locked=True)
            if not await store.delete_file(connection, record.id, path):
                raise not_found(f"this {kind} has no such file")

    return drop


def _routes(kind: RecordKind, plural: str) -> tuple[ApiRoute, ...]:
    every = f"/accounts/me/{plural}/{{id}}/files"
    one = f"{every}/{PATH_PARAMETER}"
    listed = ListPage[AgentFileResponse]
    binary = "application/octet-stream"
    return (
        ApiRoute(
            method="GET",
            path=every,
            access=KeyAccess("read"),
            handler=list_files(kind),
            summary=f"list the files of one of the {plural}",
            response_model=listed,
            tag=plural,
        ),
        ApiRoute(
            method="GET",
            path=one,
            access=KeyAccess("read"),
            handler=get_file(kind),
            summary="download a file",
            media_type=binary,
            tag=plural,
        ),
        ApiRoute(
            method="PUT",
            path=one,
            access=KeyAccess("admin"),
            handler=put_file(kind),
            summary="upload a file",
            raw=True,
            status=204,
            error_responses={413: "it, or the bundle, is too large"},
            tag=plural,
        ),
        ApiRoute(
            method="DELETE",
            path=one,
            access=KeyAccess("admin"),
            handler=delete_file(kind),
            summary="delete a file or a directory",
            status=204,
            tag=plural,
        ),
    )


ROUTES = (*_routes("agent", "agents"), *_routes("skill", "skills"))
"""The routes of agent and skill files."""

"""A workspace's files over HTTP; the kernel keeps paths inside the workspace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar
from weakref import WeakValueDictionary

import structlog
from aiohttp import hdrs, web
from pydantic import Field, StrictStr

from delivery.exhaustion import exhausted_resource
from gateway.environments.quotas import quota_problem
from gateway.web.api.files.ranges import content_response
from gateway.web.api.files.shown_paths import from_cursor, shown, stored_path, to_cursor
from gateway.web.http import request_body
from gateway.web.http.auth import KeyAccess
from gateway.web.http.context import WebContext
from gateway.web.http.pagination import ListPage
from gateway.web.http.preconditions import (
    ETAG,
    ensure_preconditions,
    etag_of,
    has_conditions,
)
from gateway.web.http.problems import PATH_POINTER, HttpProblem, invalid_field, not_found
from gateway.web.http.route import (
    PATH_PARAMETER,
    ApiCall,
    ApiRoute,
    NoContent,
    RequestModel,
    ResponseModel,
)
from sandbox.errors import SandboxError, UnsafePath
from sandbox.labels import namespace
from sandbox.paths import FileEntry, relative_path
from sandbox.workspaces.port import WorkspaceStore

log = structlog.get_logger(__name__)

DOWNLOAD_HEADERS = {
    "Content-Type": "application/octet-stream",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "no-store",
}
"""Headers of files that a sandbox may have written: browsers download them and never render them."""

Result = TypeVar("Result")

_changes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
"""Locks of files that are being changed, by namespace and path."""


class WorkspaceFileResponse(ResponseModel):
    """A name in a directory; `path` is below the workspace."""

    name: str
    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    modified_at: datetime


class WorkspaceFileQuery(RequestModel):
    """A page of a directory; `cursor` is the `next` of the previous page."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 200
    cursor: Annotated[StrictStr, Field(max_length=1000)] = ""


async def workspace_store(call: ApiCall[Any, Any]) -> tuple[WorkspaceStore, str]:
    """Return the store and the workspace's namespace; 404 when the account has no such workspace."""
    if call.context.workspaces is None:
        raise HttpProblem(503, "this process has no workspace store")
    async with call.context.database.read() as connection:
        record = await call.context.records.get(connection, call.account, "workspace", call.path["id"])
    return call.context.workspaces.store, namespace(call.account, record.id)


async def delete_workspace(context: WebContext, account: str, workspace: str) -> None:
    """Delete a workspace's files, after its record was deleted."""
    if context.workspaces is not None:
        await context.workspaces.delete(namespace(account, workspace))


async def translate_errors(operation: Awaitable[Result]) -> Result:
    """Await the store, and translate its errors into HTTP problems.

    The OSError of a disk that cannot be written is raised as it is: every request gets the same 503 for it.
    """
    try:
        return await operation
    except FileNotFoundError:
        raise not_found("there is no such file in this workspace") from None
    except UnsafePath as error:
        raise invalid_field(PATH_POINTER, str(error)) from None
    except SandboxError as error:
        log.warning("workspace_store.failed", error=str(error))
        raise HttpProblem(503, "the workspace store is unavailable; try again") from None
    except FileExistsError:
        raise HttpProblem(409, "there is a file or a directory at this path already") from None
    except (IsADirectoryError, NotADirectoryError) as error:
        raise HttpProblem(409, f"a file and a directory have the same path: {error.strerror}") from None
    except (OSError, ValueError) as error:
        if exhausted_resource(error):
            raise
        reason = getattr(error, "strerror", None) or "this path cannot be used"
        raise invalid_field(PATH_POINTER, f"the file system refused: {reason}") from None


def _path(call: ApiCall[Any, Any]) -> str:
    return plain_path(call.path.get("path", ""), PATH_POINTER)


def plain_path(path: str, pointer: str) -> str:
    """Return a path below the workspace; 422 for one that is absolute or leads out."""
    if path.startswith("/"):
        raise invalid_field(pointer, "a path is relative to the workspace")
    try:
        return relative_path(path, "/")
    except UnsafePath as error:
        raise invalid_field(pointer, str(error)) from None


async def existing_path(store: WorkspaceStore, space: str, path: str) -> str:
    """Return the path of the file that a client means; raises HttpProblem if several are shown so."""
    return await stored_path(path, lambda below: translate_errors(store.list_directory(space, below)))


async def get_file(
    call: ApiCall[NoContent, WorkspaceFileQuery],
) -> web.Response | ListPage[WorkspaceFileResponse]:
    """Return a file's bytes, or the range of them that the request names, or a directory's entries."""
    store, space = await workspace_store(call)
    path = await existing_path(store, space, _path(call))
    most = call.context.limits.file_bytes
    try:
        content = await translate_errors(store.read(space, path, most + 1))
    except HttpProblem as problem:
        if problem.status != 409:  # noqa: PLR2004 - a directory is listed instead
            raise
        return _to_page(await translate_errors(store.list_directory(space, path)), path, call.query)
    if len(content) > most:
        raise HttpProblem(413, f"the file is larger than {most} bytes")
    return content_response(call.request, content, DOWNLOAD_HEADERS)


def _to_page(
    entries: Sequence[FileEntry], path: str, page: WorkspaceFileQuery
) -> ListPage[WorkspaceFileResponse]:
    cursor = from_cursor(page.cursor)
    found = [one for one in entries if one.name > cursor]
    below = "" if path == "." else f"{path}/"
    listed = found[: page.limit]
    return ListPage[WorkspaceFileResponse](
        items=[to_response(one, below + one.name) for one in listed],
        next=to_cursor(listed[-1].name) if len(found) > page.limit else None,
    )


def to_response(entry: FileEntry, path: str) -> WorkspaceFileResponse:
    """Return an entry in its public shape."""
    return WorkspaceFileResponse.model_validate(
        {
            "name": shown(entry.name),
            "path": shown(path),
            "kind": entry.kind,
            "size": entry.size,
            "modified_at": entry.modified_at,
        }
    )


async def put_file(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Write a file, if it is the version that the request names; missing directories are created."""
    (store, space), path = await workspace_store(call), _path(call)
    if path == ".":
        raise invalid_field(PATH_POINTER, "a file needs a name")
    bounds = call.context.limits
    content = await request_body.read_file(
        call.request, limit=bounds.file_bytes, deadline=bounds.body_deadline * 12
    )
    await check_quota(call, path, len(content))
    quota = call.context.storage_quota
    async with (
        quota.reserve(call.account, len(content)) if quota else nullcontext(),
        _expected_version(call, store, space, path),
    ):
        await translate_errors(store.write(space, path, content))
    return web.Response(status=HTTPStatus.NO_CONTENT, headers={ETAG: etag_of(content)})


async def check_quota(call: ApiCall[Any, Any], path: str, size: int) -> None:
    """Raise 413 for a file that exceeds the workspace's quota."""
    async with call.context.database.read() as connection:
        record = await call.context.records.get(connection, call.account, "workspace", call.path["id"])
        limit = await call.context.quotas.limit(connection, call.context.records, record)
    if limit is None:
        return
    store, space = await workspace_store(call)
    against = await translate_errors(quota_problem(store, space, limit, path, size))
    if against is not None:
        raise HttpProblem(413, against)


async def delete_file(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete a file, if it is the version that the request names, or a directory with its contents."""
    store, space = await workspace_store(call)
    path = await existing_path(store, space, _path(call))
    async with _expected_version(call, store, space, path):
        await translate_errors(store.remove(space, path))


@asynccontextmanager
async def _expected_version(
    call: ApiCall[Any, Any], store: WorkspaceStore, space: str, path: str
) -> AsyncIterator[None]:
    """Keep other requests of this process from changing a file, after the request's conditions were met."""
    async with _changes.setdefault(f"{space}/{path}", asyncio.Lock()):
        if has_conditions(call.request):
            ensure_preconditions(call.request, await _present_content(call, store, space, path))
        yield


async def _present_content(
    call: ApiCall[Any, Any], store: WorkspaceStore, space: str, path: str
) -> bytes | None:
    """Return what a GET of a file would; None for a new one."""
    try:
        return await translate_errors(store.read(space, path, call.context.limits.file_bytes + 1))
    except HttpProblem as problem:
        is_new = problem.status == HTTPStatus.NOT_FOUND and call.request.method == hdrs.METH_PUT
        if is_new:
            return None
        raise


COLLECTION_PATH = "/accounts/me/workspaces/{id}/files"
_FILE_PATH = f"{COLLECTION_PATH}/{PATH_PARAMETER}"
_BINARY_TYPE = "application/octet-stream"

ROUTES = (
    ApiRoute(
        method="GET",
        path=COLLECTION_PATH,
        access=KeyAccess("read"),
        handler=get_file,
        summary="list a workspace's files",
        versioned=True,
        query_model=WorkspaceFileQuery,
        response_model=ListPage[WorkspaceFileResponse],
        tag="workspaces",
    ),
    ApiRoute(
        method="GET",
        path=_FILE_PATH,
        access=KeyAccess("read"),
        handler=get_file,
        summary="download a file, or list a directory",
        versioned=True,
        query_model=WorkspaceFileQuery,
        media_type=_BINARY_TYPE,
        response_model=ListPage[WorkspaceFileResponse],
        tag="workspaces",
    ),
    ApiRoute(
        method="PUT",
        path=_FILE_PATH,
        access=KeyAccess("admin"),
        handler=put_file,
        summary="upload a file",
        versioned=True,
        raw=True,
        status=204,
        error_responses={
            409: "there is a directory at this path",
            413: "it is too large, or the workspace or the account's storage is full",
        },
        tag="workspaces",
    ),
    ApiRoute(
        method="DELETE",
        path=_FILE_PATH,
        access=KeyAccess("admin"),
        handler=delete_file,
        summary="delete a file or a directory",
        versioned=True,
        status=204,
        tag="workspaces",
    ),
)

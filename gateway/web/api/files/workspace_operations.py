"""Describe, create, rename, copy and search a workspace's files over HTTP."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictInt, StrictStr

from gateway.environments import workspace_search
from gateway.environments.workspace_search import WorkspaceQuery
from gateway.web.api.files.workspace_files import (
    COLLECTION_PATH,
    WorkspaceFileResponse,
    check_quota,
    existing_path,
    plain_path,
    to_response,
    translate_errors,
    workspace_store,
)
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import invalid_field
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel

FilePath = Annotated[StrictStr, Field(max_length=4096, description="relative to the workspace")]


class WorkspacePathQuery(RequestModel):
    """A file or directory; `.` is the workspace."""

    path: FilePath = "."


class WorkspaceMkdirRequest(RequestModel):
    """A directory to create."""

    path: FilePath


class WorkspaceMoveRequest(RequestModel):
    """A file or directory, and the free path that it or its copy gets."""

    path: FilePath
    to: FilePath


class WorkspaceSearchRequest(RequestModel):
    """A literal text, a glob for the files' names, or both."""

    text: Annotated[StrictStr, Field(max_length=workspace_search.MAX_TEXT_LENGTH)] = ""
    glob: Annotated[StrictStr, Field(max_length=512)] = ""
    path: FilePath = "."
    ignore_case: StrictBool = False
    limit: Annotated[StrictInt, Field(ge=1, le=workspace_search.MAX_MATCHES)] = 200


class WorkspaceMatchResponse(ResponseModel):
    """A file whose name matches, or one of its lines that contains the text."""

    path: str
    line: int | None = None
    text: str | None = None


class WorkspaceSearchResponse(ResponseModel):
    """The matches by path and line; `truncated`: a limit was reached, and there may be more."""

    items: list[WorkspaceMatchResponse]
    files: int
    truncated: bool


async def stat_file(call: ApiCall[NoContent, WorkspacePathQuery]) -> WorkspaceFileResponse:
    """Return the entry of a path; a link is described itself."""
    store, space = await workspace_store(call)
    return await _describe(call, await existing_path(store, space, plain_path(call.query.path, "/path")))


async def _describe(call: ApiCall[Any, Any], path: str) -> WorkspaceFileResponse:
    store, space = await workspace_store(call)
    return to_response(await translate_errors(store.stat(space, path)), path)


async def make_directory(call: ApiCall[WorkspaceMkdirRequest, NoContent]) -> WorkspaceFileResponse:
    """Create a directory and its parents; one that exists stays as it is."""
    (store, space), path = await workspace_store(call), plain_path(call.body.path, "/path")
    await translate_errors(store.mkdir(space, path))
    return await _describe(call, path)


async def rename_file(call: ApiCall[WorkspaceMoveRequest, NoContent]) -> WorkspaceFileResponse:
    """Rename a file or directory; nothing is replaced."""
    (store, space), (path, target) = await workspace_store(call), _paths(call)
    path = await existing_path(store, space, path)
    await translate_errors(store.rename(space, path, target))
    return await _describe(call, target)


async def copy_file(call: ApiCall[WorkspaceMoveRequest, NoContent]) -> WorkspaceFileResponse:
    """Copy a file or directory within the quotas; nothing is replaced."""
    (store, space), (path, target) = await workspace_store(call), _paths(call)
    path = await existing_path(store, space, path)
    listed = await translate_errors(store.replica(space).list())
    size = sum(seen.size for name, seen in listed.items() if name == path or name.startswith(f"{path}/"))
    await check_quota(call, target, size)
    quota = call.context.storage_quota
    async with quota.reserve(call.account, size) if quota else nullcontext():
        await translate_errors(store.copy(space, path, target))
    return await _describe(call, target)


def _paths(call: ApiCall[WorkspaceMoveRequest, NoContent]) -> tuple[str, str]:
    path, target = plain_path(call.body.path, "/path"), plain_path(call.body.to, "/to")
    for pointer, one in (("/path", path), ("/to", target)):
        if one == ".":
            raise invalid_field(pointer, "name a file or directory below the workspace")
    if target == path or target.startswith(f"{path}/"):
        raise invalid_field("/to", "a file or directory cannot be put into itself")
    return path, target


async def search_files(call: ApiCall[WorkspaceSearchRequest, NoContent]) -> WorkspaceSearchResponse:
    """Search for a literal text, by names, or both."""
    path = plain_path(call.body.path, "/path")
    query = WorkspaceQuery(**(call.body.model_dump() | {"path": path}))
    try:
        workspace_search.check(query)
    except ValueError as error:
        is_text = "\n" in query.text or not query.glob
        raise invalid_field("/text" if is_text else "/glob", str(error)) from None
    store, space = await workspace_store(call)
    found = await translate_errors(workspace_search.search(store, space, query))
    items = [WorkspaceMatchResponse(path=one.path, line=one.line, text=one.text) for one in found.matches]
    return WorkspaceSearchResponse(items=items, files=found.files, truncated=found.truncated)


ROUTES = (
    ApiRoute(
        method="GET",
        path=f"{COLLECTION_PATH}:stat",
        access=KeyAccess("read"),
        handler=stat_file,
        summary="describe a file or directory",
        query_model=WorkspacePathQuery,
        response_model=WorkspaceFileResponse,
        tag="workspaces",
    ),
    ApiRoute(
        method="POST",
        path=f"{COLLECTION_PATH}:mkdir",
        access=KeyAccess("admin"),
        handler=make_directory,
        summary="create a directory",
        request_model=WorkspaceMkdirRequest,
        response_model=WorkspaceFileResponse,
        error_responses={409: "there is a file at this path"},
        tag="workspaces",
    ),
    ApiRoute(
        method="POST",
        path=f"{COLLECTION_PATH}:rename",
        access=KeyAccess("admin"),
        handler=rename_file,
        summary="rename a file or directory",
        request_model=WorkspaceMoveRequest,
        response_model=WorkspaceFileResponse,
        error_responses={409: "there is a file or directory at the new path"},
        tag="workspaces",
    ),
    ApiRoute(
        method="POST",
        path=f"{COLLECTION_PATH}:copy",
        access=KeyAccess("admin"),
        handler=copy_file,
        summary="copy a file or directory",
        request_model=WorkspaceMoveRequest,
        response_model=WorkspaceFileResponse,
        error_responses={
            409: "there is a file or directory at the new path",
            413: "the workspace or the account's storage is full",
        },
        tag="workspaces",
    ),
    ApiRoute(
        method="POST",
        path=f"{COLLECTION_PATH}:search",
        access=KeyAccess("read"),
        handler=search_files,
        summary="search a workspace's files",
        request_model=WorkspaceSearchRequest,
        response_model=WorkspaceSearchResponse,
        tag="workspaces",
    ),
)

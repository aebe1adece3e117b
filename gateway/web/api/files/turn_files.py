"""The files that a turn's workspaces held at its end, and those that the turn changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from aiohttp import web

from gateway.files.turn_trees import TurnTree
from gateway.store.turns import turns as store
from gateway.store.turns.turns import Turn
from gateway.web.api.files.ranges import content_response
from gateway.web.api.files.workspace_files import DOWNLOAD_HEADERS
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, ResponseModel


class TurnFileResponse(ResponseModel):
    """A file at the end of a turn; `archived`: it is in the turn's archive."""

    path: str
    size: int
    modified: datetime
    change: Literal["added", "modified", "deleted"] | None
    workspace: str
    archived: bool
    kind: Literal["file", "link"]


class TurnArchiveResponse(ResponseModel):
    """A link to the archive that needs no key, until it expires."""

    url: str
    size: int
    sha256: str | None
    expires: datetime


class TurnFilesResponse(ResponseModel):
    """The tree of a turn, changed files first; `kept` false: the turn changed nothing, or it expired."""

    files: list[TurnFileResponse]
    truncated: bool
    kept: bool
    archive: TurnArchiveResponse | None = None


async def require_turn(call: ApiCall[NoContent, NoContent]) -> Turn:
    """Return the turn of a request; 404 if the account has none of this id."""
    async with call.context.database.read() as connection:
        turn = await store.get(connection, call.account, call.path["id"])
    if turn is None:
        raise not_found("there is no such turn in this account")
    return turn


async def list_turn_files(call: ApiCall[NoContent, NoContent]) -> TurnFilesResponse:
    """Return the files of a turn with what changed."""
    turn = await require_turn(call)
    services = call.services.file_services
    tree, row = await services.collector.trees.load(turn), await services.collector.trees.archive_row(turn)
    files = (tree or TurnTree()).files
    return TurnFilesResponse(
        files=[TurnFileResponse.model_validate(one, from_attributes=True) for one in files],
        truncated=tree is not None and tree.truncated,
        kept=tree is not None,
        archive=_link(services.links.to_response(row)) if row is not None else None,
    )


def _link(shape: dict[str, Any]) -> TurnArchiveResponse:
    return TurnArchiveResponse.model_validate(
        {name: shape[name] for name in TurnArchiveResponse.model_fields}
    )


async def download_turn_files(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Return a gzip tar of the files that a turn added or modified, or a range of its bytes."""
    turn = await require_turn(call)
    services = call.services.file_services
    row = await services.collector.trees.archive_row(turn)
    content = await services.file_store.read_blob(row.sha256) if row and row.sha256 else None
    if content is None:
        raise not_found("this turn has no archive: it changed no file, or the archive has expired")
    headers = DOWNLOAD_HEADERS | {
        "Content-Type": "application/gzip",
        "Content-Disposition": f'attachment; filename="{turn.id}.tar.gz"',
    }
    return content_response(call.request, content, headers)


ROUTES = (
    ApiRoute(
        method="GET",
        path="/turns/{id}/files",
        access=KeyAccess("read"),
        handler=list_turn_files,
        summary="list the files of a turn's workspaces at its end, with what the turn changed",
        response_model=TurnFilesResponse,
        tag="turns",
    ),
    ApiRoute(
        method="GET",
        path="/turns/{id}/files.tar.gz",
        access=KeyAccess("read"),
        handler=download_turn_files,
        summary="download the files that a turn added or modified",
        media_type="application/gzip",
        tag="turns",
    ),
)

"""Put the files of a turn's workspaces back as they were at its end, and show what a turn changed in them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import Field, StrictBool, StrictStr

from gateway.environments.environment import Environment
from gateway.environments.quotas import quota_problem
from gateway.files import turn_contents
from gateway.files.turn_contents import FilePlace, RestoreResult, StoredFile, TurnContents
from gateway.files.turn_trees import ADDED, DELETED, TreeFile, TurnTree
from gateway.web.api.files.turn_files import require_turn
from gateway.web.api.files.workspace_files import DOWNLOAD_HEADERS, translate_errors
from gateway.web.api.turn_continue import find_turn_with_agent
from gateway.web.http.auth import KeyAccess
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel
from sandbox.errors import SandboxError

MAX_PATHS = 1000

NO_TREE = "nothing is stored of this turn's files: it changed none, or they have expired"


class TurnRestoreRequest(RequestModel):
    """What to put back: all files, or some; `remove`: also remove files that the turn did not have."""

    paths: Annotated[
        list[Annotated[StrictStr, Field(min_length=1, max_length=4096)]] | None,
        Field(max_length=MAX_PATHS, description="relative to the workspace; all files if left out"),
    ] = None
    workspace: Annotated[StrictStr, Field(max_length=200, description="all workspaces if left out")] = ""
    remove: StrictBool = False


class RestoredFileResponse(ResponseModel):
    """A file that was written or removed, or whose content at the turn's end is not stored."""

    path: str
    workspace: str
    state: Literal["restored", "removed", "missing"]


class TurnRestored(ResponseModel):
    """What a restore did; `unchanged` files had their content already."""

    items: list[RestoredFileResponse]
    unchanged: int


async def restore_turn(call: ApiCall[TurnRestoreRequest, NoContent]) -> TurnRestored:
    """Write files as the turn left them; raises 409 if nothing is stored of them."""
    body = call.body
    if body.remove and body.paths is not None:
        raise invalid_field("/remove", "removes what a whole tree does not have: leave paths out")
    turn, agent = await find_turn_with_agent(call)
    tree = await call.services.file_services.collector.trees.load(turn)
    if tree is None:
        raise HttpProblem(409, NO_TREE)
    if body.remove and tree.truncated:
        raise HttpProblem(409, "this turn's list of files is not complete: restore without remove")
    wanted = _choose(body, tree)
    contents = await _contents(call).load(turn, wanted)
    try:
        environments = await call.services.environment_resolver.resolve_all(
            agent, turn.conversation, person=turn.asker
        )
    except SandboxError as error:
        raise HttpProblem(409, f"the turn's workspaces cannot be used: {error}") from None
    return await _restore_all(call, wanted, contents, environments)


def _choose(body: TurnRestoreRequest, tree: TurnTree) -> Sequence[TreeFile]:
    files = [one for one in tree.files if one.change != DELETED]
    if body.workspace:
        files = [one for one in files if one.workspace == body.workspace]
        if not files:
            known = ", ".join(sorted({one.workspace for one in tree.files}))
            raise invalid_field("/workspace", f"the turn has files in: {known}")
    if body.paths is None:
        return files
    unknown = set(body.paths) - {one.path for one in files}
    if unknown:
        raise invalid_field("/paths", f"the turn had no file {min(unknown)!r} at its end")
    return [one for one in files if one.path in body.paths]


async def _restore_all(
    call: ApiCall[TurnRestoreRequest, NoContent],
    wanted: Sequence[TreeFile],
    contents: Mapping[FilePlace, StoredFile],
    environments: Mapping[str, Environment],
) -> TurnRestored:
    places = {name or one.workspace or "": one for name, one in environments.items()}
    items, unchanged = list[RestoredFileResponse](), 0
    for workspace in sorted({one.workspace for one in wanted}):
        if (place := places.get(workspace)) is None or place.spec.read_only:
            raise HttpProblem(409, f"the agent of this turn no longer writes to the workspace {workspace!r}")
        files = [one for one in wanted if one.workspace == workspace]
        done = await _restore_one(call, place, files, contents)
        items += _to_items(workspace, done)
        unchanged += len(done.unchanged)
    return TurnRestored(items=items, unchanged=unchanged)


async def _restore_one(
    call: ApiCall[TurnRestoreRequest, NoContent],
    place: Environment,
    files: Sequence[TreeFile],
    contents: Mapping[FilePlace, StoredFile],
) -> RestoreResult:
    if call.context.workspaces is None:
        raise HttpProblem(503, "this process has no workspace store")
    store, space = call.context.workspaces.store, place.spec.namespace
    size = sum(len(kept.content) for (name, _), kept in contents.items() if name == files[0].workspace)
    await _check_quota(call, place, size)
    quota = call.context.storage_quota
    async with quota.reserve(call.account, size) if quota else nullcontext():
        return await translate_errors(
            turn_contents.restore(store, space, files, contents, remove_others=call.body.remove)
        )


async def _check_quota(call: ApiCall[Any, Any], place: Environment, size: int) -> None:
    """Raise 413 if the workspace cannot hold the restored files beside what it holds."""
    if call.context.workspaces is None:
        return
    async with call.context.database.read() as connection:
        record = await call.context.records.get(connection, call.account, "workspace", place.workspace or "")
        limit = await call.context.quotas.limit(connection, call.context.records, record)
    if limit is not None:
        store, space = call.context.workspaces.store, place.spec.namespace
        against = await translate_errors(quota_problem(store, space, limit, "", size))
        if against is not None:
            raise HttpProblem(413, against)


def _to_items(workspace: str, done: RestoreResult) -> list[RestoredFileResponse]:
    by_state: tuple[tuple[Literal["restored", "removed", "missing"], Sequence[str]], ...] = (
        ("restored", done.restored),
        ("removed", done.removed),
        ("missing", done.missing),
    )
    return [
        RestoredFileResponse(path=path, workspace=workspace, state=state)
        for state, paths in by_state
        for path in paths
    ]


async def diff_turn(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Return a unified diff of the text files that a turn changed."""
    turn = await require_turn(call)
    tree = await call.services.file_services.collector.trees.load(turn)
    if tree is None:
        raise not_found(NO_TREE)
    changed = [one for one in tree.files if one.change]
    contents = _contents(call)
    after = await contents.load(turn, [one for one in changed if one.change != DELETED])
    before = await contents.before(turn, [one for one in changed if one.change != ADDED])
    text = await asyncio.to_thread(turn_contents.unified_diff, changed, before, after)
    headers = DOWNLOAD_HEADERS | {"Content-Type": "text/x-diff; charset=utf-8"}
    return web.Response(body=text.encode("utf-8", "replace"), headers=headers)


def _contents(call: ApiCall[Any, Any]) -> TurnContents:
    services = call.services.file_services
    return TurnContents(services.collector.trees, services.file_store)


ROUTES = (
    ApiRoute(
        method="POST",
        path="/turns/{id}/restore",
        access=KeyAccess("admin"),
        handler=restore_turn,
        summary="put the files of a turn's workspaces back as they were at its end",
        request_model=TurnRestoreRequest,
        response_model=TurnRestored,
        optional_body=True,
        error_responses={
            409: "nothing is stored of the turn's files, or its workspaces are gone",
            413: "the workspace or the account's storage is full",
        },
        tag="turns",
    ),
    ApiRoute(
        method="GET",
        path="/turns/{id}/files.diff",
        access=KeyAccess("read"),
        handler=diff_turn,
        summary="show what a turn changed in text files",
        media_type="text/x-diff",
        tag="turns",
    ),
)

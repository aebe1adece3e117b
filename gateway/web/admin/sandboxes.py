"""Live sandboxes over HTTP: shown, used by hand, put to sleep, removed, swept up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StrictStr

from delivery.database.clock import utc_now
from gateway.maintenance.sandbox_control import id_of
from gateway.store.accounts import records
from gateway.tools.bash import COMMAND_LIMIT, shape_of
from gateway.tools.services import shape_of as service_shape
from gateway.web.http.auth import Key
from gateway.web.http.pagination import Items, Page, cut
from gateway.web.http.problems import Problem, misplaced, not_found
from gateway.web.http.route import Call, Nothing, Route, Shown, Strict
from sandbox.errors import Busy, Gone, Refused, SandboxError, Unreachable, Unsafe, Unsupported
from sandbox.lifecycle.reservations import Reservation
from sandbox.model import Command

LONGEST = 600.0


class SandboxShown(Shown):
    """A live sandbox: what it belongs to, what it is doing, and how long it has been active."""

    id: str
    name: str
    state: str
    paused: bool
    provider: str
    provider_id: str | None
    scope: str
    persistent: bool
    record: str | None
    workspace: str | None
    conversation: str
    boot: int
    seconds: float
    snapshot: bool
    made_at: datetime | None
    used_at: datetime


class NewRun(Strict):
    """A command to run by hand: bash, in the workspace."""

    command: Annotated[StrictStr, Field(min_length=1, max_length=COMMAND_LIMIT)]
    timeout: Annotated[float, Field(gt=0, le=LONGEST)] = 120.0


class RunShown(Shown):
    """What came of a command."""

    ok: bool
    runtime: str
    exit_code: int
    timed_out: bool
    duration_ms: int
    stdout: str
    stderr: str
    truncated: bool = False


class ServiceShown(Shown):
    """A service of a sandbox: how often it was started, and how often its command ended by itself."""

    name: str
    state: str
    ends: int
    starts: int
    started_again_with_its_sandbox: bool = False
    port: int | None = None
    ready: bool | None = None
    exit_code: int | None = None
    again_in_seconds: int | None = None


class ServicesShown(Shown):
    """The services of a sandbox."""

    items: list[ServiceShown]


class Swept(Shown):
    """How many sandboxes and snapshots without an owner were removed."""

    orphans: int


def shown(row: Reservation, names: Mapping[str | None, str]) -> SandboxShown:
    """Return a sandbox as its owner sees it, by the name of its record."""
    asleep = "suspended" if row.paused else "cold" if row.is_cold else "active"
    return SandboxShown(
        id=id_of(row.label),
        name=names.get(row.owner.record, ""),
        state=asleep if row.status == "ready" else str(row.status),
        paused=row.paused,
        provider=row.provider,
        provider_id=row.sandbox,
        scope=str(row.owner.scope),
        persistent=row.persistent,
        record=row.owner.record,
        workspace=row.owner.workspace,
        conversation=row.owner.conversation,
        boot=row.boot,
        seconds=round(row.seconds_at(utc_now()), 3),
        snapshot=row.snapshot is not None,
        made_at=row.made_at,
        used_at=row.used_at,
    )


@asynccontextmanager
async def _explained() -> AsyncIterator[None]:
    """Answer what a provider says as HTTP says it."""
    try:
        yield
    except Gone as error:
        raise not_found(str(error)) from error
    except Busy as error:
        raise Problem(409, str(error), headers={"Retry-After": "60"}) from error
    except (Refused, Unsupported) as error:
        raise Problem(409, str(error)) from error
    except Unsafe as error:
        raise misplaced("/command", str(error)) from error
    except Unreachable as error:
        raise Problem(503, "the sandbox does not answer; try again", headers={"Retry-After": "5"}) from error
    except SandboxError as error:
        raise Problem(502, "the sandbox's provider refuses the gateway") from error


async def _found(call: Call[Nothing, Nothing] | Call[NewRun, Nothing]) -> Reservation:
    row = await call.core.sandboxes.find(call.account, call.path["id"])
    if row is None:
        raise not_found("there is no such sandbox in this account")
    return row


async def _names(call: Call[Any, Any]) -> Mapping[str | None, str]:
    async with call.surface.database.read() as connection:
        found = await records.list_of(connection, call.account, "sandbox")
    return {record.id: record.name for record in found}


async def list_sandboxes(call: Call[Nothing, Page]) -> Items[SandboxShown]:
    """List the account's live sandboxes."""
    rows = await call.core.sandboxes.listed(call.account, after=call.query.after, limit=call.query.limit + 1)
    names = await _names(call)
    page, following = cut([shown(row, names) for row in rows], call.query.limit)
    return Items[SandboxShown](items=list(page), next=following)


async def show_sandbox(call: Call[Nothing, Nothing]) -> SandboxShown:
    """Return one sandbox."""
    return shown(await _found(call), await _names(call))


async def run_in(call: Call[NewRun, Nothing]) -> RunShown:
    """Run a command in a sandbox, waking it."""
    row = await _found(call)
    command = Command(script=call.body.command, timeout=call.body.timeout, output_limit=COMMAND_LIMIT * 4)
    async with _explained():
        return RunShown.model_validate(shape_of(await call.core.sandboxes.run_in(row, command)))


async def services_in(call: Call[Nothing, Nothing]) -> ServicesShown:
    """List the services of a sandbox, waking it."""
    row = await _found(call)
    async with _explained():
        every = await call.core.sandboxes.services_in(row)
    return ServicesShown(items=[ServiceShown.model_validate(service_shape(one)) for one in every])


async def suspend(call: Call[Nothing, Nothing]) -> SandboxShown:
    """Put a sandbox to sleep; its next use wakes it."""
    row = await _found(call)
    async with _explained():
        await call.core.sandboxes.suspend(row)
    return shown(await _found(call), await _names(call))


async def remove(call: Call[Nothing, Nothing]) -> None:
    """Delete a sandbox with its jobs and snapshots; the workspace's files stay."""
    row = await _found(call)
    async with _explained():
        await call.core.sandboxes.remove(row)


async def sweep(call: Call[Nothing, Nothing]) -> Swept:
    """Remove sandboxes of this gateway that belong to nobody any more."""
    async with _explained():
        return Swept(orphans=await call.core.sandboxes.sweep())


_ONE = "/sandboxes/{id}"
_IN_USE = {409: "it is in use, or a job runs in it", 503: "its provider does not answer"}
ROUTES = (
    Route(
        method="GET",
        path="/sandboxes",
        access=Key("read"),
        handler=list_sandboxes,
        summary="list the live sandboxes",
        query=Page,
        gives=Items[SandboxShown],
        tag="live sandboxes",
    ),
    Route(
        method="GET",
        path=_ONE,
        access=Key("read"),
        handler=show_sandbox,
        summary="show a live sandbox",
        gives=SandboxShown,
        tag="live sandboxes",
    ),
    Route(
        method="POST",
        path=f"{_ONE}/exec",
        access=Key("admin"),
        handler=run_in,
        summary="run a command in a sandbox",
        takes=NewRun,
        gives=RunShown,
        also=_IN_USE,
        tag="live sandboxes",
    ),
    Route(
        method="GET",
        path=f"{_ONE}/services",
        access=Key("admin"),
        handler=services_in,
        summary="list the services of a sandbox, waking it",
        gives=ServicesShown,
        also=_IN_USE,
        tag="live sandboxes",
    ),
    Route(
        method="POST",
        path=f"{_ONE}/stop",
        access=Key("admin"),
        handler=suspend,
        summary="put a sandbox to sleep",
        gives=SandboxShown,
        also=_IN_USE,
        tag="live sandboxes",
    ),
    Route(
        method="DELETE",
        path=_ONE,
        access=Key("admin"),
        handler=remove,
        summary="delete a sandbox with its jobs and snapshots",
        status=204,
        also=_IN_USE,
        tag="live sandboxes",
    ),
    Route(
        method="POST",
        path="/sandboxes/sweep",
        access=Key("admin"),
        handler=sweep,
        summary="remove sandboxes that belong to nobody any more",
        gives=Swept,
        tag="live sandboxes",
    ),
)
"""What the table takes over."""

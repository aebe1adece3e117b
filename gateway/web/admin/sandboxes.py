"""Live sandboxes over HTTP: list, run a command, suspend, delete, and remove orphans."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr

from delivery.database.clock import utc_now
from gateway.accounts.view_links import DEFAULT_MINUTES, DESKTOP_PORT, MAX_MINUTES
from gateway.maintenance.sandbox_control import sandbox_id
from gateway.store.accounts import records
from gateway.tools.builtin import bash
from gateway.tools.builtin.bash import MAX_COMMAND_BYTES
from gateway.tools.builtin.services import to_response as service_shape
from gateway.web.http.auth import KeyAccess
from gateway.web.http.pagination import ListPage, PageQuery, paginate
from gateway.web.http.problems import HttpProblem, invalid_field, not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent, RequestModel, ResponseModel
from sandbox.errors import (
    FeatureUnsupported,
    ProviderRefused,
    ProviderUnreachable,
    SandboxBusy,
    SandboxError,
    SandboxGone,
    UnsafePath,
)
from sandbox.labels import Scope
from sandbox.lifecycle.reservations import Reservation, ReservationStatus
from sandbox.lifecycle.services import ServiceState
from sandbox.model import ExecRequest

MAX_TIMEOUT = 600.0
SandboxState = Literal["creating", "active", "suspended", "cold"]


class SandboxResponse(ResponseModel):
    """A live sandbox: its owner, its state and the seconds it was active.

    `waiting_jobs`: so many jobs run in it as it was made; when they have ended, its changed record counts.
    """

    id: str
    name: str
    state: SandboxState
    paused: bool
    provider: str
    provider_id: str | None
    scope: Scope
    persistent: bool
    record: str | None
    workspace: str | None
    conversation: str
    boot: int
    seconds: float
    snapshot: bool
    waiting_jobs: int
    made_at: datetime | None
    used_at: datetime


class RunCreate(RequestModel):
    """A bash command to run in the workspace."""

    command: Annotated[StrictStr, Field(min_length=1, max_length=MAX_COMMAND_BYTES)]
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT)] = 120.0


class RunResponse(ResponseModel):
    """The result of a command."""

    ok: bool
    runtime: str
    exit_code: int
    timed_out: bool
    duration_ms: int
    stdout: str
    stderr: str
    truncated: bool = False


class ServiceResponse(ResponseModel):
    """A service of a sandbox: how often it was started, and how often its command exited."""

    name: str
    state: ServiceState
    ends: int
    starts: int
    started_again_with_its_sandbox: bool = False
    port: int | None = None
    ready: bool | None = None
    exit_code: int | None = None
    again_in_seconds: int | None = None


class ServiceListResponse(ResponseModel):
    """The services of a sandbox."""

    items: list[ServiceResponse]


class ViewCreate(RequestModel):
    """How long a link to the sandbox's desktop is valid, and the port of the desktop."""

    minutes: Annotated[StrictInt, Field(ge=1, le=MAX_MINUTES)] = DEFAULT_MINUTES
    port: Annotated[StrictInt, Field(ge=1, le=65535)] = DESKTOP_PORT


class ViewResponse(ResponseModel):
    """A link to the desktop of a sandbox, and when it expires."""

    url: str
    expires: datetime


class SweepResponse(ResponseModel):
    """How many sandboxes and snapshots without an owner were removed."""

    orphans: int


async def _to_responses(call: ApiCall[Any, Any], rows: Sequence[Reservation]) -> list[SandboxResponse]:
    names = await _record_names(call)
    waiting = await call.services.sandbox_control.count_waiting_jobs(call.account, rows)
    return [to_response(row, names, waiting.get(row.label, 0)) for row in rows]


def to_response(row: Reservation, names: Mapping[str | None, str], waiting_jobs: int) -> SandboxResponse:
    """Return a sandbox as a response, with the name of its record."""
    return SandboxResponse(
        id=sandbox_id(row.label),
        name=names.get(row.owner.record, ""),
        state=_state_of(row),
        paused=row.paused,
        provider=row.provider,
        provider_id=row.sandbox,
        scope=row.owner.scope,
        persistent=row.persistent,
        record=row.owner.record,
        workspace=row.owner.workspace,
        conversation=row.owner.conversation,
        boot=row.boot,
        seconds=round(row.seconds_at(utc_now()), 3),
        snapshot=row.snapshot is not None,
        waiting_jobs=waiting_jobs,
        made_at=row.made_at,
        used_at=row.used_at,
    )


@asynccontextmanager
async def _translate_errors() -> AsyncIterator[None]:
    """Translate a provider's errors into HTTP problems."""
    try:
        yield
    except SandboxGone as error:
        raise not_found(str(error)) from error
    except SandboxBusy as error:
        raise HttpProblem(409, str(error), headers={"Retry-After": "60"}) from error
    except (ProviderRefused, FeatureUnsupported) as error:
        raise HttpProblem(409, str(error)) from error
    except UnsafePath as error:
        raise invalid_field("/command", str(error)) from error
    except ProviderUnreachable as error:
        raise HttpProblem(
            503, "the sandbox does not answer; try again", headers={"Retry-After": "5"}
        ) from error
    except SandboxError as error:
        raise HttpProblem(502, "the sandbox's provider refuses the gateway") from error


async def _require_sandbox(
    call: ApiCall[NoContent, NoContent] | ApiCall[RunCreate, NoContent] | ApiCall[ViewCreate, NoContent],
) -> Reservation:
    row = await call.services.sandbox_control.get(call.account, call.path["id"])
    if row is None:
        raise not_found("there is no such sandbox in this account")
    return row


async def _record_names(call: ApiCall[Any, Any]) -> Mapping[str | None, str]:
    async with call.context.database.read() as connection:
        found = await records.list_by_kind(connection, call.account, "sandbox")
    return {record.id: record.name for record in found}


def _state_of(row: Reservation) -> SandboxState:
    if row.status is ReservationStatus.CREATING:
        return "creating"
    return "suspended" if row.paused else "cold" if row.is_stopped else "active"


async def list_sandboxes(call: ApiCall[NoContent, PageQuery]) -> ListPage[SandboxResponse]:
    """List the account's live sandboxes."""
    rows = await call.services.sandbox_control.list(
        call.account, after=call.query.after, limit=call.query.limit + 1
    )
    page, following = paginate(await _to_responses(call, rows), call.query.limit)
    return ListPage[SandboxResponse](items=list(page), next=following)


async def get_sandbox(call: ApiCall[NoContent, NoContent]) -> SandboxResponse:
    """Return one sandbox."""
    (found,) = await _to_responses(call, [await _require_sandbox(call)])
    return found


async def run_command(call: ApiCall[RunCreate, NoContent]) -> RunResponse:
    """Run a command in a sandbox; resumes a suspended one."""
    row = await _require_sandbox(call)
    command = ExecRequest(
        script=call.body.command, timeout=call.body.timeout, output_limit=MAX_COMMAND_BYTES * 4
    )
    async with _translate_errors():
        return RunResponse.model_validate(
            bash.to_response(await call.services.sandbox_control.run_command(row, command))
        )


async def list_services(call: ApiCall[NoContent, NoContent]) -> ServiceListResponse:
    """List the services of a sandbox; resumes a suspended one."""
    row = await _require_sandbox(call)
    async with _translate_errors():
        every = await call.services.sandbox_control.list_services(row)
    return ServiceListResponse(items=[ServiceResponse.model_validate(service_shape(one)) for one in every])


async def create_view(call: ApiCall[ViewCreate, NoContent]) -> ViewResponse:
    """Return a link to the desktop of a sandbox that is awake; it ends with the key that requested it."""
    row, links = await _require_sandbox(call), call.services.environment_resolver.view_links
    if links is None:
        raise HttpProblem(503, "this process has no live views")
    async with _translate_errors():
        await call.services.sandbox_control.expose(row, call.body.port)
    url, expires = links.issue(
        call.account,
        sandbox_id(row.label),
        port=call.body.port,
        minutes=call.body.minutes,
        now=utc_now(),
        key=call.principal.key,
    )
    return ViewResponse(url=url, expires=expires)


async def suspend(call: ApiCall[NoContent, NoContent]) -> SandboxResponse:
    """Suspend a sandbox; its next use resumes it."""
    row = await _require_sandbox(call)
    async with _translate_errors():
        await call.services.sandbox_control.suspend(row)
    (found,) = await _to_responses(call, [await _require_sandbox(call)])
    return found


async def delete_sandbox(call: ApiCall[NoContent, NoContent]) -> None:
    """Delete a sandbox with its jobs and snapshots, but not the workspace's files."""
    row = await _require_sandbox(call)
    async with _translate_errors():
        await call.services.sandbox_control.delete(row)


async def sweep(call: ApiCall[NoContent, NoContent]) -> SweepResponse:
    """Delete sandboxes and snapshots of this gateway that have no owner."""
    async with _translate_errors():
        return SweepResponse(orphans=await call.services.sandbox_control.sweep())


_SANDBOX_PATH = "/sandboxes/{id}"
_PROVIDER_ERRORS = {409: "it is in use, or a job is running in it", 503: "its provider does not answer"}
ROUTES = (
    ApiRoute(
        method="GET",
        path="/sandboxes",
        access=KeyAccess("read"),
        handler=list_sandboxes,
        summary="list the live sandboxes",
        query_model=PageQuery,
        response_model=ListPage[SandboxResponse],
        tag="live sandboxes",
    ),
    ApiRoute(
        method="GET",
        path=_SANDBOX_PATH,
        access=KeyAccess("read"),
        handler=get_sandbox,
        summary="show a live sandbox",
        response_model=SandboxResponse,
        tag="live sandboxes",
    ),
    ApiRoute(
        method="POST",
        path=f"{_SANDBOX_PATH}/exec",
        access=KeyAccess("admin"),
        handler=run_command,
        summary="run a command in a sandbox",
        request_model=RunCreate,
        response_model=RunResponse,
        error_responses=_PROVIDER_ERRORS,
        tag="live sandboxes",
    ),
    ApiRoute(
        method="GET",
        path=f"{_SANDBOX_PATH}/services",
        access=KeyAccess("admin"),
        handler=list_services,
        summary="list the services of a sandbox, which resumes it",
        response_model=ServiceListResponse,
        error_responses=_PROVIDER_ERRORS,
        tag="live sandboxes",
    ),
    ApiRoute(
        method="POST",
        path=f"{_SANDBOX_PATH}/views",
        access=KeyAccess("admin"),
        handler=create_view,
        summary="create a link to the desktop of a sandbox",
        request_model=ViewCreate,
        response_model=ViewResponse,
        status=201,
        optional_body=True,
        error_responses=_PROVIDER_ERRORS,
        tag="live sandboxes",
    ),
    ApiRoute(
        method="POST",
        path=f"{_SANDBOX_PATH}/stop",
        access=KeyAccess("admin"),
        handler=suspend,
        summary="suspend a sandbox",
        response_model=SandboxResponse,
        error_responses=_PROVIDER_ERRORS,
        tag="live sandboxes",
    ),
    ApiRoute(
        method="DELETE",
        path=_SANDBOX_PATH,
        access=KeyAccess("admin"),
        handler=delete_sandbox,
        summary="delete a sandbox with its jobs and snapshots",
        status=204,
        error_responses=_PROVIDER_ERRORS,
        tag="live sandboxes",
    ),
    ApiRoute(
        method="POST",
        path="/sandboxes/sweep",
        access=KeyAccess("admin"),
        handler=sweep,
        summary="delete sandboxes without an owner",
        response_model=SweepResponse,
        tag="live sandboxes",
    ),
)
"""The routes of this module."""

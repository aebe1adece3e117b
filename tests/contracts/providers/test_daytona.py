"""Daytona's own rules: how its errors map, which requests it gets, and how a stopped sandbox starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from creation_refusals import CreationRefusals
from daytona_service import API_KEY, DaytonaService, daytona_service
from sandbox.config import SandboxConfig, problems
from sandbox.daytona import plugin
from sandbox.errors import (
    CommandInterrupted,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxGone,
)
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, Network, SandboxSpec
from sandbox.port import CallbackDirectories, Provider, ProviderContext, Sandbox


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[DaytonaService]:
    """Run a service."""
    async with daytona_service(tmp_path / "service") as running:
        yield running


def _open(service: DaytonaService, tmp_path: Path, **changes: Any) -> Any:
    provider_context = ProviderContext(
        state=tmp_path / "state",
        callbacks=CallbackDirectories(root=tmp_path / "callbacks"),
        callback_url="https://bots.example",
    )
    given = {"api_key": API_KEY, "api_url": service.url} | changes
    return plugin.open(plugin.settings.model_validate(given), provider_context)


@pytest.fixture
async def provider(service: DaytonaService, tmp_path: Path) -> AsyncIterator[Provider]:
    """Open the provider."""
    async with _open(service, tmp_path) as provider:
        yield provider


def _spec(**changes: Any) -> SandboxSpec:
    fields: dict[str, Any] = {"label": "dovecote-1", "namespace": "space", "persistent": True}
    return SandboxSpec(**fields | changes)


async def test_a_stopped_sandbox_is_started_by_the_next_call(
    provider: Provider, service: DaytonaService
) -> None:
    """Stopped by us, by its idle timer or archived, the next call starts it; the files are there."""
    sandbox = await provider.create(_spec())
    await sandbox.run(ExecRequest(script="echo kept > file"))
    await sandbox.suspend()
    assert service.machines[sandbox.id].state == "stopped"
    assert (await sandbox.run(ExecRequest(script="cat file"))).stdout == b"kept\n"
    await service.stop(sandbox.id)
    service.machines[sandbox.id].state = "archived"
    assert await sandbox.read("file", limit=10) == b"kept\n"


async def _begin_command(provider: Provider, service: DaytonaService) -> tuple[Sandbox, asyncio.Task[Any]]:
    """Begin a command that notes each of its runs; only the first does not end."""
    sandbox = await provider.create(_spec())
    script = "echo ran >> notes; [ $(wc -l < notes) = 2 ] || sleep 600"
    running = asyncio.create_task(sandbox.run(ExecRequest(script=script, timeout=900)))
    notes = service.machines[sandbox.id].process_host.directory / "mnt" / "workspaces" / "space" / "notes"
    async with asyncio.timeout(30):
        while not notes.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    return sandbox, running


async def test_a_command_whose_sandbox_stops_is_not_repeated(
    provider: Provider, service: DaytonaService
) -> None:
    """Its error says that it may have run, and the next command finds the sandbox started."""
    sandbox, running = await _begin_command(provider, service)
    await service.stop(sandbox.id)
    with pytest.raises(ProviderUnreachable, match="may have run"):
        await running
    assert (await sandbox.run(ExecRequest(script="cat notes"))).stdout == b"ran\n"


async def test_a_command_that_was_not_answered_may_have_run(
    provider: Provider, service: DaytonaService
) -> None:
    """Its error says so also if the sandbox runs on, and not if the service refused the command."""
    sandbox = await provider.create(_spec())
    for service.toolbox_status, expected in ((502, True), (404, False)):
        with pytest.raises(ProviderUnreachable) as caught:
            await sandbox.run(ExecRequest(script="true"))
        assert ("may have run" in str(caught.value)) is expected


async def test_a_command_whose_sandbox_is_deleted_is_not_repeated(
    provider: Provider, service: DaytonaService
) -> None:
    """It is interrupted: a new sandbox is not given the command."""
    sandbox, running = await _begin_command(provider, service)
    await service.delete(sandbox.id)
    with pytest.raises(CommandInterrupted):
        await running


async def test_a_job_that_ended_with_its_machine_says_so(provider: Provider, service: DaytonaService) -> None:
    """A stop ends processes: the job is reported as recreated, never as running for ever."""
    sandbox = await provider.create(_spec())
    await sandbox.spawn(BackgroundJob(id="job_1", script="sleep 600", token="t"))
    await service.stop(sandbox.id)
    assert (await sandbox.report("job_1")).state is BackgroundJobState.RECREATED


async def test_the_idle_timer_is_off_while_a_job_runs(provider: Provider, service: DaytonaService) -> None:
    """Neither the gateway nor the service suspends a sandbox with a running job."""
    sandbox = await provider.create(_spec(idle_timeout=900))
    timers = service.machines[sandbox.id].timers
    assert timers["autoStopInterval"] == 30
    await sandbox.spawn(BackgroundJob(id="job_1", script="sleep 600", token="t"))
    assert timers["autoStopInterval"] == 0
    with pytest.raises(ProviderRefused):
        await sandbox.suspend()
    await sandbox.stop("job_1")
    await sandbox.report("job_1")
    assert timers["autoStopInterval"] == 30
    await sandbox.keep_alive(30)
    assert service.machines[sandbox.id].active == 1


async def test_a_deleted_sandbox_is_gone(provider: Provider, service: DaytonaService) -> None:
    """Deleted at the service, it is Gone for every call, and a new one can be made."""
    sandbox = await provider.create(_spec())
    await service.delete(sandbox.id)
    with pytest.raises(SandboxGone):
        await sandbox.run(ExecRequest(script="true"))
    with pytest.raises(SandboxGone):
        await provider.connect(sandbox.id, _spec())
    assert (await provider.create(_spec())).id != sandbox.id


async def test_a_missing_route_to_a_sandbox_does_not_end_its_jobs(
    provider: Provider, service: DaytonaService
) -> None:
    """The toolbox's proxy answers 404 or 410 while the control plane still has the sandbox."""
    sandbox = await provider.create(_spec())
    await sandbox.spawn(BackgroundJob(id="job", script="sleep 60", timeout=100, output_limit=100, token="t"))
    for service.toolbox_status in (404, 410, 502):
        with pytest.raises(ProviderUnreachable):
            await sandbox.report("job")
    service.toolbox_status = None
    assert (await sandbox.report("job")).state is BackgroundJobState.RUNNING


async def test_two_who_create_at_once_get_one_sandbox(provider: Provider, service: DaytonaService) -> None:
    """Of several sandboxes with one label one is kept, whichever process created it."""
    made = await asyncio.gather(*(provider.create(_spec()) for _ in range(3)))
    assert {sandbox.id for sandbox in made} == set(service.machines)
    assert len(service.machines) == 1


async def test_the_service_gets_the_settings(provider: Provider, service: DaytonaService) -> None:
    """Labels, timers, lifetime, and the network in each mode."""
    closed = await provider.create(_spec(label="closed", persistent=False, max_lifetime=7200))
    opened = await provider.create(_spec(label="opened", network=Network.ALLOW_ALL))
    some = await provider.create(
        _spec(
            label="some",
            network=Network.RESTRICTED,
            allow_domains=("pypi.org",),
            allow_cidrs=("192.0.2.0/24",),
        )
    )
    reported = {sandbox.id: service.machines[sandbox.id].asked for sandbox in (closed, opened, some)}
    assert reported[closed.id]["labels"]["dovecote-label"] == "closed"
    assert reported[closed.id]["ttlMinutes"] == 120
    assert (reported[closed.id]["autoDeleteInterval"], reported[opened.id]["autoDeleteInterval"]) == (0, -1)
    assert reported[closed.id]["networkBlockAll"] is True
    assert reported[opened.id]["networkBlockAll"] is False
    assert reported[some.id]["domainAllowList"] == "pypi.org,bots.example"
    assert reported[some.id]["networkAllowList"] == "192.0.2.0/24"


async def test_errors_are_folded(service: DaytonaService, tmp_path: Path) -> None:
    """A wrong key and a missing one are the operator's, a service that is down is tried again."""
    async with _open(service, tmp_path, api_key="dtn_canary") as provider:
        with pytest.raises(ProviderUnauthorized) as caught:
            await provider.create(_spec())
    assert "canary" not in str(caught.value)
    async with _open(service, tmp_path, api_key=None) as provider:
        with pytest.raises(ProviderUnauthorized, match="DAYTONA_API_KEY"):
            await provider.create(_spec())
    async with _open(service, tmp_path, api_url="http://127.0.0.1:9") as provider:
        with pytest.raises(ProviderUnreachable):
            await provider.create(_spec())
    async with _open(service, tmp_path) as provider:
        with pytest.raises(ProviderRefused, match="snapshot"):
            await provider.create(_spec(options={"snapshot": "not-allowed"}))
    assert "canary" not in repr(plugin.settings(api_key="dtn_canary"))


class TestDaytonaRefusals(CreationRefusals):
    """What the service will not create."""


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"options": {"image": "debian"}}, "/options/image"),
        ({"options": {"template": "base"}}, "/options/template"),
        ({"network": {"mode": "restricted"}}, "/network"),
        ({"persistent": True, "options": {"persistentHome": False}}, "/options/persistentHome"),
    ],
)
def test_what_it_cannot_do_is_said_beforehand(config: dict[str, Any], pointer: str) -> None:
    """A config that means nothing here is refused with its field and the remedy."""
    found = problems(SandboxConfig.model_validate({"provider": "daytona"} | config), plugin)
    assert [problem.pointer for problem in found] == [pointer]

"""E2B's own rules: how its errors map, which requests it gets, and how a paused sandbox is woken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from creation_refusals import CreationRefusals
from e2b_service import API_KEY, E2bService, Fault, e2b_service
from sandbox.config import SandboxConfig, problems
from sandbox.e2b import plugin
from sandbox.errors import (
    CommandInterrupted,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxGone,
)
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, Network, SandboxSpec
from sandbox.port import CallbackDirectories, Provider, ProviderContext


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[E2bService]:
    """Run a service."""
    async with e2b_service(tmp_path / "service") as running:
        yield running


def _open(service: E2bService, tmp_path: Path, **changes: Any) -> Any:
    given = {"api_key": API_KEY, "api_url": service.url, "sandbox_url": service.url, "http_version": "1.1"}
    provider_context = ProviderContext(
        state=tmp_path / "state",
        callbacks=CallbackDirectories(root=tmp_path / "callbacks"),
        callback_url="https://bots.example",
    )
    return plugin.open(plugin.settings.model_validate(given | changes), provider_context)


@pytest.fixture
async def provider(service: E2bService, tmp_path: Path) -> AsyncIterator[Provider]:
    """Open the provider."""
    async with _open(service, tmp_path) as provider:
        yield provider


def _spec(**changes: Any) -> SandboxSpec:
    fields: dict[str, Any] = {"label": "dovecote-1", "namespace": "space", "persistent": True}
    return SandboxSpec(**fields | changes)


async def test_a_paused_sandbox_wakes_with_its_processes(provider: Provider, service: E2bService) -> None:
    """After a pause by the gateway or the service, the next call resumes it, with its files and memory."""
    sandbox = await provider.create(_spec())
    await sandbox.run(ExecRequest(script="echo kept > file"))
    await sandbox.suspend()
    assert service.machines[sandbox.id].process_host.frozen
    assert (await sandbox.run(ExecRequest(script="cat file"))).stdout == b"kept\n"
    service.machines[sandbox.id].process_host.freeze(frozen=True)
    assert (await sandbox.run(ExecRequest(script="cat file"))).stdout == b"kept\n"


async def test_a_sandbox_with_a_running_job_is_not_paused(provider: Provider) -> None:
    """A pause would stop the job."""
    sandbox = await provider.create(_spec())
    await sandbox.spawn(BackgroundJob(id="job_1", script="sleep 30", token="t"))
    with pytest.raises(ProviderRefused):
        await sandbox.suspend()
    await sandbox.stop("job_1")
    await sandbox.suspend()
    assert (await sandbox.report("job_1")).state is BackgroundJobState.EXITED


async def test_a_killed_sandbox_is_gone(provider: Provider, service: E2bService) -> None:
    """Killed by its time-out or by hand, it is Gone for every call, and a new one can be made."""
    sandbox = await provider.create(_spec())
    await service.kill(sandbox.id)
    with pytest.raises(SandboxGone):
        await sandbox.run(ExecRequest(script="true"))
    with pytest.raises(SandboxGone):
        await provider.connect(sandbox.id, _spec())
    again = await provider.create(_spec())
    assert again.id != sandbox.id


async def _not_found(_request: web.Request) -> web.StreamResponse:
    return web.json_response({"code": "not_found", "message": "no such route"}, status=404)


async def _break(request: web.Request) -> web.StreamResponse:
    """Begin an answer and close the connection in the middle of a message."""
    response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
    await response.prepare(request)
    await response.write(b"\0\0\0\0\x20half")
    assert request.transport is not None
    request.transport.close()
    return response


async def _no_json(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>log in</html>", content_type="text/html")


@pytest.mark.parametrize("fault", [_not_found, _break, _no_json])
async def test_a_failing_connection_to_a_sandbox_does_not_end_its_jobs(
    provider: Provider, service: E2bService, fault: Fault
) -> None:
    """Whatever comes in place of an answer from inside, the control plane still has the sandbox."""
    sandbox = await provider.create(_spec())
    await sandbox.spawn(BackgroundJob(id="job", script="sleep 60", timeout=100, output_limit=100, token="t"))
    service.data_fault = fault
    with pytest.raises(ProviderUnreachable):
        await sandbox.report("job")
    service.data_fault = None
    assert (await sandbox.report("job")).state is BackgroundJobState.RUNNING


async def test_a_command_whose_sandbox_is_killed_is_interrupted(
    provider: Provider, service: E2bService
) -> None:
    """Gone alone would have the gateway run it a second time."""
    sandbox = await provider.create(_spec())

    async def kill(request: web.Request) -> web.StreamResponse:
        await service.kill(sandbox.id)
        return await _break(request)

    service.data_fault = kill
    with pytest.raises(CommandInterrupted):
        await sandbox.run(ExecRequest(script="echo sent"))


async def test_a_command_whose_stream_breaks_may_have_run(provider: Provider, service: E2bService) -> None:
    """The error says so; one about a program of ours does not, because it is repeated later."""
    sandbox = await provider.create(_spec())
    service.data_fault = _break
    with pytest.raises(ProviderUnreachable, match="the command may have run, check what it did"):
        await sandbox.run(ExecRequest(script="echo sent"))
    with pytest.raises(ProviderUnreachable) as report:
        await sandbox.report("job")
    assert "may have run" not in str(report.value)


async def test_a_command_that_may_have_run_is_not_repeated(provider: Provider, service: E2bService) -> None:
    """The stream ends as E2B ends it when the connection is lost, and a probe finds the sandbox running."""
    sandbox = await provider.create(_spec())
    started: list[bool] = []

    async def lose(request: web.Request) -> web.StreamResponse:
        started.append(b"echo sent" in await request.read())
        lost = {"code": "unavailable", "message": "the connection to the sandbox ended"}
        content = json.dumps({"error": lost}).encode()
        end_of_stream = b"\2" + len(content).to_bytes(4) + content
        return web.Response(body=end_of_stream, headers={"Content-Type": "application/connect+json"})

    service.data_fault = lose
    with pytest.raises(ProviderUnreachable, match="the command may have run, check what it did"):
        await sandbox.run(ExecRequest(script="echo sent"))
    assert started == [True, False], "the second one kills what may run"


async def test_two_who_create_at_once_get_one_sandbox(provider: Provider, service: E2bService) -> None:
    """Of several sandboxes with one label one is kept, whichever process created it."""
    made = await asyncio.gather(*(provider.create(_spec()) for _ in range(4)))
    assert {sandbox.id for sandbox in made} == set(service.machines)
    assert len(service.machines) == 1
    assert (await (await provider.create(_spec())).run(ExecRequest(script="echo one"))).stdout == b"one\n"


async def test_the_service_gets_the_settings(provider: Provider, service: E2bService) -> None:
    """Label, template, what becomes of it when it is not used, and the network in each mode."""
    closed = await provider.create(_spec(label="closed", persistent=False))
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
    assert reported[closed.id]["metadata"] == {"dovecote-label": "closed"}
    assert reported[closed.id]["templateID"] == "base"
    assert (reported[closed.id]["autoPause"], reported[opened.id]["autoPause"]) == (False, True)
    assert reported[closed.id]["allow_internet_access"] is False
    assert reported[opened.id]["allow_internet_access"] is True
    assert reported[some.id]["network"]["allowOut"] == ["pypi.org", "192.0.2.0/24", "bots.example"]
    assert reported[some.id]["network"]["denyOut"] == ["0.0.0.0/0"]


async def test_errors_are_folded(service: E2bService, tmp_path: Path) -> None:
    """A wrong key and a missing one are the operator's, a service that is down is tried again."""
    async with _open(service, tmp_path, api_key="e2b_wrong") as provider:
        with pytest.raises(ProviderUnauthorized):
            await provider.create(_spec())
    async with _open(service, tmp_path, api_key=None) as provider:
        with pytest.raises(ProviderUnauthorized, match="E2B_API_KEY"):
            await provider.create(_spec())
    async with _open(service, tmp_path, api_url="http://127.0.0.1:9") as provider:
        with pytest.raises(ProviderUnreachable):
            await provider.create(_spec())
    async with _open(service, tmp_path) as provider:
        with pytest.raises(ProviderRefused, match="template"):
            await provider.create(_spec(options={"template": "not-allowed"}))
        service.unready = 1
        assert await provider.create(_spec())
        service.unready = 100
        with pytest.raises(ProviderUnreachable, match="503"):
            await provider.create(_spec())


class TestE2bRefusals(CreationRefusals):
    """What the service will not create."""


async def test_the_keys_are_kept_to_themselves(service: E2bService, tmp_path: Path) -> None:
    """Neither the settings nor an error show the key."""
    async with _open(service, tmp_path, api_key="e2b_canary") as provider:
        with pytest.raises(ProviderUnauthorized) as caught:
            await provider.create(_spec())
    assert "canary" not in str(caught.value)
    assert "canary" not in repr(plugin.settings(api_key="e2b_canary"))


async def test_a_port_is_shown_under_the_services_own_name(provider: Provider) -> None:
    """An exposed port has a URL of the sandbox."""
    sandbox = await provider.create(_spec())
    assert await sandbox.expose(8080) == f"https://8080-{sandbox.id}.e2b.app"


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"options": {"image": "debian"}}, "/options/image"),
        ({"options": {"memoryGb": 2}}, "/options/memoryGb"),
        ({"network": {"mode": "restricted"}}, "/network"),
        ({"persistent": True, "options": {"persistentHome": False}}, "/options/persistentHome"),
    ],
)
def test_what_it_cannot_do_is_said_beforehand(config: dict[str, Any], pointer: str) -> None:
    """A config that means nothing here is refused with its field and the remedy."""
    found = problems(SandboxConfig.model_validate({"provider": "e2b"} | config), plugin)
    assert [problem.pointer for problem in found] == [pointer]

"""AgentRun's own rules: signatures, templates, lost answers, and commands longer than a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentrun_service import PRIVATE, PUBLIC, AgentRunService, agentrun_service, settings_for
from sandbox.agentrun import plugin
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
async def service(tmp_path: Path) -> AsyncIterator[AgentRunService]:
    """Run a service."""
    async with agentrun_service(tmp_path / "service") as running:
        yield running


def _open(service: AgentRunService, tmp_path: Path, **changes: Any) -> Any:
    context = ProviderContext(
        state=tmp_path / "state",
        callbacks=CallbackDirectories(root=tmp_path / "callbacks"),
        callback_url="https://bots.example",
    )
    given = {**settings_for(service.url), "wait_seconds": 1, **changes}
    return plugin.open(plugin.settings.model_validate(given), context)


@pytest.fixture
async def provider(service: AgentRunService, tmp_path: Path) -> AsyncIterator[Provider]:
    """Open the provider."""
    async with _open(service, tmp_path) as provider:
        yield provider


def _spec(**changes: Any) -> SandboxSpec:
    fields: dict[str, Any] = {"label": "dovecote-1", "namespace": "space", "persistent": True}
    return SandboxSpec(**fields | changes)


async def test_a_lost_answer_runs_nothing_twice(provider: Provider, service: AgentRunService) -> None:
    """The call whose answer was lost is repeated, and the command has run once."""
    sandbox = await provider.create(_spec())
    service.lost_answers = 2
    result = await sandbox.run(ExecRequest(script="echo ran >> runs; cat runs"))
    assert (service.lost_answers, result.stdout) == (0, b"ran\n")


async def test_a_command_may_last_longer_than_a_call(provider: Provider, service: AgentRunService) -> None:
    """The gateway asks again until the command has ended."""
    sandbox = await provider.create(_spec())
    service.command_seconds, before = 20.0, len(service.commands)
    result = await sandbox.run(ExecRequest(script="sleep 3; echo done"))
    assert (result.stdout, result.timed_out) == (b"done\n", False)
    assert len(service.commands) - before > 2


async def test_long_programs_and_long_output_arrive(provider: Provider) -> None:
    """A program beyond the limit of a command is uploaded; output is fetched in pieces."""
    sandbox = await provider.create(_spec())
    padding = "x" * 100_000
    script = f": {padding}; head -c 200000 /dev/zero | tr '\\0' o; head -c 200000 /dev/zero | tr '\\0' e >&2"
    result = await sandbox.run(ExecRequest(script=script, output_limit=262_144))
    assert (result.stdout, result.stderr) == (b"o" * 200_000, b"e" * 200_000)


@pytest.mark.parametrize("path", ["/processes/cmd", ""], ids=["commands", "everything"])
async def test_a_page_of_a_proxy_does_not_end_the_jobs(
    provider: Provider, service: AgentRunService, path: str
) -> None:
    """A 404 of a proxy is an error that is tried again; only the service says that a sandbox is gone."""
    sandbox = await provider.create(_spec())
    await sandbox.spawn(BackgroundJob(id="job", script="sleep 60", token="t"))

    async def no_route(request: web.Request) -> web.Response | None:
        return web.Response(status=404, text="<h1>404 Not Found</h1>") if path in request.path else None

    service.fault = no_route
    with pytest.raises(ProviderUnreachable, match="data_url"):
        await sandbox.report("job")
    service.fault = None
    assert (await sandbox.report("job")).state is BackgroundJobState.RUNNING


async def test_a_page_with_status_200_is_no_answer(provider: Provider, service: AgentRunService) -> None:
    """A sandbox of which a login page was returned has not been deleted."""
    sandbox = await provider.create(_spec())

    async def log_in(_request: web.Request) -> web.Response:
        return web.Response(text="<h1>Log in</h1>", content_type="text/html")

    service.fault = log_in
    with pytest.raises(ProviderUnreachable, match="not the service's"):
        await provider.destroy(sandbox.id)


async def test_a_command_whose_sandbox_ends_is_interrupted(
    provider: Provider, service: AgentRunService
) -> None:
    """Gone alone would have the gateway run it a second time; before it begins, gone is right."""
    sandbox = await provider.create(_spec())

    async def end(request: web.Request) -> web.Response | None:
        if request.path.endswith("/cmd") and "setsid" not in (await request.json())["command"]:
            await service.delete(sandbox.id)
        return None

    service.fault = end
    with pytest.raises(CommandInterrupted, match="before you repeat it"):
        await sandbox.run(ExecRequest(script="sleep 3; echo sent"))
    service.fault = None
    with pytest.raises(SandboxGone) as raised:
        await sandbox.run(ExecRequest(script="echo sent"))
    assert raised.type is SandboxGone


async def test_a_program_whose_directory_is_gone_may_have_run(
    provider: Provider, service: AgentRunService
) -> None:
    """The error names the place, what to check there, and that the command may have run."""
    sandbox = await provider.create(_spec())

    async def lose(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/cmd"):
            return None
        return web.json_response({"result": {"exitCode": 0, "stdout": "lost\n", "stderr": ""}})

    service.fault = lose
    with pytest.raises(ProviderUnreachable, match=r"/tmp is gone.* the command may have run"):
        await sandbox.run(ExecRequest(script="echo sent"))


async def test_a_sandbox_that_failed_to_start_is_replaced(
    provider: Provider, service: AgentRunService
) -> None:
    """It is deleted by the next call, which would otherwise find it each time."""
    first = await provider.create(_spec())
    service.machines[first.id].status = "CREATE_FAILED"
    again = await provider.create(_spec())
    assert list(service.machines) == [again.id] != [first.id]


async def test_the_network_mode_chooses_the_template(provider: Provider, service: AgentRunService) -> None:
    """Each mode has a template of the operator; a sandbox of the other one is replaced."""
    sandbox = await provider.create(_spec())
    assert service.machines[sandbox.id].asked["templateName"] == PRIVATE
    assert service.machines[sandbox.id].asked["sandboxIdleTimeoutSeconds"] == 1860
    with pytest.raises(SandboxGone):
        await provider.connect(sandbox.id, _spec(network=Network.ALLOW_ALL))
    again = await provider.create(_spec(network=Network.ALLOW_ALL))
    assert service.machines[again.id].asked["templateName"] == PUBLIC


async def test_a_missing_template_or_key_is_named(service: AgentRunService, tmp_path: Path) -> None:
    """The error names the setting; a wrong secret is refused by the service."""
    async with _open(service, tmp_path, private_template=None) as provider:
        with pytest.raises(ProviderRefused, match="private_template"):
            await provider.create(_spec())
    async with _open(service, tmp_path, access_key_secret=None) as provider:
        with pytest.raises(ProviderUnauthorized, match="AGENTRUN_ACCESS_KEY_SECRET"):
            await provider.create(_spec())
    async with _open(service, tmp_path, access_key_secret="wrong") as provider:
        with pytest.raises(ProviderUnauthorized, match="SignatureDoesNotMatch") as raised:
            await provider.list()
        with pytest.raises(ProviderUnauthorized):
            await provider.create(_spec())
    assert "wrong" not in str(raised.value)


async def test_a_template_that_the_service_does_not_know_is_named(
    service: AgentRunService, tmp_path: Path
) -> None:
    """A 404 to a creation is no lost sandbox: the error names the configured template."""
    async with _open(service, tmp_path, private_template="no-such-template") as provider:
        with pytest.raises(ProviderRefused, match="check the template 'no-such-template'"):
            await provider.create(_spec())
    assert not service.machines


async def test_all_pages_are_listed(provider: Provider) -> None:
    """The list has more pages than one; labels are found again in the ids."""
    labels = [f"dovecote-{name}" for name in ("a", "b", "c:d é")]
    for label in labels:
        await provider.create(_spec(label=label))
    assert [label for _id, label in await provider.list("dovecote-")] == labels


async def test_the_older_of_two_sandboxes_is_kept(provider: Provider, service: AgentRunService) -> None:
    """Two processes that create at once end with one sandbox."""
    found = await asyncio.gather(*(provider.create(_spec()) for _ in range(3)))
    assert len({one.id for one in found}) == len(service.machines) == 1


async def test_keeping_a_sandbox_alive_is_a_request(provider: Provider, service: AgentRunService) -> None:
    """A request resets the service's idle timer; a sandbox that ended is gone."""
    sandbox = await provider.create(_spec())
    await sandbox.keep_alive(900)
    assert service.machines[sandbox.id].touched == 1
    await service.delete(sandbox.id)
    with pytest.raises(SandboxGone):
        await sandbox.keep_alive(900)

"""What a provider promises about sandboxes that Dovecote did not create."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandbox.errors import ProviderRefused, SandboxGone
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, Network, SandboxSpec, is_external
from sandbox.port import Feature, Provider
from sandbox.testing.rig import TOKEN, OutsideSandbox, ProviderRig
from sandbox.testing.waiting import wait_for_job


@asynccontextmanager
async def _made(rig: ProviderRig) -> AsyncIterator[OutsideSandbox]:
    """Make a sandbox that is none of the provider's; skip for a provider that can use none."""
    if Feature.EXTERNAL not in rig.plugin.features:
        pytest.skip("the provider does not declare EXTERNAL")
    assert rig.outside is not None, "a rig of a provider with EXTERNAL makes one"
    async with rig.outside() as outside:
        yield outside


def _spec(rig: ProviderRig, name: str) -> SandboxSpec:
    return rig.spec(external=name, persistent=True, network=Network.ALLOW_ALL)


class ExternalContract:
    """An external sandbox is used, and never created, suspended, relabelled or deleted."""

    async def test_external_sandboxes_are_declared(self, provider: Provider, rig: ProviderRig) -> None:
        """A provider that does not declare EXTERNAL uses no external sandbox."""
        if Feature.EXTERNAL in rig.plugin.features:
            pytest.skip("declared: other tests show that it works")
        with rig.refuses():
            await provider.create(_spec(rig, "somebody-elses"))

    async def test_an_external_sandbox_is_used(self, provider: Provider, rig: ProviderRig) -> None:
        """Commands, files and jobs work in it, and another process finds the same one by its id."""
        async with _made(rig) as outside:
            spec = _spec(rig, outside.name)
            sandbox = await provider.create(spec)
            assert is_external(sandbox.id)
            await sandbox.write("a/file", b"kept")
            script = 'cat a/file - && cd && test "$DOVECOTE_WORKSPACE" = ' + spec.mount + "; exit 3"
            result = await sandbox.run(ExecRequest(script=script, stdin=b" here"))
            assert (result.stdout, result.exit_code) == (b"kept here", 3)
            again = await provider.connect(sandbox.id, spec)
            assert again.id == sandbox.id
            await again.spawn(BackgroundJob(id="job_1", token=TOKEN, script="cat a/file; exit 4"))
            report = await wait_for_job(sandbox, "job_1")
            assert (report.state, report.exit_code, report.output) == (BackgroundJobState.EXITED, 4, b"kept")

    async def test_an_external_sandbox_stays_as_it_is(self, provider: Provider, rig: ProviderRig) -> None:
        """It is not listed as the provider's, and nothing that ends the provider's own changes it."""
        async with _made(rig) as outside:
            before = await outside.state()
            sandbox = await provider.create(_spec(rig, outside.name))
            await sandbox.run(ExecRequest(script="true"))
            with pytest.raises(ProviderRefused, match="external"):
                await sandbox.suspend()
            await sandbox.keep_alive(60)
            await provider.destroy(sandbox.id)
            assert await provider.list(rig.label) == []
            assert await outside.state() == before
            assert (await sandbox.run(ExecRequest(script="echo alive"))).stdout == b"alive\n"

    async def test_an_external_sandbox_that_is_gone_is_reported(
        self, provider: Provider, rig: ProviderRig
    ) -> None:
        """The error names it and what to do; none is created in its place."""
        async with _made(rig) as outside:
            spec = _spec(rig, outside.name)
            sandbox = await provider.create(spec)
            await outside.remove()
            with pytest.raises(SandboxGone):
                await sandbox.run(ExecRequest(script="true"))
            with pytest.raises(SandboxGone):
                await provider.connect(sandbox.id, spec)
            with pytest.raises(ProviderRefused, match=f"{outside.name}.*does not exist"):
                await provider.create(spec)
            assert await provider.list(rig.label) == []

    async def test_an_id_of_one_kind_is_not_used_for_the_other(
        self, provider: Provider, rig: ProviderRig
    ) -> None:
        """A changed record leads to a new sandbox, never to the one that it named before."""
        async with _made(rig) as outside:
            external = await provider.create(_spec(rig, outside.name))
            own = await provider.create(rig.spec())
            with pytest.raises(SandboxGone):
                await provider.connect(external.id, rig.spec())
            with pytest.raises(SandboxGone):
                await provider.connect(own.id, _spec(rig, outside.name))

    async def test_a_sandbox_of_a_gateway_is_no_external_one(
        self, provider: Provider, rig: ProviderRig
    ) -> None:
        """A record cannot reach the sandbox of another record, or of another gateway, by its id."""
        if Feature.EXTERNAL not in rig.plugin.features:
            pytest.skip("the provider does not declare EXTERNAL")
        own = await provider.create(rig.spec())
        for name in {own.id, own.id.split(".")[1] if "." in own.id else own.id}:
            with pytest.raises(ProviderRefused):
                await provider.create(_spec(rig, name))

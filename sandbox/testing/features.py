"""What a provider promises about features: a declared one works, an undeclared one is unsupported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from sandbox.errors import FeatureUnsupported, ProviderRefused, SandboxError
from sandbox.model import BackgroundJob, BindMount, ExecRequest, SandboxSpec
from sandbox.port import Feature, Provider, Sandbox
from sandbox.testing.rig import TOKEN, ProviderRig


class ProviderFeatureContract:
    """What a provider promises about the features that it declares."""

    async def test_home_is_saved_and_restored(self, provider: Provider, rig: ProviderRig) -> None:
        """A new sandbox has the files, links and modes of the HOME that was saved."""
        sandbox = await provider.create(rig.spec(persistent=rig.reserves))
        if Feature.SNAPSHOT not in rig.plugin.features:
            with rig.refuses():
                [chunk async for chunk in sandbox.save()]
            return
        script = (
            "mkdir -p ~/bin; printf '#!/bin/sh\\necho hello\\n' > ~/bin/greet;"
            "chmod +x ~/bin/greet; ln -s greet ~/bin/link"
        )
        await sandbox.run(ExecRequest(script=script))
        saved = [chunk async for chunk in sandbox.save()]
        assert b"".join(saved)[4:8] == bytes(4), "the header of the gzip file has the time of the packing"
        assert b"".join([chunk async for chunk in sandbox.save()]) == b"".join(saved)
        await provider.destroy(sandbox.id)
        again = await provider.create(rig.spec(persistent=True))

        async def chunks() -> AsyncIterator[bytes]:
            for chunk in saved:
                yield chunk

        await again.restore(chunks())
        result = await again.run(ExecRequest(script="~/bin/link && touch ~/bin/new && echo own"))
        assert result.stdout == b"hello\nown\n"

    async def test_the_stamp_changes_with_the_files(self, provider: Provider, rig: ProviderRig) -> None:
        """Where a provider stamps HOME, the stamp changes with a file written, renamed or deleted."""
        sandbox = await provider.create(rig.spec(persistent=rig.reserves))
        stamps = []
        for script in ("echo one >~/note", "true", "echo two >~/note", "mv ~/note ~/other", "rm ~/other"):
            assert (await sandbox.run(ExecRequest(script=script))).ok
            try:
                async with asyncio.timeout(30):
                    while (stamp := await sandbox.stamp()) is None:  # noqa: ASYNC110 - files get older
                        await asyncio.sleep(0.01)
            except FeatureUnsupported:
                return
            stamps.append(stamp)
        assert stamps[0] == stamps[1]
        assert len(set(stamps)) == 4

    async def test_directories_of_the_machine_are_mounted(self, provider: Provider, rig: ProviderRig) -> None:
        """They are read-only unless the spec says otherwise, and no link leads to another directory."""
        if Feature.BIND_MOUNTS not in rig.plugin.features or not rig.isolated:
            pytest.skip("the provider mounts no directories of the machine here")
        for name in ("fixed", "shared", "secret"):
            (rig.workspace / name).mkdir(parents=True)
            (rig.workspace / name).chmod(0o777)
        (rig.workspace / "fixed/file").write_text("given")
        (rig.workspace / "link").symlink_to("secret")
        source = rig.workspace.resolve()
        fixed = BindMount(source=str(source / "fixed"), target="/mnt/fixed")
        shared = BindMount(source=str(source / "shared"), target="/mnt/a/shared", read_only=False)
        sandbox = await provider.create(rig.spec(workspace=None, mounts=(fixed, shared)))
        script = "cat /mnt/fixed/file; echo new >/mnt/a/shared/new; echo no >/mnt/fixed/file || echo refused"
        assert (await sandbox.run(ExecRequest(script=script))).stdout == b"givenrefused\n"
        assert (source / "shared/new").read_text() == "new\n"
        assert (source / "fixed/file").read_text() == "given"
        await provider.destroy(sandbox.id)
        for name in ("link", "fixed/../secret", "none"):
            wrong = BindMount(source=f"{source}/{name}", target="/mnt/fixed")
            with pytest.raises(ProviderRefused):
                await _create_and_run(provider, rig.spec(workspace=None, mounts=(wrong,)))

    async def test_an_invalid_snapshot_is_refused(self, provider: Provider, rig: ProviderRig) -> None:
        """Bytes that are no archive raise a SandboxError, and HOME is unchanged."""
        sandbox = await provider.create(rig.spec(persistent=rig.reserves))
        await sandbox.run(ExecRequest(script="echo kept > ~/file"))

        async def chunks() -> AsyncIterator[bytes]:
            yield b"no archive"

        with pytest.raises(SandboxError):
            await sandbox.restore(chunks())
        assert (await sandbox.run(ExecRequest(script="cat ~/file"))).stdout == b"kept\n"

    async def test_a_port_has_a_url_or_a_reason(self, provider: Provider, rig: ProviderRig) -> None:
        """A port has a URL or is refused where EXPOSE is declared, and is unsupported elsewhere."""
        sandbox = await provider.create(rig.spec())
        if Feature.EXPOSE not in rig.plugin.features:
            with rig.refuses():
                await sandbox.expose(8080)
            return
        with suppress(ProviderRefused):
            assert (await sandbox.expose(8080)).startswith(("http://", "https://"))

    async def test_jobs_are_declared(self, sandbox: Sandbox, rig: ProviderRig) -> None:
        """A provider that does not declare JOBS refuses to start one."""
        if Feature.JOBS in rig.plugin.features:
            pytest.skip("declared: the tests of jobs show that it works")
        with rig.refuses():
            await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script="true"))


async def _create_and_run(provider: Provider, spec: SandboxSpec) -> None:
    sandbox = await provider.create(spec)
    await sandbox.run(ExecRequest(script="true"))

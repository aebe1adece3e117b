"""What a provider promises about sandboxes and their files, from creation to removal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from sandbox.errors import ProviderRefused, SandboxGone, UnsafePath
from sandbox.model import ExecRequest, Network, SandboxId
from sandbox.port import Feature, Provider, Sandbox
from sandbox.testing.names import HOSTILE_NAMES
from sandbox.testing.processes import other_process_program, processes_with
from sandbox.testing.rig import ProviderRig
from sandbox.testing.waiting import until

EVERY_BYTE = bytes(range(256)) * 64
LIST_CALLBACKS = 'cd "$(dirname "$DOVECOTE_CALLBACK")"; ls; cat name'


class LifeContract:
    """What a provider promises about sandboxes and their files."""

    async def test_bytes_go_round_unchanged(self, sandbox: Sandbox) -> None:
        """Files and standard streams preserve every byte."""
        await sandbox.write("deep/down/file.bin", EVERY_BYTE)
        assert await sandbox.read("deep/down/file.bin", limit=1 << 20) == EVERY_BYTE
        assert await sandbox.read("deep/down/file.bin", limit=10) == EVERY_BYTE[:10]
        echoed = await sandbox.run(ExecRequest(script="cat deep/down/file.bin -", stdin=EVERY_BYTE))
        assert echoed.stdout == EVERY_BYTE * 2

    async def test_a_file_may_have_any_name(self, sandbox: Sandbox) -> None:
        """Whatever characters a name has, it names one file for the port and for programs."""
        for name in HOSTILE_NAMES:
            await sandbox.write(f"names/{name}", name.encode())
        listed = await sandbox.run(ExecRequest(script="find names -type f -print0"))
        assert sorted(listed.stdout.decode().split("\0")[:-1]) == sorted(
            f"names/{one}" for one in HOSTILE_NAMES
        )
        assert [await sandbox.read(f"names/{name}", limit=1000) for name in HOSTILE_NAMES] == [
            name.encode() for name in HOSTILE_NAMES
        ]

    async def test_the_working_directory_is_the_workspace(self, sandbox: Sandbox) -> None:
        """Commands start in the workspace, and $DOVECOTE_WORKSPACE names it."""
        result = await sandbox.run(
            ExecRequest(script='test "$PWD" = "$DOVECOTE_WORKSPACE" && echo here > place')
        )
        assert result.ok
        assert await sandbox.read("place", limit=10) == b"here\n"

    async def test_a_read_only_workspace_is_not_written(self, provider: Provider, rig: ProviderRig) -> None:
        """A write to a read-only workspace is refused, and by a command too where it is mounted."""
        if not rig.mounts:
            with pytest.raises(PermissionError):
                await (await provider.create(rig.spec(read_only=True))).write("kept", b"new")
            return
        rig.workspace.mkdir()
        (rig.workspace / "kept").write_text("old")
        sandbox = await provider.create(rig.spec(read_only=True))
        with pytest.raises(PermissionError):
            await sandbox.write("kept", b"new")
        result = await sandbox.run(ExecRequest(script="cat kept; echo new > kept"))
        assert result.stdout == b"old"
        assert not rig.isolated or (rig.workspace / "kept").read_text() == "old"

    async def test_paths_stay_inside(self, sandbox: Sandbox) -> None:
        """Paths and links that lead out of the workspace are refused; an absent file is not found."""
        await sandbox.run(
            ExecRequest(script="ln -s /etc/hostname leak; ln -s /etc out; ln -s ../.. up; ln -s own link")
        )
        await sandbox.write("own", b"mine")
        for path in ("/etc/hostname", "../secret", "a/../../b", "leak", "out/hostname", "up/x", "nul\0"):
            with pytest.raises(UnsafePath):
                await sandbox.read(path, limit=10)
            with pytest.raises(UnsafePath):
                await sandbox.write(path, b"x")
        assert await sandbox.read("link", limit=10) == b"mine"
        with pytest.raises(FileNotFoundError):
            await sandbox.read("absent", limit=10)

    async def test_a_label_is_one_sandbox(self, provider: Provider, rig: ProviderRig) -> None:
        """Creating twice with one label gives one sandbox, which is listed once and found by prefix."""
        first, second = await provider.create(rig.spec()), await provider.create(rig.spec())
        label = f"{rig.label}:other"
        other = await provider.create(rig.spec(label=label))
        assert first.id == second.id != other.id
        assert await provider.list(rig.label) == sorted([(first.id, rig.label), (other.id, label)])
        assert await provider.list(label) == [(other.id, label)]
        assert (first.id, rig.label) in await provider.list()

    async def test_a_sandbox_is_found_again_by_its_id(self, rig: ProviderRig) -> None:
        """A provider that is opened again connects to an existing sandbox."""
        spec = rig.spec(persistent=rig.reserves)
        async with rig.open() as provider:
            made = await provider.create(spec)
            await made.run(ExecRequest(script="echo kept > ~/kept"))
        async with rig.open() as provider:
            found = await provider.connect(made.id, spec)
            assert (await found.run(ExecRequest(script="cat ~/kept"))).stdout == b"kept\n"
            await provider.destroy(made.id)

    async def test_reserving_is_declared(self, provider: Provider, rig: ProviderRig) -> None:
        """A provider that does not declare PERSISTENT refuses to create or connect a reserved sandbox."""
        if rig.reserves:
            pytest.skip("declared: other tests show that it works")
        with rig.refuses(match="persistent"):
            await provider.create(rig.spec(persistent=True))
        made = await provider.create(rig.spec())
        with rig.refuses(match="persistent"):
            await provider.connect(made.id, rig.spec(persistent=True))

    async def test_a_destroyed_sandbox_is_gone(
        self, provider: Provider, sandbox: Sandbox, rig: ProviderRig
    ) -> None:
        """Destroying twice succeeds; afterwards, and for an unknown id, every call raises SandboxGone."""
        await sandbox.write("file", b"kept")
        await provider.destroy(sandbox.id)
        await provider.destroy(sandbox.id)
        with pytest.raises(SandboxGone):
            await sandbox.run(ExecRequest(script="true"))
        with pytest.raises(SandboxGone):
            await provider.connect(sandbox.id, rig.spec())
        with pytest.raises(SandboxGone):
            await provider.connect(SandboxId("../../etc"), rig.spec())
        assert not rig.mounts or (rig.workspace / "file").read_bytes() == b"kept"

    async def test_a_new_sandbox_of_a_label_has_another_id(
        self, provider: Provider, sandbox: Sandbox, rig: ProviderRig
    ) -> None:
        """An id is one instance: files that a new and empty one lacks are not taken for removed ones."""
        if rig.mounts:
            pytest.skip("the workspace is mounted: nothing is synced")
        await provider.destroy(sandbox.id)
        assert (await provider.create(rig.spec())).id != sandbox.id

    async def test_a_sandbox_has_a_callback_socket_of_its_own(
        self, provider: Provider, sandbox: Sandbox, rig: ProviderRig
    ) -> None:
        """Each sandbox sees one socket, which only its own directory holds and which goes with it."""
        if Feature.CALLBACK not in rig.plugin.features:
            pytest.skip("the provider does not declare callback")
        other = await provider.create(rig.spec(label=f"{rig.label}:other"))
        async with rig.callback_server.listening() as gateway:
            directories = [gateway.directory(one.id) for one in (sandbox, other)]
            for directory, one in zip(directories, (sandbox, other), strict=True):
                (directory / "name").write_text(one.id)
                seen = await one.run(ExecRequest(script=LIST_CALLBACKS))
                assert seen.stdout.decode().split() == ["callback.sock", "name", one.id]
            assert directories[0] != directories[1]
            await provider.destroy(sandbox.id)
            assert [directory.is_dir() for directory in directories] == [False, True]

    async def test_suspending_keeps_the_files(self, provider: Provider, rig: ProviderRig) -> None:
        """A suspended reserved sandbox has its files when it is used again; undeclared is unsupported."""
        spec = rig.spec(persistent=rig.reserves)
        sandbox = await provider.create(spec)
        await sandbox.write("file", b"kept")
        if Feature.SUSPEND not in rig.plugin.features:
            with rig.refuses():
                await sandbox.suspend()
            return
        await sandbox.suspend()
        again = await provider.connect(sandbox.id, spec)
        assert await again.read("file", limit=10) == b"kept"

    async def test_a_restricted_network_is_declared(self, provider: Provider, rig: ProviderRig) -> None:
        """A network of named domains works where it is declared, and is unsupported elsewhere."""
        spec = rig.spec(network=Network.RESTRICTED, allow_domains=("example.com",))
        if Feature.RESTRICTED_NETWORK in rig.plugin.features:
            if not rig.isolated:
                with rig.refuses(ProviderRefused, match="restricted"):
                    await provider.create(spec)
                return
            await provider.create(spec)
            return
        with rig.refuses():
            await provider.create(spec)

    async def test_a_run_does_not_outlive_the_process_that_started_it(
        self, rig: ProviderRig, sleep_seconds: str
    ) -> None:
        """The commands of a killed gateway end too, and the next gateway removes what is left."""
        if not rig.mounts:
            pytest.skip("without a mount the command continues until its own time-out")
        script = f"touch begun; sleep {sleep_seconds}"
        run = f"await (await provider.create(spec)).run(ExecRequest(script={script!r}))"
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", other_process_program(rig, run))

        async def begun() -> bool:
            return (rig.workspace / "begun").exists()

        async def dead() -> bool:
            return not processes_with(f"sleep\x00{sleep_seconds}")

        await until(begun)
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        await until(dead)
        async with rig.open() as provider:
            ((sandbox_id, _),) = await provider.list(rig.label)
            await provider.destroy(sandbox_id)

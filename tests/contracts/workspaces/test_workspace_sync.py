"""A workspace in sandboxes that cannot mount it: carried in and back through the port, at every provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from s3_servers import fresh_bucket, s3_server
from sandbox.errors import Refused
from sandbox.model import Command
from sandbox.port import Provider, Sandbox
from sandbox.registry import installed
from sandbox.workspaces import sandbox_transfer
from sandbox.workspaces.baselines import LocalBases
from sandbox.workspaces.directory_store import DirectoryStore
from sandbox.workspaces.s3_baselines import BucketBases
from sandbox.workspaces.syncer import Carrier
from sandbox_rigs import Rig, ways

SPACE = "workspace"
"""What the rig's directory is called."""
ELSEWHERE = [f"{name}-{way}" for name in ("e2b", "daytona") if name in installed() for way in ways(name)]


@pytest.fixture(params=ELSEWHERE)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    """Return a provider that does not mount the workspace store."""
    name, _, way = request.param.partition("-")
    made = ways(name)[way](tmp_path)
    made.workspace.mkdir()
    return made


@pytest.fixture
async def provider(rig: Rig) -> AsyncIterator[Provider]:
    """Open the provider."""
    async with rig.opened() as provider:
        yield provider


@pytest.fixture
def carrier(tmp_path: Path) -> Carrier:
    """Return a carrier for small workspaces, whose store holds the rig's."""
    return Carrier(DirectoryStore(tmp_path), LocalBases(tmp_path / "carried"), limit=9 * 1024 * 1024)


async def _says(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.run(Command(script=script))
    assert result.ok, result
    return result.stdout.decode()


async def test_files_go_in_and_come_back(rig: Rig, provider: Provider, carrier: Carrier) -> None:
    """Contents, times, programs' bits and removals are carried both ways; links and hidden names are safe."""
    (rig.workspace / "deep/er").mkdir(parents=True)
    (rig.workspace / "deep/er/file é\n.txt").write_bytes(b"\0stored\xff")
    (rig.workspace / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (rig.workspace / "run.sh").chmod(0o755)
    (rig.workspace / "-rf").write_text("odd")
    (rig.workspace / "secret").symlink_to("/etc/passwd")
    sandbox, spec = await provider.create(rig.spec(namespace=SPACE)), rig.spec(namespace=SPACE)
    await carrier.carry(sandbox, spec)
    assert await _says(sandbox, "./run.sh; cat -- -rf; ls -A | wc -l") == "ran\nodd3\n"
    assert await sandbox.read("deep/er/file é\n.txt", limit=99) == b"\0stored\xff"

    await _says(sandbox, "rm -- -rf; mkdir new; echo made >new/one; chmod +x new/one; ln -s /etc/passwd out")
    await _says(sandbox, "head -c 5000000 /dev/urandom >large; md5sum <large >sum; rm -r deep")
    await carrier.carry(sandbox, spec)
    stored = sorted(str(path.relative_to(rig.workspace)) for path in rig.workspace.rglob("*"))
    assert stored == ["large", "new", "new/one", "run.sh", "secret", "sum"]
    assert (rig.workspace / "new/one").read_text() == "made\n"
    assert (rig.workspace / "new/one").stat().st_mode & 0o111
    assert (rig.workspace / "large").read_bytes() == await sandbox.read("large", limit=6_000_000)

    (rig.workspace / "new/one").unlink()
    (rig.workspace / "run.sh").write_text("echo uploaded")
    await carrier.carry(sandbox, spec)
    assert await _says(sandbox, "sh run.sh; [ -e new ] || echo gone") == "uploaded\ngone\n"
    assert not (await sandbox_transfer.listing(sandbox)).keys() & {sandbox_transfer.STAGE}
    await provider.destroy(sandbox.id)


async def test_a_new_machine_gets_the_files_of_the_old_one(
    rig: Rig, provider: Provider, carrier: Carrier
) -> None:
    """A machine that is empty because it is new takes nothing away from the store."""
    first = await provider.create(rig.spec(namespace=SPACE))
    await _says(first, "echo kept >file")
    await carrier.carry(first, rig.spec(namespace=SPACE))
    await provider.destroy(first.id)
    second = await provider.create(rig.spec(namespace=SPACE))
    await carrier.carry(second, rig.spec(namespace=SPACE))
    assert await _says(second, "cat file") == "kept\n"
    assert (rig.workspace / "file").read_text() == "kept\n"
    await provider.destroy(second.id)


async def test_bounds_of_what_is_carried(rig: Rig, provider: Provider, carrier: Carrier) -> None:
    """A sparse giant stays inside while the rest comes back; a store that is too large is refused by name."""
    sandbox = await provider.create(rig.spec(namespace=SPACE))
    await _says(sandbox, "truncate -s 50G giant; echo small >small")
    await carrier.carry(sandbox, rig.spec(namespace=SPACE))
    assert [path.name for path in rig.workspace.iterdir()] == ["small"]
    await carrier.carry(sandbox, rig.spec(namespace=SPACE))
    assert await _says(sandbox, "ls") == "giant\nsmall\n"
    (rig.workspace / "heavy").write_bytes(b"x" * 10 * 1024 * 1024)
    with pytest.raises(Refused, match="sync_limit_mb"):
        await carrier.carry(sandbox, rig.spec(namespace=SPACE))
    await provider.destroy(sandbox.id)


async def test_a_read_only_workspace_goes_in_only(rig: Rig, provider: Provider, carrier: Carrier) -> None:
    """What a command writes into a read-only workspace elsewhere is never carried to the store."""
    (rig.workspace / "fixed").write_text("fixed")
    spec = rig.spec(read_only=True, namespace=SPACE)
    sandbox = await provider.create(spec)
    await carrier.carry(sandbox, spec)
    await sandbox.run(Command(script="echo more >more; echo changed >fixed"))
    await carrier.carry(sandbox, spec)
    assert [(path.name, path.read_text()) for path in rig.workspace.iterdir()] == [("fixed", "fixed")]
    await provider.destroy(sandbox.id)


async def test_gateways_that_share_a_bucket_carry_for_one_sandbox(rig: Rig, provider: Provider) -> None:
    """Whichever carries knows what the other did: an upload goes in, what was removed does not come back."""
    with s3_server() as endpoint:
        async with fresh_bucket(endpoint) as (bucket, store):
            one, two = (Carrier(store, BucketBases(store.client, bucket), limit=1 << 24) for _ in range(2))
            sandbox, spec = await provider.create(rig.spec(namespace=SPACE)), rig.spec(namespace=SPACE)
            await store.write(SPACE, "deep/uploaded", b"uploaded")
            await one.carry(sandbox, spec)
            await _says(sandbox, "grep -q ^uploaded deep/uploaded; echo made >made; chmod +x made")
            await two.carry(sandbox, spec)
            assert await store.read(SPACE, "made", 99) == b"made\n"
            await store.remove(SPACE, "made")
            await store.write(SPACE, "deep/uploaded", b"replaced")
            await one.carry(sandbox, spec)
            assert await _says(sandbox, "ls; cat deep/uploaded") == "deep\nreplaced"
            assert sorted(await store.side(SPACE).listing()) == ["deep/uploaded"]
            await one.forget(spec.label)
            assert await BucketBases(store.client, bucket).find(spec.label) is None
            await provider.destroy(sandbox.id)

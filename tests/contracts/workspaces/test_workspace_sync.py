"""A workspace in sandboxes that cannot mount it: synced in and back through the port, at every provider."""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from repetitions import in_gate
from s3_servers import open_empty_store, s3_server
from sandbox.errors import ProviderRefused, UnsafePath
from sandbox.model import ExecRequest
from sandbox.port import Provider, Sandbox
from sandbox.registry import built_in
from sandbox.testing.names import HOSTILE_NAMES
from sandbox.testing.rig import ProviderRig
from sandbox.workspaces import sandbox_transfer
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.directory_store import DirectoryWorkspaceStore
from sandbox.workspaces.s3.baselines import S3BaselineStore
from sandbox.workspaces.syncer import WorkspaceSync
from sandbox_rigs import variants_of

SPACE = "workspace"
"""What the rig's directory is called."""
REMOTE = ["e2b", "daytona"]
if os.environ.get("DOVECOTE_TEST_EVERY_PROVIDER"):
    REMOTE += ["agentrun", "kubernetes", "lambda"]
REMOTE_RIGS = [f"{name}-{way}" for name in REMOTE if name in built_in() for way in variants_of(name)]


@pytest.fixture(params=in_gate(REMOTE_RIGS, {"e2b-loopback"}))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
    """Return a provider that does not mount the workspace store."""
    name, _, way = request.param.partition("-")
    made = variants_of(name)[way](tmp_path)
    made.workspace.mkdir()
    return made


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Open the provider."""
    async with rig.open() as provider:
        yield provider


@pytest.fixture
def workspace_sync(tmp_path: Path) -> WorkspaceSync:
    """Return a carrier for small workspaces, whose store holds the rig's."""
    return WorkspaceSync(
        DirectoryWorkspaceStore(tmp_path), LocalBaselineStore(tmp_path / "carried"), limit=9 * 1024 * 1024
    )


async def _output_of(sandbox: Sandbox, script: str) -> str:
    result = await sandbox.run(ExecRequest(script=script))
    assert result.ok, result
    return result.stdout.decode()


async def test_files_go_in_and_come_back(
    rig: ProviderRig, provider: Provider, workspace_sync: WorkspaceSync
) -> None:
    """Contents, times, executable bits, links and removals are synced both ways; hidden names are safe."""
    (rig.workspace / "deep/er").mkdir(parents=True)
    (rig.workspace / "deep/er/file é\n.txt").write_bytes(b"\0stored\xff")
    (rig.workspace / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (rig.workspace / "run.sh").chmod(0o755)
    (rig.workspace / "-rf").write_text("odd")
    (rig.workspace / "secret").symlink_to("/etc/passwd")
    sandbox, spec = await provider.create(rig.spec(namespace=SPACE)), rig.spec(namespace=SPACE)
    await workspace_sync.sync(sandbox, spec)
    assert await _output_of(sandbox, "./run.sh; cat -- -rf; ls -A | wc -l") == "ran\nodd4\n"
    assert await _output_of(sandbox, "readlink secret") == "/etc/passwd\n"
    assert await sandbox.read("deep/er/file é\n.txt", limit=99) == b"\0stored\xff"

    await _output_of(
        sandbox, "rm -- -rf; mkdir new; echo made >new/one; chmod +x new/one; ln -s /etc/passwd out"
    )
    await _output_of(sandbox, "head -c 5000000 /dev/urandom >large; md5sum <large >sum; rm -r deep")
    await workspace_sync.sync(sandbox, spec)
    stored = sorted(str(path.relative_to(rig.workspace)) for path in rig.workspace.rglob("*"))
    assert stored == ["large", "new", "new/one", "out", "run.sh", "secret", "sum"]
    assert (rig.workspace / "out").readlink() == Path("/etc/passwd")
    assert (rig.workspace / "new/one").read_text() == "made\n"
    assert (rig.workspace / "new/one").stat().st_mode & 0o111
    assert (rig.workspace / "large").read_bytes() == await sandbox.read("large", limit=6_000_000)

    (rig.workspace / "new/one").unlink()
    (rig.workspace / "run.sh").write_text("echo uploaded")
    await workspace_sync.sync(sandbox, spec)
    assert await _output_of(sandbox, "sh run.sh; ls -A new | wc -l") == "uploaded\n0\n"
    assert not (await sandbox_transfer.list_files(sandbox)).keys() & {sandbox_transfer.STAGING_DIRECTORY}
    await provider.destroy(sandbox.id)


async def test_links_and_empty_directories_go_in_and_come_back(
    rig: ProviderRig, provider: Provider, workspace_sync: WorkspaceSync
) -> None:
    """They are created, changed, replaced by files and directories, and removed on both sides alike."""
    (rig.workspace / "empty/inner").mkdir(parents=True)
    (rig.workspace / "real").mkdir()
    (rig.workspace / "real/f").write_text("kept")
    (rig.workspace / "current").symlink_to("real")
    sandbox, spec = await provider.create(rig.spec(namespace=SPACE)), rig.spec(namespace=SPACE)
    await workspace_sync.sync(sandbox, spec)
    assert await _output_of(sandbox, "find . -type d -empty; cat current/f") == "./empty/inner\nkept"

    await _output_of(sandbox, "rmdir empty/inner; mkdir -p made/empty; ln -sfn real/f current; mkdir late")
    await workspace_sync.sync(sandbox, spec)
    assert sorted(str(one.relative_to(rig.workspace)) for one in rig.workspace.rglob("*")) == [
        *("current", "empty", "late", "made", "made/empty", "real", "real/f")
    ]
    assert (rig.workspace / "current").readlink() == Path("real/f")

    await _output_of(sandbox, "rm current; mkdir current; echo own >current/f; rmdir late; ln -s real late")
    await _output_of(sandbox, "rm -r real; echo file >real; echo in >empty/file")
    await workspace_sync.sync(sandbox, spec)
    assert {one.name: one.read_text() for one in (rig.workspace / "current").iterdir()} == {"f": "own\n"}
    assert (rig.workspace / "real").read_text() == "file\n"
    assert (rig.workspace / "late").is_symlink()
    assert (rig.workspace / "empty/file").read_text() == "in\n"

    (rig.workspace / "late").unlink()
    (rig.workspace / "late").mkdir()
    (rig.workspace / "late/f").write_text("stored")
    await workspace_sync.sync(sandbox, spec)
    assert await _output_of(sandbox, "cat late/f; readlink late || cat real") == "storedfile\n"
    await provider.destroy(sandbox.id)


async def test_nothing_is_written_or_read_through_a_link(
    rig: ProviderRig, provider: Provider, workspace_sync: WorkspaceSync, tmp_path: Path
) -> None:
    """Links to the host, out by .. and in chains arrive as links; what is behind them is never touched."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("private")
    sandbox, spec = await provider.create(rig.spec(namespace=SPACE)), rig.spec(namespace=SPACE)
    links = {"etc": "/etc", "up": "../outside", "host": str(outside), "one": "two", "two": "up/f"}
    for name, target in links.items():
        await _output_of(sandbox, f"ln -s {shlex.quote(str(target))} {name}")
    await workspace_sync.sync(sandbox, spec)
    assert {name: str((rig.workspace / name).readlink()) for name in links} == links
    for path in ("etc/passwd", "up/f", "host/f", "one", "two"):
        with pytest.raises(UnsafePath):
            await workspace_sync.store.read(SPACE, path, 99)
        with pytest.raises(UnsafePath):
            await workspace_sync.store.write(SPACE, path, b"mine")
    await _output_of(sandbox, "rm up host; mkdir up host; echo own >up/f; echo own >host/f")
    await workspace_sync.sync(sandbox, spec)
    assert (rig.workspace / "up/f").read_text() == (rig.workspace / "host/f").read_text() == "own\n"
    assert (outside / "f").read_text() == "private"
    await provider.destroy(sandbox.id)


async def test_a_file_of_any_name_goes_in_and_comes_back(
    rig: ProviderRig, provider: Provider, workspace_sync: WorkspaceSync
) -> None:
    """A name with line breaks, quotes or control characters is synced both ways and removed both ways."""
    names = {name: name.encode() for name in HOSTILE_NAMES}
    (rig.workspace / "in").mkdir()
    for name, content in names.items():
        (rig.workspace / "in" / name).write_bytes(content)
    sandbox, spec = await provider.create(rig.spec(namespace=SPACE)), rig.spec(namespace=SPACE)
    await workspace_sync.sync(sandbox, spec)
    assert {name: await sandbox.read(f"in/{name}", limit=1000) for name in names} == names
    await _output_of(sandbox, "mv in out")
    await workspace_sync.sync(sandbox, spec)
    assert {path.name: path.read_bytes() for path in (rig.workspace / "out").iterdir()} == names
    assert not (rig.workspace / "in").exists()
    await provider.destroy(sandbox.id)


async def test_a_new_machine_gets_the_files_of_the_old_one(
    rig: ProviderRig, provider: Provider, workspace_sync: WorkspaceSync
) -> None:
    """A new, empty instance removes nothing from the store."""
    first = await provider.create(rig.spec(namespace=SPACE))
    await _output_of(first, "echo kept >file")
    await workspace_sync.sync(first, rig.spec(namespace=SPACE))
    await provider.destroy(first.id)
    second = await provider.create(rig.spec(namespace=SPACE))
    await workspace_sync.sync(second, rig.spec(namespace=SPACE))
    assert await _output_of(second, "cat file") == "kept\n"
    assert (rig.workspace / "file").read_text() == "kept\n"
    await provider.destroy(second.id)


async def test_bounds_of_what_is_carried(
    rig: ProviderRig, provider: Provider, workspace_sync: WorkspaceSync
) -> None:
    """A sparse giant stays inside while the rest comes back; a store that is too large is refused by name."""
    sandbox = await provider.create(rig.spec(namespace=SPACE))
    await _output_of(sandbox, "truncate -s 50G giant; echo small >small")
    await workspace_sync.sync(sandbox, rig.spec(namespace=SPACE))
    assert [path.name for path in rig.workspace.iterdir()] == ["small"]
    await workspace_sync.sync(sandbox, rig.spec(namespace=SPACE))
    assert await _output_of(sandbox, "ls") == "giant\nsmall\n"
    (rig.workspace / "heavy").write_bytes(b"x" * 10 * 1024 * 1024)
    with pytest.raises(ProviderRefused, match="sync_limit_mb"):
        await workspace_sync.sync(sandbox, rig.spec(namespace=SPACE))
    await provider.destroy(sandbox.id)


async def test_a_sandbox_that_ends_gives_its_files_to_a_store_that_is_too_large(
    rig: ProviderRig, provider: Provider, workspace_sync: WorkspaceSync
) -> None:
    """Its changes and removals are saved, and it gets nothing itself."""
    spec = rig.spec(namespace=SPACE)
    (rig.workspace / "old").write_text("old")
    sandbox = await provider.create(spec)
    await workspace_sync.sync(sandbox, spec)
    await _output_of(sandbox, "rm old; echo made >made")
    (rig.workspace / "heavy").write_bytes(b"x" * 10 * 1024 * 1024)
    await workspace_sync.save(sandbox, spec)
    assert sorted(path.name for path in rig.workspace.iterdir()) == ["heavy", "made"]
    assert await _output_of(sandbox, "ls") == "made\n"
    (rig.workspace / "heavy").unlink()
    (rig.workspace / "made").write_text("changed since")
    await workspace_sync.sync(sandbox, spec)
    assert await _output_of(sandbox, "cat made") == "changed since"
    await provider.destroy(sandbox.id)


async def test_a_read_only_workspace_goes_in_only(
    rig: ProviderRig, provider: Provider, workspace_sync: WorkspaceSync
) -> None:
    """A command's writes in a remote read-only workspace are never synced to the store."""
    (rig.workspace / "fixed").write_text("fixed")
    spec = rig.spec(read_only=True, namespace=SPACE)
    sandbox = await provider.create(spec)
    await workspace_sync.sync(sandbox, spec)
    await sandbox.run(ExecRequest(script="echo more >more; echo changed >fixed"))
    await workspace_sync.sync(sandbox, spec)
    assert [(path.name, path.read_text()) for path in rig.workspace.iterdir()] == [("fixed", "fixed")]
    await provider.destroy(sandbox.id)


async def test_gateways_that_share_a_bucket_carry_for_one_sandbox(
    rig: ProviderRig, provider: Provider
) -> None:
    """Each syncer sees the other's changes: an upload is synced in, a removed file does not come back."""
    with s3_server() as endpoint:
        async with open_empty_store(endpoint) as (bucket, store):
            one, two = (
                WorkspaceSync(store, S3BaselineStore(store.client, bucket), limit=1 << 24) for _ in range(2)
            )
            sandbox, spec = await provider.create(rig.spec(namespace=SPACE)), rig.spec(namespace=SPACE)
            await store.write(SPACE, "deep/uploaded", b"uploaded")
            await one.sync(sandbox, spec)
            await _output_of(sandbox, "grep -q ^uploaded deep/uploaded; echo made >made; chmod +x made")
            await two.sync(sandbox, spec)
            assert await store.read(SPACE, "made", 99) == b"made\n"
            await store.remove(SPACE, "made")
            await store.write(SPACE, "deep/uploaded", b"replaced")
            await one.sync(sandbox, spec)
            assert await _output_of(sandbox, "ls; cat deep/uploaded") == "deep\nreplaced"
            assert sorted(await store.replica(SPACE).list()) == ["deep/uploaded"]
            await one.delete_baseline(spec.label)
            assert await S3BaselineStore(store.client, bucket).get(spec.label) is None
            await provider.destroy(sandbox.id)

"""What lies in an outbox is found from outside and from inside alike, and nothing else is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.files import workspace_outbox
from gateway.files.workspace_outbox import FileTooLarge, OutboxLocation
from sandbox.errors import UnsafePath
from sandbox.host import plugin
from sandbox.model import SandboxSpec
from sandbox.port import CallbackDirectories, ProviderContext, Sandbox
from sandbox.testing.names import HOSTILE_NAMES


@pytest.fixture
async def workspace(tmp_path: Path) -> Path:
    """A workspace with an outbox that has everything in it."""
    sandbox = tmp_path / "workspace" / "outbox"
    (sandbox / "deep" / "er").mkdir(parents=True)
    (sandbox / "a b.txt").write_bytes(b"12345")
    (sandbox / "deep" / "er" / "ü.txt").write_bytes(b"1")
    (sandbox / ".hidden").write_bytes(b"1")
    (sandbox / "link").symlink_to("/etc/passwd")
    (sandbox / "out").symlink_to("/etc")
    os.mkfifo(sandbox / "pipe")
    return sandbox.parent


@pytest.fixture
async def sandbox(workspace: Path, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A sandbox of this machine on the workspace."""
    context = ProviderContext(
        state=tmp_path / "state", callbacks=CallbackDirectories(root=tmp_path / "callbacks")
    )
    async with plugin.open(plugin.settings(), context) as provider:
        spec = SandboxSpec(label="dovecote-test-outbox", namespace="test", workspace=workspace)
        made = await provider.create(spec)
        yield made
        await provider.destroy(made.id)


def make_location(sandbox: Sandbox, directory: Path | None) -> OutboxLocation:
    """Return the outbox's location."""

    async def there() -> Sandbox:
        return sandbox

    return OutboxLocation(sandbox=there, directory=directory)


@pytest.mark.parametrize("mounted", [True, False])
async def test_the_same_files_are_found_both_ways(mounted: bool, workspace: Path, sandbox: Sandbox) -> None:
    """Files of any depth and name, with sizes and times; no links, pipes or hidden ones."""
    location = make_location(sandbox, workspace if mounted else None)
    found = await workspace_outbox.list_files(location)
    assert [(one.path, one.size) for one in found] == [("outbox/a b.txt", 5), ("outbox/deep/er/ü.txt", 1)]
    assert all(abs(one.changed_at - datetime.now(UTC)) < timedelta(seconds=60) for one in found)
    assert await workspace_outbox.read(location, found[0].path, limit=5) == b"12345"
    with pytest.raises(FileTooLarge):
        await workspace_outbox.read(location, found[0].path, limit=4)
    with pytest.raises(UnsafePath):
        await workspace_outbox.read(location, "outbox/link", limit=5)


@pytest.mark.parametrize("mounted", [True, False])
async def test_a_file_of_any_name_is_found(mounted: bool, workspace: Path, sandbox: Sandbox) -> None:
    """A name with line breaks is one file, and none that it pretends to be."""
    names = [name for name in HOSTILE_NAMES if not name.startswith(".")]
    folder = workspace / "outbox" / "more"
    folder.mkdir()
    for name in (*names, "x\n5 1700000000 outbox\x85y"):
        (folder / name).write_bytes(name.encode())
    location = make_location(sandbox, workspace if mounted else None)
    found = [
        one for one in await workspace_outbox.list_files(location) if one.path.startswith("outbox/more/")
    ]
    assert sorted(one.path.removeprefix("outbox/more/") for one in found) == sorted(
        (*names, "x\n5 1700000000 outbox\x85y")
    )
    for one in found:
        content = await workspace_outbox.read(location, one.path, limit=1000)
        assert content == one.path.removeprefix("outbox/more/").encode()


@pytest.mark.parametrize("mounted", [True, False])
async def test_a_name_that_is_not_utf8_is_reported(mounted: bool, workspace: Path, sandbox: Sandbox) -> None:
    """The file cannot be named in an event, so it is listed with a readable path and marked."""
    (workspace / "outbox" / os.fsdecode(b"r\xe9sum\xe9.txt")).write_bytes(b"123")
    (inner := workspace / "outbox" / os.fsdecode(b"d\xff")).mkdir()
    (inner / "inner.txt").write_bytes(b"1")
    found = await workspace_outbox.list_files(make_location(sandbox, workspace if mounted else None))
    marked = [(one.path, one.size) for one in found if not one.is_utf8]
    assert marked == [("outbox/d\ufffd/inner.txt", 1), ("outbox/r\ufffdsum\ufffd.txt", 3)]
    assert len(found) == 4


@pytest.mark.parametrize("mounted", [True, False])
async def test_an_outbox_that_leads_elsewhere_is_empty(
    mounted: bool, workspace: Path, sandbox: Sandbox
) -> None:
    """A link in place of the directory gives nothing away, and neither does none at all."""
    location = make_location(sandbox, workspace if mounted else None)
    (workspace / "outbox").rename(workspace / "elsewhere")
    assert await workspace_outbox.list_files(location) == []
    (workspace / "outbox").symlink_to("/etc")
    assert await workspace_outbox.list_files(location) == []


@pytest.mark.parametrize("seconds", ["9" * 18, "-" + "9" * 17])
def test_a_file_of_an_impossible_time_is_found(seconds: str) -> None:
    """A program may set a file's time to one that no datetime has."""
    now = datetime.now(UTC)
    listing = f"{now.timestamp():.0f}\0005 {seconds}.5 outbox/a.txt\0".encode()
    (found,) = workspace_outbox.parse_listing(listing, now)
    assert found.changed_at.year in (1899, 1900, 8999, 9000)


@pytest.mark.parametrize("clock", ["9" * 12, "9" * 5000, "\u0661"])
def test_a_sandbox_without_a_possible_clock_has_no_files(clock: str) -> None:
    """The sandbox's own clock is not trusted either."""
    assert workspace_outbox.parse_listing(f"{clock}\0005 1 outbox/a\0".encode(), datetime.now(UTC)) == []


@given(st.binary(max_size=300))
def test_any_listing_can_be_read(listing: bytes) -> None:
    """What a sandbox writes is never trusted to be a listing."""
    for one in workspace_outbox.parse_listing(b"1700000000\0" + listing + b"\0", datetime.now(UTC)):
        assert one.path.startswith("outbox/")


def test_the_sandbox_s_clock_may_be_wrong() -> None:
    """Times are by the gateway's clock."""
    asked = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    behind = int(asked.timestamp()) - 3600
    (left,) = workspace_outbox.parse_listing(f"{behind}\0007 {behind - 2}.25 outbox/a\0".encode(), asked)
    assert left.changed_at == asked - timedelta(seconds=2)

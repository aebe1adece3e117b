"""Every workspace store, opened for a test; the bucket is on a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from s3_servers import open_empty_store, s3_server
from sandbox.workspaces.directory_store import DirectoryWorkspaceStore
from sandbox.workspaces.port import WorkspaceStore

STORES = ["directory", "s3"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Serve S3 for all tests of this file."""
    with s3_server() as url:
        yield url


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WorkspaceStore]:
    """Open each store, the bucket on a server that speaks its protocol."""
    async with AsyncExitStack() as stack:
        match request.param:
            case "s3":
                endpoint = request.getfixturevalue("endpoint")
                yield (await stack.enter_async_context(open_empty_store(endpoint)))[1]
            case _:
                yield DirectoryWorkspaceStore(tmp_path / "store")

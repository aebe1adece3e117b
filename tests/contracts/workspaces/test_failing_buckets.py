"""What a bucket answers when it fails, as its own documents and proxies in front of it say it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from gateway.environments.workspaces import check_access
from sandbox.errors import ProviderRefused, ProviderUnauthorized, ProviderUnreachable, SandboxError
from sandbox.s3 import ATTEMPTS, READ_SECONDS, Bucket, open_client
from sandbox.snapshots.s3 import PART, S3SnapshotStore
from sandbox.workspaces.directory_replica import DirectoryReplica
from sandbox.workspaces.s3.store import S3WorkspaceStore

pytest.importorskip("aiobotocore")


@asynccontextmanager
async def served(handler: web.RequestHandler | object) -> AsyncIterator[Bucket]:
    """Serve every request with a handler; yields a bucket there."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    try:
        yield Bucket(bucket="b", endpoint=f"http://{host}:{port}", access_key="test", secret_key="test")
    finally:
        await runner.cleanup()


def error_of(status: int, code: str, **headers: str) -> object:
    """Return a handler that answers each request with an error of S3."""

    async def answer(request: web.Request) -> web.Response:
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
        text = None if request.method == "HEAD" else body
        return web.Response(status=status, text=text, content_type="application/xml", headers=headers)

    return answer


FAILURES = [
    (429, "TooManyRequests", ProviderUnreachable),
    (503, "XMinioServerNotInitialized", ProviderUnreachable),
    (507, "XMinioStorageFull", ProviderUnreachable),
    (501, "NotImplemented", ProviderRefused),
    (400, "ExpiredToken", ProviderUnauthorized),
    (403, "InvalidAccessKeyId", ProviderUnauthorized),
    (404, "NoSuchBucket", ProviderRefused),
]


@pytest.mark.parametrize(("status", "code", "expected"), FAILURES, ids=[code for _, code, _ in FAILURES])
async def test_the_status_decides_whether_a_bucket_may_come_back(
    status: int, code: str, expected: type[SandboxError]
) -> None:
    """Stores have codes of their own; a status of 500 or more, or of a limit, is an outage."""
    async with served(error_of(status, code)) as bucket, open_client(bucket, "workspaces") as client:
        store = S3WorkspaceStore(client, bucket)
        with pytest.raises(expected, match=code):
            await store.list_namespaces()


async def test_a_redirect_to_nowhere_is_refused() -> None:
    """The SDK asks for the bucket's region, which is redirected too; the settings to correct are named."""
    redirect = error_of(301, "PermanentRedirect")
    async with served(redirect) as bucket, open_client(bucket, "workspaces") as client:
        store = S3WorkspaceStore(client, bucket)
        with pytest.raises(ProviderRefused, match=r"names no region: correct endpoint and region"):
            await store.list_namespaces()


async def cut_short(request: web.Request) -> web.StreamResponse:
    """Promise ten bytes, send four, and close the connection."""
    response = web.StreamResponse(headers={"Content-Length": "10", "ETag": '"e"'})
    await response.prepare(request)
    await response.write(b"four")
    assert request.transport is not None
    request.transport.close()
    return response


async def test_a_download_that_ends_early_is_an_outage(tmp_path: Path) -> None:
    """Neither files nor snapshots are taken for whole, and the error says that the store failed."""
    async with served(cut_short) as bucket, open_client(bucket, "workspaces") as client:
        with pytest.raises(ProviderUnreachable):
            await S3WorkspaceStore(client, bucket).read("space", "a.txt", 1000)
        with pytest.raises(ProviderUnreachable):
            await S3SnapshotStore(client, bucket).get("label/1-hash", tmp_path / "snapshot")


async def test_a_hanging_bucket_is_an_outage_after_a_minute() -> None:
    """A turn that waits for files fails then, and says that the store does not answer."""
    requests, answers = [], asyncio.Event()

    async def hang(request: web.Request) -> web.Response:
        requests.append(request.path)
        await answers.wait()
        return web.Response()

    async with served(hang) as bucket, open_client(bucket, "workspaces", read_seconds=0.1) as client:
        with pytest.raises(ProviderUnreachable, match="the store of workspaces does not answer"):
            await S3WorkspaceStore(client, bucket).list_namespaces()
        answers.set()
    assert len(requests) == ATTEMPTS
    assert ATTEMPTS * READ_SECONDS <= 60


async def test_the_start_does_not_wait_for_a_hanging_bucket() -> None:
    """The gateway starts without it, and its log says why files are missing."""
    answers = asyncio.Event()

    async def hang(_request: web.Request) -> web.Response:
        await answers.wait()
        return web.Response()

    async with served(hang) as bucket, open_client(bucket, "workspaces") as client:
        with capture_logs() as logs:
            await check_access(S3WorkspaceStore(client, bucket), timeout=0.1)
        answers.set()
    assert [one["event"] for one in logs] == ["workspaces.store_unreachable"]


async def a_page_of_html(_request: web.Request) -> web.Response:
    """Answer as a console or a login page does."""
    return web.Response(text="<html>sign in</html>", content_type="text/html")


async def test_a_page_is_no_empty_bucket() -> None:
    """The address of a store's console is refused, and no file is taken for deleted."""
    async with served(a_page_of_html) as bucket, open_client(bucket, "workspaces") as client:
        store = S3WorkspaceStore(client, bucket)
        with pytest.raises(ProviderRefused, match="endpoint"):
            await store.replica("space").list()
        with pytest.raises(ProviderRefused, match="endpoint"):
            await store.check_access()


async def test_a_page_is_no_stored_object(tmp_path: Path) -> None:
    """A file that was put nowhere is not recorded as stored: the next sync would delete its only copy."""
    copies, file = tmp_path / "copies", tmp_path / "file"
    file.write_bytes(b"x" * (PART + 1))
    async with served(a_page_of_html) as bucket, open_client(bucket, "workspaces") as client:
        objects = S3WorkspaceStore(client, bucket).replica("space")
        copies.mkdir()
        (copies / "a.txt").write_text("only here")
        copy = DirectoryReplica(copies)
        with pytest.raises(ProviderRefused, match="PutObject"):
            await objects.write(copy.read(await copy.list()))
        with pytest.raises(ProviderRefused, match="GetObject"):
            await S3WorkspaceStore(client, bucket).read("space", "a.txt", 10)
        snapshots = S3SnapshotStore(client, bucket)
        with pytest.raises(ProviderRefused, match="GetObject"):
            await snapshots.get("label/1-hash", tmp_path / "back")
        with pytest.raises(ProviderRefused, match="CreateMultipartUpload"):
            await snapshots.put("label/1-hash", file)


async def test_an_upload_that_cannot_be_completed_leaves_no_parts(tmp_path: Path) -> None:
    """Parts of an upload that is neither completed nor aborted are stored, and paid for, without end."""
    file, aborted = tmp_path / "file", []
    file.write_bytes(b"x" * (PART + 1))

    async def answer(request: web.Request) -> web.Response:
        if request.method == "DELETE":
            aborted.append(request.query["uploadId"])
            return web.Response(status=204)
        if "uploads" in request.query:
            text = "<InitiateMultipartUploadResult><UploadId>up-1</UploadId></InitiateMultipartUploadResult>"
            return web.Response(text=text, content_type="application/xml")
        if request.method == "PUT":
            return web.Response(headers={"ETag": '"e"'})
        return web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>")

    async with served(answer) as bucket, open_client(bucket, "workspaces") as client:
        with pytest.raises(ProviderUnauthorized, match="CompleteMultipartUpload"):
            await S3SnapshotStore(client, bucket).put("label/1-hash", file)
    assert aborted == ["up-1"]

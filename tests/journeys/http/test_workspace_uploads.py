"""Uploads in parts over HTTP: resumed at their offset, checked, bounded, and of one account."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from api_server import ApiClient
from gateway_process import gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKSPACE = "/accounts/me/workspaces/default"
CONTENT = random.Random(1).randbytes(150_000)
FIRST = 70_000
"""Bytes of the first part: a part has at least 64 KiB."""


ADMIN_KEY = "an-admin-key-of-the-operator-in-tests"
ENV = {"DOVECOTE_ADMIN_KEY": ADMIN_KEY, "DOVECOTE_FILES__ACCOUNT_BYTES": "2000000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Clients of two accounts of one gateway."""

    mine: ApiClient
    other: ApiClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clients]:
    """Run a gateway whose accounts store 2 MB at most."""
    async with (
        gateway(tmp_path_factory.mktemp("uploads") / "data", env=ENV) as process,
        aiohttp.ClientSession() as session,
    ):
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        made = await operator.call("POST", "/accounts", {"name": "other"})
        yield Clients(
            mine=ApiClient(session=session, url=process.url, key=process.key),
            other=ApiClient(session=session, url=process.url, key=made.body["key"]),
        )


async def begin(client: ApiClient, **changes: Any) -> Any:
    """Begin an upload of the content."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    body = {"path": "a/large", "size": len(CONTENT), "sha256": digest} | changes
    return await client.call("POST", f"{WORKSPACE}/uploads", body)


async def send(client: ApiClient, upload: str, offset: int | str, content: bytes) -> tuple[int, Any]:
    """Send a part; returns the status and the body."""
    headers = {"Authorization": f"Bearer {client.key}", "Upload-Offset": str(offset)}
    url = f"{client.url}{WORKSPACE}/uploads/{upload}"
    async with client.session.patch(url, data=content, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_an_upload_goes_on_where_it_stopped(api: Clients) -> None:
    """The file appears with its last part; a repeated part is refused with the offset to go on at."""
    begun = await begin(api.mine)
    assert (begun.status, begun.body["offset"], begun.body["complete"]) == (201, 0, False)
    upload = begun.body["id"]
    status, body = await send(api.mine, upload, 0, CONTENT[:FIRST])
    assert (status, body["offset"]) == (200, FIRST)
    assert (await api.mine.call("GET", f"{WORKSPACE}/files/a/large")).status == 404
    assert (await api.mine.call("GET", f"{WORKSPACE}/uploads/{upload}")).body["offset"] == FIRST
    status, body = await send(api.mine, upload, 0, CONTENT[:FIRST])
    assert (status, body["detail"]) == (409, f"the next byte of the upload is {FIRST}")
    status, body = await send(api.mine, upload, FIRST, CONTENT[FIRST:])
    assert (status, body["complete"]) == (200, True)
    assert (await api.mine.call("GET", f"{WORKSPACE}/files/a/large")).body == CONTENT
    assert (await api.mine.call("GET", f"{WORKSPACE}/uploads/{upload}")).status == 404
    assert (await api.mine.call("DELETE", f"{WORKSPACE}/files/a")).status == 204


async def test_of_parts_at_one_offset_one_is_kept(api: Clients) -> None:
    """Clients that send at the same moment do not mix their bytes."""
    upload = (await begin(api.mine, sha256="")).body["id"]
    answers = await asyncio.gather(
        *(send(api.mine, upload, 0, bytes([number]) * FIRST) for number in range(4))
    )
    assert sorted(status for status, _ in answers) == [200, 409, 409, 409]
    assert (await api.mine.call("GET", f"{WORKSPACE}/uploads/{upload}")).body["offset"] == FIRST
    assert (await api.mine.call("DELETE", f"{WORKSPACE}/uploads/{upload}")).status == 204


async def test_wrong_parts_are_refused(api: Clients) -> None:
    """Too long, too short, at no offset, and content of another checksum, which ends the upload."""
    upload = (await begin(api.mine)).body["id"]
    assert (await send(api.mine, upload, 0, CONTENT + b"more"))[0] == 422
    assert (await send(api.mine, upload, 0, b"small"))[0] == 422
    for offset in ("", "-1", "x", "1e3", "9" * 30):
        assert (await send(api.mine, upload, offset, CONTENT))[0] == 400
    assert (await send(api.mine, upload, 0, bytes(len(CONTENT))))[0] == 422
    assert (await api.mine.call("GET", f"{WORKSPACE}/uploads/{upload}")).status == 404
    assert (await api.mine.call("GET", f"{WORKSPACE}/files/a/large")).status == 404


async def test_uploads_are_bounded_and_of_one_account(api: Clients) -> None:
    """No path leads out, no file is too large, no account has too many, and none sees another's."""
    for path in ("../out", "/etc/passwd", "."):
        assert (await begin(api.mine, path=path)).status == 422
    assert (await begin(api.mine, size=1 << 30)).status == 413
    full = await begin(api.mine, size=3_000_000)
    assert (full.status, "may store" in full.body["detail"]) == (413, True)
    assert (await begin(api.mine, size=-1)).status == 422
    opened = [(await begin(api.mine)).body["id"] for _ in range(20)]
    assert (await begin(api.mine)).status == 429
    assert (await api.other.call("GET", f"{WORKSPACE}/uploads/{opened[0]}")).status == 404
    assert (await send(api.other, opened[0], 0, CONTENT))[0] == 404
    assert (await api.mine.call("DELETE", f"{WORKSPACE}/uploads/{opened[0]}")).status == 204
    assert (await begin(api.mine)).status == 201

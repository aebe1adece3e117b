"""The body of a request that stores a file is the file, not a form with it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gateway_process import GatewayProcess, gateway

MINE = "/accounts/me"
CONTENT = b"seven swans"


async def begin_upload(session: aiohttp.ClientSession) -> str:
    """Begin an upload in parts, and return its path."""
    body = {"path": "a.txt", "size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}
    async with session.post(f"{MINE}/workspaces/default/uploads", json=body) as begun:
        return f"{MINE}/workspaces/default/uploads/{(await begun.json())['id']}"


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway."""
    async with gateway(tmp_path / "data") as running:
        yield running


async def test_a_form_is_refused_instead_of_being_stored(process: GatewayProcess) -> None:
    """`curl -F` sends one; the error says which option to use. The same bytes as the body are stored."""
    async with process.http() as session:
        targets = [
            ("POST", "/files?name=a.txt"),
            ("PUT", f"{MINE}/workspaces/default/files/a.txt"),
            ("PUT", f"{MINE}/agents/default/files/knowledge/a.txt"),
            ("PATCH", await begin_upload(session)),
        ]
        for method, path in targets:
            form = aiohttp.FormData()
            form.add_field("file", CONTENT, filename="a.txt")
            headers = {"Upload-Offset": "0"} if method == "PATCH" else {}
            async with session.request(method, path, data=form, headers=headers) as answer:
                assert (answer.status, "--data-binary" in await answer.text()) == (415, True), path
            async with session.request(method, path, data=CONTENT, headers=headers) as answer:
                assert answer.status in (200, 201, 204), await answer.text()


PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n'
BROKEN_FORMS = {
    "a header without a colon": b"--b\r\nnonsense\r\n\r\n1\r\n--b--\r\n",
    "a header that is too long": PART + b"X: " + b"a" * 20_000 + b"\r\n\r\nswans\r\n--b--\r\n",
    "too many headers": PART + b"X: a\r\n" * 2_000 + b"\r\nswans\r\n--b--\r\n",
    "a control character": PART.replace(b"a.txt", b"a\x00.txt") + b"\r\nswans\r\n--b--\r\n",
    "no end": PART + b"\r\nswans",
    "no boundary": b"swans",
}


async def test_a_broken_form_is_a_bad_request(process: GatewayProcess) -> None:
    """What the parser refuses is the fault of the client."""
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    async with process.http() as session:
        for name, body in BROKEN_FORMS.items():
            async with session.post("/v1/files", data=body, headers=headers) as answer:
                assert answer.status == 400, (name, await answer.text())

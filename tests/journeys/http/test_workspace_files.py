"""A workspace's files over HTTP: there and back, and never out of the workspace."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest
from yarl import URL

from api_server import ApiClient, ApiResponse, ApiServer, open_api_server
from gateway.web.http.context import WebLimits
from sandbox.labels import namespace
from sandbox.testing.names import HOSTILE_NAMES

FILES = "/accounts/me/workspaces/default/files"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """An API that accepts files of up to 100 kB."""
    async with open_api_server(tmp_path, bounds=WebLimits(file_bytes=100_000, auth_failures=1000)) as running:
        yield running


async def put(client: ApiClient, path: str, content: bytes) -> ApiResponse:
    """Upload a file."""
    headers = {"Authorization": f"Bearer {client.key}", "Content-Type": "application/octet-stream"}
    url = f"{client.url}{FILES}/{path}"
    async with client.session.put(URL(url, encoded=True), data=content, headers=headers) as answer:
        return ApiResponse(status=answer.status, headers=answer.headers, body=await answer.read())


async def folder(face: ApiServer, tmp_path: Path) -> Path:
    """Return the directory of the default workspace."""
    account = (await face.mine.call("GET", "/accounts/me")).body["id"]
    workspace = (await face.mine.call("GET", "/accounts/me/workspaces/default")).body["id"]
    return tmp_path / "workspaces" / namespace(account, workspace)


def stored(data: Path) -> list[Path]:
    """Return the workspaces that have files."""
    return list((data / "workspaces").iterdir())


async def test_a_file_goes_up_comes_down_and_goes(api: ApiServer) -> None:
    """Bytes come back as they went; directories are made and listed; removal removes."""
    content = bytes(range(256)) * 10
    assert (await put(api.mine, "a/b/c.bin", content)).status == 204
    assert (await put(api.mine, quote("ü \N{PILE OF POO}.txt"), b"x")).status == 204
    assert (await api.mine.call("GET", f"{FILES}/a/b/c.bin")).body == content
    listed = (await api.mine.call("GET", FILES)).body["items"]
    assert [(one["name"], one["kind"]) for one in listed] == [
        ("a", "directory"),
        ("ü \N{PILE OF POO}.txt", "file"),
    ]
    inner = (await api.mine.call("GET", f"{FILES}/a/b")).body["items"]
    assert [(one["path"], one["size"]) for one in inner] == [("a/b/c.bin", 2560)]
    assert (await api.mine.call("DELETE", f"{FILES}/a")).status == 204
    assert (await api.mine.call("GET", f"{FILES}/a/b/c.bin")).status == 404


async def test_a_name_that_is_not_utf_8_is_shown_and_found(api: ApiServer, tmp_path: Path) -> None:
    """The shown path opens, describes, renames and removes the file, and pages end."""
    await put(api.mine, "first", b"x")
    inner = await folder(api, tmp_path) / os.fsdecode(b"d\xe9")
    inner.mkdir()
    for name in (b"a\xe9.txt", b"a\xea.txt", b"b\xe9.txt", b"c%ff.txt"):
        (inner / os.fsdecode(name)).write_bytes(name)
    seen: list[str] = []
    below, cursor = quote("d\N{REPLACEMENT CHARACTER}"), ""
    while cursor is not None:
        page = await api.mine.call("GET", f"{FILES}/{below}?limit=1&cursor={quote(cursor)}")
        seen += [one["path"] for one in page.body["items"]]
        assert len(seen) <= 4
        cursor = page.body["next"]
    marked = "d\N{REPLACEMENT CHARACTER}/{}\N{REPLACEMENT CHARACTER}.txt"
    assert seen == [marked.format("a")] * 2 + [marked.format("b"), "d\N{REPLACEMENT CHARACTER}/c%ff.txt"]
    assert await fetch(api.mine, "GET", f"{FILES}/{quote(seen[2])}") == (200, b"b\xe9.txt")
    assert await fetch(api.mine, "GET", f"{FILES}/{quote(seen[3])}") == (200, b"c%ff.txt")
    stated = await api.mine.call("GET", f"{FILES}:stat?path={quote(seen[2])}")
    assert (stated.body["path"], stated.body["size"]) == (seen[2], 6)
    refused = await api.mine.call("DELETE", f"{FILES}/{quote(seen[0])}")
    assert (refused.status, "2 files are shown as" in refused.body["detail"]) == (409, True)
    moved = await api.mine.call("POST", f"{FILES}:rename", {"path": seen[2], "to": "b.txt"})
    assert (moved.status, moved.body["path"]) == (200, "b.txt")
    assert (await api.mine.call("DELETE", f"{FILES}/{below}")).status == 204
    assert sorted(one.name for one in (await folder(api, tmp_path)).iterdir()) == ["b.txt", "first"]


async def test_a_file_of_any_name_is_listed_and_fetched(api: ApiServer, tmp_path: Path) -> None:
    """Whatever a sandbox calls its files, the listed path opens and removes each."""
    await put(api.mine, "first", b"x")
    (await folder(api, tmp_path) / "d").mkdir()
    for name in HOSTILE_NAMES:
        (await folder(api, tmp_path) / "d" / name).write_bytes(name.encode())
    listed = (await api.mine.call("GET", f"{FILES}/d")).body["items"]
    assert sorted(one["name"] for one in listed) == sorted(HOSTILE_NAMES)
    for one in listed:
        path = f"{FILES}/{quote(one['path'])}"
        assert (await fetch(api.mine, "GET", path)) == (200, one["name"].encode())
        assert (await fetch(api.mine, "DELETE", path))[0] == 204
        assert (await put(api.mine, quote(one["path"]), b"again")).status == 204
    again = (await api.mine.call("GET", f"{FILES}/d?limit=1000")).body["items"]
    assert [one["size"] for one in again] == [5] * len(HOSTILE_NAMES)


async def fetch(client: ApiClient, method: str, path: str) -> tuple[int, bytes]:
    """Send a request to a path that is encoded already; return the status and the body."""
    headers = {"Authorization": f"Bearer {client.key}"}
    async with client.session.request(
        method, URL(f"{client.url}{path}", encoded=True), headers=headers
    ) as answer:
        return answer.status, await answer.read()


async def test_a_page_written_in_a_sandbox_is_stored_not_shown(api: ApiServer) -> None:
    """A browser gets every file as a download."""
    await put(api.mine, "page.html", b"<script>alert(1)</script>")
    answer = await api.mine.call("GET", f"{FILES}/page.html")
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == "attachment"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    ["../key", "..%2f..%2fkey", "a/../../key", "%2fetc%2fpasswd", "/etc/passwd", "a%00b", "x" * 5000],
)
async def test_no_path_leads_out(api: ApiServer, path: str) -> None:
    """Climbing, absolute and broken paths are refused or not found, for reading, writing and removing."""
    for method in ("GET", "PUT", "DELETE"):
        url = URL(f"{api.url}{FILES}/{path}", encoded=True)
        headers = {"Authorization": f"Bearer {api.mine.key}"}
        body = b"x" if method == "PUT" else None
        async with api.mine.session.request(method, url, headers=headers, data=body) as answer:
            reported = await answer.read()
        assert answer.status in (404, 405, 409, 422), (method, answer.status, reported)
        assert b"root:" not in reported
        assert api.mine.key.encode() not in reported


async def test_a_name_that_is_not_utf_8_is_refused(api: ApiServer) -> None:
    """It would be a file with a percent sign in its name."""
    for method in ("PUT", "GET", "DELETE"):
        url = URL(f"{api.url}{FILES}/raw%ff.txt", encoded=True)
        headers = {"Authorization": f"Bearer {api.mine.key}"}
        async with api.mine.session.request(method, url, headers=headers) as answer:
            assert (answer.status, "UTF-8" in await answer.text()) == (400, True)
    await put(api.mine, "100%25.txt", b"x")


async def test_a_link_that_leads_out_opens_nothing(api: ApiServer, tmp_path: Path) -> None:
    """A link a sandbox made to a file of the gateway's is neither read nor written through nor followed."""
    await put(api.mine, "first", b"x")
    inside = await folder(api, tmp_path)
    (inside / "stolen").symlink_to(tmp_path / "key")
    (inside / "up").symlink_to(tmp_path)
    before = (tmp_path / "key").read_bytes()
    for path in ("stolen", "up", "up/key"):
        answer = await api.mine.call("GET", f"{FILES}/{path}")
        assert answer.status in (404, 422), answer
        assert (await put(api.mine, path, b"overwritten")).status in (409, 422)
    assert (await api.mine.call("DELETE", f"{FILES}/up/key")).status == 422
    assert (tmp_path / "key").read_bytes() == before
    assert (await api.mine.call("DELETE", f"{FILES}/up")).status == 204
    assert (tmp_path / "key").read_bytes() == before


async def test_a_pipe_is_no_file(api: ApiServer, tmp_path: Path) -> None:
    """Opening what is no regular file neither blocks nor works."""
    await put(api.mine, "first", b"x")
    os.mkfifo(await folder(api, tmp_path) / "pipe")
    assert (await api.mine.call("GET", f"{FILES}/pipe")).status == 422


async def test_another_account_sees_no_file(api: ApiServer) -> None:
    """A workspace of the same name in another account is another workspace; a foreign id is not found."""
    await put(api.mine, "mine.txt", b"x")
    workspace = (await api.mine.call("GET", "/accounts/me/workspaces/default")).body["id"]
    foreign = await api.other.call("GET", f"/accounts/me/workspaces/{workspace}/files/mine.txt")
    assert foreign.status == 404
    await api.other.call("POST", "/accounts/me/workspaces", {"name": "default"})
    assert (await api.other.call("GET", FILES)).body["items"] == []


async def test_a_file_beyond_the_limit_is_refused(api: ApiServer) -> None:
    """Too much is a 413 and leaves nothing."""
    answer = await put(api.mine, "big", b"x" * 100_001)
    assert answer.status == 413
    assert (await api.mine.call("GET", f"{FILES}/big")).status == 404


async def test_a_directory_is_listed_by_pages(api: ApiServer) -> None:
    """`limit` and `cursor` walk through the names once."""
    for name in "abcde":
        await put(api.mine, name, b"x")
    first = (await api.mine.call("GET", f"{FILES}?limit=3")).body
    second = (await api.mine.call("GET", f"{FILES}?limit=3&cursor={first['next']}")).body
    assert [one["name"] for one in first["items"] + second["items"]] == list("abcde")
    assert second["next"] is None


async def test_a_file_and_a_directory_cannot_share_a_name(api: ApiServer) -> None:
    """Writing below a file, or a file over a directory, is a conflict."""
    await put(api.mine, "a/b", b"x")
    assert (await put(api.mine, "a", b"x")).status == 409
    assert (await put(api.mine, "a/b/c", b"x")).status in (409, 422)


async def test_a_workspaces_files_go_with_its_record(api: ApiServer, tmp_path: Path) -> None:
    """Removing the record, or the whole account, leaves no file of it."""
    for client in (api.mine, api.other):
        await client.call("POST", "/accounts/me/workspaces", {"name": "spare"})
        headers = {"Authorization": f"Bearer {client.key}"}
        url = f"{api.url}/accounts/me/workspaces/spare/files/a"
        async with client.session.put(URL(url, encoded=True), data=b"x", headers=headers) as answer:
            assert answer.status == 204
    assert len(stored(tmp_path)) == 2
    await api.mine.call("DELETE", "/accounts/me/workspaces/spare")
    await api.other.call("DELETE", "/accounts/me")
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("wanted", "status", "received", "described"),
    [
        ({"Range": "bytes=6-"}, 206, b"6789", "bytes 6-9/10"),
        ({"Range": "bytes=2-4"}, 206, b"234", "bytes 2-4/10"),
        ({"Range": "bytes=-3"}, 206, b"789", "bytes 7-9/10"),
        ({"Range": "bytes=2-4", "If_Range": "present"}, 206, b"234", "bytes 2-4/10"),
        ({"Range": "bytes=2-4", "If_Range": '"0123456789abcdef0123456789abcdef"'}, 200, b"0123456789", None),
        ({"Range": "bytes=0-1,4-5"}, 200, b"0123456789", None),
        ({}, 200, b"0123456789", None),
    ],
)
async def test_an_interrupted_download_continues_where_it_ended(
    api: ApiServer, wanted: dict[str, str], status: int, received: bytes, described: str | None
) -> None:
    """A request for a range of a file gets these bytes, and the whole file if it has changed since."""
    present = (await put(api.mine, "digits", b"0123456789")).headers["ETag"]
    headers = {name: present if value == "present" else value for name, value in wanted.items()}
    answer = await api.mine.call("GET", f"{FILES}/digits", **headers)
    assert (answer.status, answer.body) == (status, received)
    assert answer.headers.get("Content-Range") == described
    assert (answer.headers["ETag"], answer.headers["Accept-Ranges"]) == (present, "bytes")


async def test_a_download_that_is_complete_has_no_further_range(api: ApiServer) -> None:
    """A range behind the last byte is refused with the size, by which a client sees that it has all."""
    await put(api.mine, "digits", b"0123456789")
    refused = await api.mine.call("GET", f"{FILES}/digits", Range="bytes=10-")
    assert (refused.status, refused.headers["Content-Range"]) == (416, "bytes */10")


async def test_head_shows_the_size_and_version_of_a_file(api: ApiServer) -> None:
    """A client learns what a download would be without its bytes."""
    present = (await put(api.mine, "digits", b"0123456789")).headers["ETag"]
    for wanted in ({}, {"Range": "bytes=2-4"}):  # ranges are for GET alone
        answer = await api.mine.call("HEAD", f"{FILES}/digits", **wanted)
        assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "10")
        assert answer.headers["ETag"] == present

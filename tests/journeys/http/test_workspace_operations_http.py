"""Operations on a workspace's files over HTTP: inside the workspace, within its quota, audited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from api_server import ApiClient, ApiResponse, ApiServer, open_api_server
from gateway.web.http.context import WebLimits
from sandbox.labels import namespace

FILES = "/accounts/me/workspaces/default/files"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """An API that accepts files of up to 100 kB."""
    async with open_api_server(tmp_path, bounds=WebLimits(file_bytes=100_000, auth_failures=1000)) as running:
        yield running


async def put(client: ApiClient, path: str, content: bytes) -> None:
    """Upload a file."""
    headers = {"Authorization": f"Bearer {client.key}"}
    url = URL(f"{client.url}{FILES}/{path}", encoded=True)
    async with client.session.put(url, data=content, headers=headers) as answer:
        assert answer.status == 204


async def post(client: ApiClient, operation: str, **body: Any) -> ApiResponse:
    """Call an operation."""
    return await client.call("POST", f"{FILES}:{operation}", body)


async def names(client: ApiClient, path: str = "") -> list[str]:
    """Return the names in a directory."""
    return [one["name"] for one in (await client.call("GET", f"{FILES}{path}")).body["items"]]


async def test_files_are_described_renamed_and_copied(api: ApiServer) -> None:
    """Each answer is the entry as it is now."""
    await put(api.mine, "a/one.txt", b"1234")
    found = (await api.mine.call("GET", f"{FILES}:stat?path=a/one.txt")).body
    assert (found["name"], found["path"], found["kind"], found["size"]) == (
        "one.txt",
        "a/one.txt",
        "file",
        4,
    )
    assert (await api.mine.call("GET", f"{FILES}:stat")).body["kind"] == "directory"
    made = await post(api.mine, "mkdir", path="empty/dir")
    assert (made.status, made.body["kind"]) == (200, "directory")
    moved = await post(api.mine, "rename", path="a/one.txt", to="b/two.txt")
    assert (moved.status, moved.body["path"]) == (200, "b/two.txt")
    copied = await post(api.mine, "copy", path="b", to="c")
    assert (copied.status, copied.body["kind"]) == (200, "directory")
    assert await names(api.mine) == ["a", "b", "c", "empty"]
    assert (await api.mine.call("GET", f"{FILES}/c/two.txt")).body == b"1234"
    assert (await api.mine.call("DELETE", f"{FILES}/c")).status == 204
    assert (await api.mine.call("GET", f"{FILES}:stat?path=c")).status == 404


@pytest.mark.parametrize("path", ["../key", "a/../../key", "/etc/passwd", "a\0b", "x" * 4097, "."])
async def test_no_path_of_a_body_leads_out(api: ApiServer, path: str) -> None:
    """As source, as target and as a directory to create: a 422 that names the field, or a 404."""
    await put(api.mine, "mine", b"x")
    for operation, body, field in (
        ("mkdir", {"path": path}, "/path"),
        ("rename", {"path": path, "to": "free"}, "/path"),
        ("rename", {"path": "mine", "to": path}, "/to"),
        ("copy", {"path": path, "to": "free"}, "/path"),
        ("copy", {"path": "mine", "to": path}, "/to"),
        ("search", {"path": path, "text": "x"}, "/path"),
    ):
        answer = await post(api.mine, operation, **body)
        if path == "." and operation in ("mkdir", "search"):
            continue
        assert answer.status == 422, (operation, answer)
        assert answer.body["errors"][0]["pointer"] == field
    assert await names(api.mine) == ["mine"]


async def test_nothing_is_replaced(api: ApiServer) -> None:
    """A taken target is a 409, a missing source a 404, a directory into itself a 422."""
    await put(api.mine, "d/one", b"1")
    await put(api.mine, "two", b"2")
    for operation in ("rename", "copy"):
        assert (await post(api.mine, operation, path="two", to="d/one")).status == 409
        assert (await post(api.mine, operation, path="none", to="free")).status == 404
        assert (await post(api.mine, operation, path="d", to="d/e")).status == 422
    assert (await post(api.mine, "mkdir", path="two")).status == 409
    assert (await api.mine.call("GET", f"{FILES}/d/one")).body == b"1"


async def test_another_account_reaches_nothing(api: ApiServer) -> None:
    """Its own workspace of that name is another one, and a foreign id is not found."""
    await put(api.mine, "mine.txt", b"secret")
    workspace = (await api.mine.call("GET", "/accounts/me/workspaces/default")).body["id"]
    foreign = f"/accounts/me/workspaces/{workspace}/files"
    assert (await api.other.call("GET", f"{foreign}:stat?path=mine.txt")).status == 404
    for operation, body in (
        ("mkdir", {"path": "d"}),
        ("rename", {"path": "mine.txt", "to": "b"}),
        ("copy", {"path": "mine.txt", "to": "b"}),
        ("search", {"text": "secret"}),
    ):
        assert (await api.other.call("POST", f"{foreign}:{operation}", body)).status == 404
    assert await names(api.mine) == ["mine.txt"]


async def test_a_link_that_leads_out_moves_nothing(api: ApiServer, tmp_path: Path) -> None:
    """No operation goes through a link that a sandbox made, and a search follows none."""
    await put(api.mine, "first", b"x")
    account = (await api.mine.call("GET", "/accounts/me")).body["id"]
    workspace = (await api.mine.call("GET", "/accounts/me/workspaces/default")).body["id"]
    inside = tmp_path / "workspaces" / namespace(account, workspace)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"a secret of others")
    (inside / "up").symlink_to(outside)
    (inside / "stolen").symlink_to(outside / "secret")
    for operation, body in (
        ("mkdir", {"path": "up/new"}),
        ("rename", {"path": "up/secret", "to": "mine"}),
        ("rename", {"path": "first", "to": "up/first"}),
        ("copy", {"path": "up/secret", "to": "mine"}),
        ("copy", {"path": "first", "to": "up/first"}),
    ):
        assert (await post(api.mine, operation, **body)).status == 422, (operation, body)
    assert (await api.mine.call("GET", f"{FILES}:stat?path=up/secret")).status == 422
    assert (await api.mine.call("GET", f"{FILES}:stat?path=stolen")).body["kind"] == "link"
    assert (await post(api.mine, "search", text="secret")).body["items"] == []
    assert [path.name for path in outside.iterdir()] == ["secret"]


async def test_a_search_finds_text_and_names(api: ApiServer) -> None:
    """Lines with their numbers; a glob selects files; binary files and other cases are left out."""
    await put(api.mine, "src/a.py", b"import os\nprint('Needle here')\n")
    await put(api.mine, "src/deep/b.txt", b"needle\r\nneedle again\n")
    await put(api.mine, "binary", b"needle\0needle")
    found = (await post(api.mine, "search", text="needle")).body
    assert [(one["path"], one["line"], one["text"]) for one in found["items"]] == [
        ("src/deep/b.txt", 1, "needle"),
        ("src/deep/b.txt", 2, "needle again"),
    ]
    assert (found["files"], found["truncated"]) == (3, False)
    either = (await post(api.mine, "search", text="NEEDLE", ignore_case=True, glob="*.py")).body
    assert [(one["path"], one["line"]) for one in either["items"]] == [("src/a.py", 2)]
    by_name = (await post(api.mine, "search", glob="*.txt")).body
    assert [(one["path"], one["line"]) for one in by_name["items"]] == [("src/deep/b.txt", None)]
    below = (await post(api.mine, "search", text="needle", path="src/a.py", ignore_case=True)).body
    assert [one["path"] for one in below["items"]] == ["src/a.py"]
    cut = (await post(api.mine, "search", text="needle", limit=1)).body
    assert (len(cut["items"]), cut["truncated"]) == (1, True)
    assert (await post(api.mine, "search", text="x", path="none")).status == 404


async def test_an_invalid_search_is_refused(api: ApiServer) -> None:
    """Without a text and a glob, with several lines, with a pattern that is too long."""
    for body, field in (({}, "/text"), ({"text": "a\nb"}, "/text"), ({"glob": "a/" * 40}, "/glob")):
        answer = await post(api.mine, "search", **body)
        assert (answer.status, answer.body["errors"][0]["pointer"]) == (422, field)


async def test_changes_are_in_the_audit_log(api: ApiServer) -> None:
    """Operations that change files are, a search is not."""
    await put(api.mine, "one", b"x")
    await post(api.mine, "mkdir", path="d")
    await post(api.mine, "rename", path="one", to="two")
    await post(api.mine, "copy", path="two", to="three")
    await post(api.mine, "search", text="x")
    entries = (await api.mine.call("GET", "/accounts/me/audit")).body["items"]
    actions = [one["action"].rpartition("/files")[2] for one in entries]
    assert {":mkdir", ":rename", ":copy"} <= set(actions)
    assert ":search" not in actions

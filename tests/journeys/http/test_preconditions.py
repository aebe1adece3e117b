"""Versions of resources over HTTP: a change applies to the version that its author read, or to none."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api_server import ApiClient, ApiResponse, ApiServer, open_api_server
from gateway.accounts.persons import Sighting, see

ME = "/accounts/me"
STALE = '"0123456789abcdef0123456789abcdef"'
RESOURCES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "agents": ({"name": "one", "config": {"model": "builtin:shell"}}, {"config": {"instructions": "Hi."}}),
    "workspaces": ({"name": "one"}, {"name": "two"}),
    "sandboxes": ({"name": "one"}, {"config": {"permissionMode": "edit"}}),
    "skills": ({"name": "one", "config": {"description": "when"}}, {"config": {"description": "now"}}),
    "channels": (
        {"name": "one", "kind": "telegram", "settings": {"token": f"123456:{'A' * 35}"}},
        {"paused": True},
    ),
    "webhooks": ({"url": "https://example.org/hook"}, {"ordered": True}),
    "keys": ({"name": "one", "scopes": ["read"]}, {"name": "two"}),
}
"""What creates a resource of each collection, and what changes it."""


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A running API with two accounts."""
    async with open_api_server(tmp_path) as running:
        yield running


async def create(api: ApiServer, collection: str) -> str:
    """Create a resource and return its path."""
    body, _ = RESOURCES[collection]
    made = await api.mine.call("POST", f"{ME}/{collection}", body)
    assert made.status == 201, made.body
    return f"{ME}/{collection}/{made.body['id']}"


async def conditional(
    client: ApiClient, method: str, path: str, body: Any = None, *, match: str = "", none_match: str = ""
) -> ApiResponse:
    """Send a request with conditions."""
    given = {"If_Match": match, "If_None_Match": none_match}
    return await client.call(method, path, body, **{name: value for name, value in given.items() if value})


@pytest.mark.parametrize("collection", RESOURCES)
async def test_a_change_applies_to_the_version_that_was_read(api: ApiServer, collection: str) -> None:
    """A GET of a known version is 304; a stale change is refused with what the resource is now."""
    path, (_, change) = await create(api, collection), RESOURCES[collection]
    first = (await api.mine.call("GET", path)).headers["ETag"]
    unchanged = await conditional(api.mine, "GET", path, none_match=f'"x", W/{first}')
    assert (unchanged.status, unchanged.body, unchanged.headers["ETag"]) == (304, b"", first)
    changed = await conditional(api.mine, "PATCH", path, change, match=first)
    assert changed.status == 200, changed.body
    now = await conditional(api.mine, "GET", path, none_match=first)
    assert (now.status, now.headers["ETag"]) == (200, changed.headers["ETag"])
    assert now.headers["ETag"] != first
    for method, body in (("PATCH", change), ("DELETE", None)):
        refused = await conditional(api.mine, method, path, body, match=first)
        assert (refused.status, refused.headers["ETag"]) == (412, now.headers["ETag"])
        assert refused.body["current"] == now.body
        assert "new ETag" in refused.body["detail"]
    assert (await api.mine.call("GET", path)).body == now.body
    assert (
        await conditional(api.mine, "DELETE", path, match=f"{STALE}, {now.headers['ETag']}")
    ).status == 204


async def test_conditions_hide_what_belongs_to_others(api: ApiServer) -> None:
    """Another account gets the 404 of something that does not exist, whatever versions it names."""
    path = await create(api, "agents")
    etag = (await api.mine.call("GET", path)).headers["ETag"]
    for match in (etag, STALE, "*"):
        for method, body in (("PATCH", {"name": "x"}), ("DELETE", None)):
            foreign = await conditional(api.other, method, path, body, match=match)
            missing = await conditional(api.other, method, f"{ME}/agents/agt_none", body, match=match)
            assert (foreign.status, foreign.body) == (missing.status, missing.body)
            assert foreign.status == 404
            assert "ETag" not in foreign.headers
    assert (await conditional(api.other, "GET", path, none_match="*")).status == 404


async def test_what_is_no_version_is_refused_and_a_weak_one_never_matches(api: ApiServer) -> None:
    """A malformed If-Match is 400, so that no client takes itself for protected; `*` is any version."""
    path = await create(api, "agents")
    etag = (await api.mine.call("GET", path)).headers["ETag"]
    for malformed in ("abc", etag.strip('"'), ","):
        assert (await conditional(api.mine, "PATCH", path, {}, match=malformed)).status == 400
    assert (await conditional(api.mine, "PATCH", path, {}, match=f"W/{etag}")).status == 412
    assert (await conditional(api.mine, "PATCH", path, {}, match="*")).status == 200


async def test_of_changes_at_the_same_time_one_wins(api: ApiServer) -> None:
    """Of ten changes of one version a single one is made, of a record as of a file."""
    path = await create(api, "agents")
    etag = (await api.mine.call("GET", path)).headers["ETag"]
    done = await asyncio.gather(
        *(
            conditional(api.mine, "PATCH", path, {"config": {"instructions": str(count)}}, match=etag)
            for count in range(10)
        )
    )
    assert Counter(one.status for one in done) == {200: 1, 412: 9}
    file = f"{ME}/workspaces/default/files/notes.txt"
    done = await asyncio.gather(*(conditional(api.mine, "PUT", file, {}, none_match="*") for _ in range(10)))
    assert Counter(one.status for one in done) == {204: 1, 412: 9}


async def test_a_file_is_replaced_and_deleted_by_its_version(api: ApiServer) -> None:
    """The version of a file is that of its content; a new one may be demanded with `*`."""
    file = f"{ME}/workspaces/default/files/plan.json"
    assert (await conditional(api.mine, "PUT", file, {}, match="*")).status == 412
    written = await conditional(api.mine, "PUT", file, {"a": 1}, none_match="*")
    assert written.status == 204
    read = await api.mine.call("GET", file)
    assert read.headers["ETag"] == written.headers["ETag"]
    assert (await conditional(api.mine, "GET", file, none_match=read.headers["ETag"])).status == 304
    assert (await conditional(api.mine, "PUT", file, {"a": 2}, match=read.headers["ETag"])).status == 204
    stale = await conditional(api.mine, "PUT", file, {"a": 3}, match=read.headers["ETag"])
    assert (stale.status, stale.body["size"]) == (412, len(b'{"a": 2}'))
    assert (await conditional(api.mine, "DELETE", file, match=read.headers["ETag"])).status == 412
    assert (await conditional(api.mine, "DELETE", file, match=stale.headers["ETag"])).status == 204
    assert (await conditional(api.mine, "DELETE", file, match=stale.headers["ETag"])).status == 404
    foreign = await conditional(api.other, "DELETE", f"{ME}/workspaces/none/files/plan.json", match="*")
    assert foreign.status == 404


async def test_budgets_are_replaced_by_their_version(api: ApiServer) -> None:
    """Of ten changes of one version of the people's budget one is made; so it is with one person's."""
    path, wanted = f"{ME}/budget", {"person_day": {"requests": 5}}
    first = (await api.mine.call("GET", path)).headers["ETag"]
    done = await asyncio.gather(*(conditional(api.mine, "PUT", path, wanted, match=first) for _ in range(10)))
    assert Counter(one.status for one in done) == {200: 1, 412: 9}
    now = await conditional(api.mine, "GET", path, none_match=first)
    assert (now.status, now.body["person_day"]["requests"]) == (200, 5)
    assert (await conditional(api.mine, "GET", path, none_match=now.headers["ETag"])).status == 304
    other = f"{ME}/persons/{await add_person(api)}/budget"
    seen = (await api.mine.call("GET", other)).headers["ETag"]
    given = await conditional(api.mine, "PUT", other, {"day": {"tokens": 7}}, match=seen)
    assert (given.status, given.body["budget"]["day"]["tokens"]) == (200, 7)
    assert (await conditional(api.mine, "DELETE", other, match=seen)).status == 412
    assert (await conditional(api.mine, "DELETE", other, match=given.headers["ETag"])).body["budget"] is None


async def add_person(api: ApiServer) -> str:
    """Let a person be seen in the account of `mine`, and return the id."""
    account = (await api.mine.call("GET", ME)).body["id"]
    async with api.context.database.begin() as connection:
        seen = Sighting(account=account, platform="telegram", author="7", name="Ada")
        return (await see(connection, seen)).person


async def test_the_gzip_form_of_a_resource_has_a_version_of_its_own(api: ApiServer) -> None:
    """A record is compressed for who accepts that; a condition may name the version of either form."""
    path = await create(api, "agents")
    plain = await api.mine.call("GET", path, Accept_Encoding="identity")
    packed = await api.mine.call("GET", path, Accept_Encoding="gzip")
    tags = (plain.headers["ETag"], packed.headers["ETag"])
    assert (packed.headers["Content-Encoding"], packed.body) == ("gzip", plain.body)
    assert tags[1] == f'{tags[0][:-1]}-gzip"'
    for named in tags:
        for encoding, own in zip(("identity", "gzip"), tags, strict=True):
            given = {"If_None_Match": named, "Accept_Encoding": encoding}
            known = await api.mine.call("GET", path, **given)
            assert (known.status, known.headers["ETag"]) == (304, own)
    assert (await conditional(api.mine, "PATCH", path, {"name": "a"}, match=tags[1])).status == 200
    assert (await conditional(api.mine, "PATCH", path, {"name": "b"}, match=tags[0])).status == 412

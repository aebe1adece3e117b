"""The audit log over HTTP: an account's own, and the operator's of all accounts."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from api_server import ADMIN_KEY, ApiClient
from gateway_process import gateway


async def test_administrative_requests_are_written_down(tmp_path: Path) -> None:
    """Made, refused and failed: each with the key, the route, the object; reading leaves no trace."""
    async with gateway(tmp_path / "data") as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        made = await mine.call("POST", "/accounts/me/keys", {"name": "reader", "scopes": ["read"]})
        reader = ApiClient(session=session, url=process.url, key=made.body["key"])
        await reader.call("DELETE", "/accounts/me/keys/first")
        await mine.call("DELETE", "/accounts/me/agents/nobody")
        await mine.call("GET", "/accounts/me/keys")

        deeds = (await mine.call("GET", "/accounts/me/audit")).body["items"]
        assert [(deed["action"], deed["status"]) for deed in deeds] == [
            ("DELETE /accounts/me/agents/{id}", 404),
            ("DELETE /accounts/me/keys/{id}", 403),
            ("POST /accounts/me/keys", 201),
        ]
        assert deeds[1]["actor"] == deeds[2]["object"] == made.body["id"]
        assert (await reader.call("GET", "/accounts/me/audit")).status == 403


async def test_the_operator_reads_the_entries_of_all_accounts(tmp_path: Path) -> None:
    """The account sees what the operator did to it; after its deletion the operator sees all of it."""
    env = {"DOVECOTE_ADMIN_KEY": ADMIN_KEY}
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        made = (await operator.call("POST", "/accounts", {"name": "second"})).body
        tenant = ApiClient(session=session, url=process.url, key=made["key"])
        await operator.call("POST", "/accounts/second/keys", {"name": "found"})
        await operator.call("PUT", f"/accounts/{made['id']}/storage", {"limit_bytes": 1_000_000})
        await operator.call("DELETE", "/accounts/nobody")
        await tenant.call("POST", "/accounts/me/keys", {"name": "own"})

        own = (await tenant.call("GET", "/accounts/me/audit")).body["items"]
        assert [(entry["actor"], entry["action"]) for entry in own[1:]] == [
            ("operator", "PUT /accounts/{id}/storage"),
            ("operator", "POST /accounts/{id}/keys"),
            ("operator", "POST /accounts"),
        ]
        assert own[0]["actor"].startswith("key_")
        assert own[0]["address"] == "127.0.0.1"
        assert {entry["address"] for entry in own[1:]} == {""}, "where the operator works"

        await operator.call("DELETE", "/accounts/second")
        of_one = (await operator.call("GET", f"/audit?account={made['id']}")).body["items"]
        assert of_one[0]["action"] == "DELETE /accounts/{id}"
        assert [entry["id"] for entry in of_one[1:]] == [entry["id"] for entry in own]
        assert {entry["account"] for entry in of_one} == {made["id"]}
        assert {entry["address"] for entry in of_one} == {"127.0.0.1"}
        every = (await operator.call("GET", "/audit")).body["items"]
        assert [entry["account"] for entry in every if entry["status"] == 404] == [None]
        page = (await operator.call("GET", f"/audit?limit=2&cursor={every[0]['id']}")).body
        assert page["items"] == every[1:3]
        mine = ApiClient(session=session, url=process.url, key=process.key)
        assert (await mine.call("GET", "/audit")).status == 403

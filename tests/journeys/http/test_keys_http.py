"""Keys, accounts and repeated requests over HTTP, and the records that exist at every start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api_server import ApiClient, ApiServer, open_api_server
from gateway.config.setting_types import AgentSettings
from gateway.records.bootstrap import ensure_defaults

PLURALS = ["agents", "workspaces", "sandboxes"]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A running face."""
    async with open_api_server(tmp_path) as running:
        yield running


def files_with_text(folder: Path, text: str) -> list[Path]:
    """Return the files that hold a text (other than the key file, whose purpose that is)."""
    found = [file for file in folder.rglob("*") if file.is_file() and file.name != "key"]
    return [file for file in found if text.encode() in file.read_bytes()]


async def create_record(client: ApiClient, plural: str, name: str = "mine", **config: object) -> str:
    """Make a record and return its id."""
    answer = await client.call("POST", f"/accounts/me/{plural}", {"name": name, "config": config})
    assert answer.status == 201, answer.body
    return str(answer.body["id"])


async def test_a_key_learns_its_own_id(api: ApiServer) -> None:
    """The account's response has the id of the asking key, under which its messages are shown."""
    keys = {key["name"]: key["id"] for key in (await api.mine.call("GET", "/accounts/me/keys")).body["items"]}
    assert (await api.mine.call("GET", "/accounts/me")).body["key"] == keys["default"]


async def test_a_key_does_what_its_scopes_say(api: ApiServer) -> None:
    """A reading key reads; making records, keys and accounts needs more."""
    key = (await api.mine.call("POST", "/accounts/me/keys", {"name": "r", "scopes": ["read"]})).body["key"]
    reader = ApiClient(session=api.mine.session, url=api.url, key=key)
    assert (await reader.call("GET", "/accounts/me/agents")).status == 200
    assert (await reader.call("POST", "/accounts/me/agents", {"name": "a"})).status == 403
    assert (await reader.call("POST", "/accounts/me/keys", {"name": "k"})).status == 403
    assert (await reader.call("POST", "/accounts", {"name": "k"})).status == 403


async def test_a_key_is_renamed_by_its_name(api: ApiServer) -> None:
    """Who changes a key by its old name is shown the key under its new one."""
    made_key = await api.mine.call("POST", "/accounts/me/keys", {"name": "old", "scopes": ["read"]})
    renamed = await api.mine.call("PATCH", "/accounts/me/keys/old", {"name": "new"})
    assert (renamed.status, renamed.body["name"]) == (200, "new")
    assert renamed.body["id"] == made_key.body["id"]
    assert (await api.mine.call("GET", "/accounts/me/keys/old")).status == 404


async def test_a_revoked_key_opens_nothing(api: ApiServer) -> None:
    """The next request with a revoked key is 401."""
    made_key = await api.mine.call("POST", "/accounts/me/keys", {"name": "k"})
    client = ApiClient(session=api.mine.session, url=api.url, key=made_key.body["key"])
    assert (await client.call("GET", "/accounts/me")).status == 200
    assert (await api.mine.call("DELETE", "/accounts/me/keys/k")).status == 204
    assert (await client.call("GET", "/accounts/me")).status == 401


async def test_only_the_operator_makes_accounts(api: ApiServer) -> None:
    """An account's own key is not enough, whatever fields come with it; without a key it is 401."""
    body = {"name": "new"}
    assert (await api.mine.call("POST", "/accounts", body)).status == 403
    assert (await api.anonymous.call("POST", "/accounts", body)).status == 401
    made_account = await api.operator.call("POST", "/accounts", body)
    assert made_account.status == 201
    fresh = ApiClient(session=api.mine.session, url=api.url, key=made_account.body["key"])
    assert (await fresh.call("GET", "/accounts/me")).body["id"] == made_account.body["id"]
    assert (await api.operator.call("POST", "/accounts", body)).status == 409
    assert (await api.operator.call("GET", "/accounts/me")).status == 401


async def test_the_operator_sees_and_ends_accounts(api: ApiServer) -> None:
    """Accounts are listed, found by id or name, given a further key, and deleted by the operator only."""
    theirs = (await api.other.call("GET", "/accounts/me")).body
    listed = (await api.operator.call("GET", "/accounts")).body["items"]
    assert [one["name"] for one in listed] == ["default", "other"]
    for named in ("other", theirs["id"]):
        assert (await api.operator.call("GET", f"/accounts/{named}")).body["id"] == theirs["id"]
    lost = {"name": "again", "scopes": ["read"]}
    reported = await api.operator.call("POST", "/accounts/other/keys", lost)
    assert (reported.status, reported.body["scopes"]) == (201, ["read"])
    again = ApiClient(session=api.mine.session, url=api.url, key=reported.body["key"])
    assert (await again.call("GET", "/accounts/me")).body["id"] == theirs["id"]
    budget = {"seconds": 60.0, "requests": 7, "tokens": 0, "cost": 0.0}
    set_budget = (await api.operator.call("PUT", "/accounts/other/budget", budget)).body
    assert {name: set_budget[name] for name in budget} == budget
    assert (await api.operator.call("GET", "/accounts/other/budget")).body == set_budget
    used = await api.operator.call("GET", "/accounts/other/usage")
    assert (used.status, used.body["budget"], used.body["total"]["requests"]) == (200, set_budget, 0)
    assert (await api.operator.call("PUT", "/accounts/none/budget", budget)).status == 404
    asked = [("GET", "/accounts"), ("GET", "/accounts/other"), ("DELETE", "/accounts/other")]
    asked.append(("GET", "/accounts/other/usage"))
    for method, path in [*asked, ("POST", "/accounts/other/keys")]:
        body = lost if method == "POST" else None
        assert (await api.mine.call(method, path, body)).status == 403
        assert (await api.anonymous.call(method, path, body)).status == 401
    assert (await api.operator.call("DELETE", "/accounts/other")).status == 204
    assert (await again.call("GET", "/accounts/me")).status == 401
    assert (await api.operator.call("GET", "/accounts/other")).status == 404
    assert (await api.operator.call("POST", "/accounts/other/keys", lost)).status == 404


async def test_budgets_of_days_and_months(api: ApiServer) -> None:
    """The operator limits the account, the account its people; neither changes what the other has set."""
    none = {"requests": 0, "tokens": 0, "cost": 0.0}
    day, month = none | {"tokens": 1000}, none | {"cost": 2.5}
    path = f"/accounts/{(await api.mine.call('GET', '/accounts/me')).body['id']}/budget"
    assert (await api.operator.call("PUT", path, {"day": day})).status == 200
    assert (await api.mine.call("PUT", "/accounts/me/budget", {"person_month": month})).status == 200
    budget = (await api.mine.call("GET", "/accounts/me/usage")).body["budget"]
    assert (budget["day"], budget["month"]) == (day, none)
    assert (budget["person_day"], budget["person_month"]) == (none, month)
    assert (await api.mine.call("PUT", path, {"day": none})).status == 403
    wrong: list[dict[str, object]] = [{"day": {}}]
    wrong += [{"person_day": {"tokens": tokens}} for tokens in (-1, 2**60)]
    for body in wrong:
        assert (await api.mine.call("PUT", "/accounts/me/budget", body)).status == 422
    assert (await api.operator.call("PUT", path, {"day": {"cost": 1e300}})).status == 422


async def test_an_account_has_a_time_zone(api: ApiServer) -> None:
    """A name of IANA or null, and nothing else."""
    assert (await api.mine.call("GET", "/accounts/me")).body["timezone"] is None
    changed = await api.mine.call("PATCH", "/accounts/me", {"timezone": "Asia/Tokyo"})
    assert (changed.status, changed.body["timezone"]) == (200, "Asia/Tokyo")
    wrong = await api.mine.call("PATCH", "/accounts/me", {"timezone": "../etc/passwd"})
    assert (wrong.status, wrong.body["errors"][0]["pointer"]) == (422, "/timezone")
    assert (await api.mine.call("PATCH", "/accounts/me", {"timezone": None})).body["timezone"] is None
    assert (await api.other.call("GET", "/accounts/me")).body["timezone"] is None


async def test_a_removed_account_is_gone_with_its_keys(api: ApiServer) -> None:
    """After its removal the account's key opens nothing; the other account is untouched."""
    await create_record(api.other, "agents")
    assert (await api.other.call("DELETE", "/accounts/me")).status == 204
    assert (await api.other.call("GET", "/accounts/me")).status == 401
    assert (await api.mine.call("GET", "/accounts/me/agents")).status == 200


async def test_the_same_post_twice_is_carried_out_once(api: ApiServer) -> None:
    """An Idempotency-Key answers the second request as the first, the secret included."""
    body = {"url": "https://example.org/"}
    first = await api.mine.call("POST", "/accounts/me/webhooks", body, Idempotency_Key="k1")
    second = await api.mine.call("POST", "/accounts/me/webhooks", body, Idempotency_Key="k1")
    assert (second.status, second.body) == (first.status, first.body)
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len((await api.mine.call("GET", "/accounts/me/webhooks")).body["items"]) == 1
    foreign = await api.other.call("POST", "/accounts/me/webhooks", body, Idempotency_Key="k1")
    assert foreign.body["id"] != first.body["id"]


async def test_the_same_key_for_something_else_is_refused(api: ApiServer) -> None:
    """Another body or another path under a used key is a 422."""
    await api.mine.call("POST", "/accounts/me/agents", {"name": "a"}, Idempotency_Key="k")
    other_body = await api.mine.call("POST", "/accounts/me/agents", {"name": "b"}, Idempotency_Key="k")
    other_path = await api.mine.call("POST", "/accounts/me/keys", {"name": "a"}, Idempotency_Key="k")
    assert (other_body.status, other_path.status) == (422, 422)


async def test_a_refused_post_gives_its_key_back(api: ApiServer) -> None:
    """What was refused may be corrected under the same key."""
    refused = await api.mine.call("POST", "/accounts/me/agents", {"name": ""}, Idempotency_Key="k")
    fault = {"name": "a", "config": {"sandbox": "nowhere"}}
    again = await api.mine.call("POST", "/accounts/me/agents", fault, Idempotency_Key="k")
    corrected = await api.mine.call("POST", "/accounts/me/agents", {"name": "a"}, Idempotency_Key="k")
    assert (refused.status, again.status, corrected.status) == (422, 422, 201)


async def test_the_same_post_at_once_is_carried_out_once(api: ApiServer) -> None:
    """Of ten concurrent requests with one key one is executed, and all get its answer."""
    body = {"name": "k"}
    answers = await asyncio.gather(
        *(api.mine.call("POST", "/accounts/me/keys", body, Idempotency_Key="k") for _ in range(10))
    )
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body["key"] for answer in answers}) == 1
    named = [k for k in (await api.mine.call("GET", "/accounts/me/keys")).body["items"] if k["name"] == "k"]
    assert len(named) == 1


async def test_returned_secrets_are_not_stored_in_clear(api: ApiServer, tmp_path: Path) -> None:
    """A stored answer is encrypted."""
    reported = await api.mine.call("POST", "/accounts/me/keys", {"name": "k"}, Idempotency_Key="k")
    assert not files_with_text(tmp_path, reported.body["key"])


async def test_defaults_stay_at_every_start_and_follow_the_settings(api: ApiServer, tmp_path: Path) -> None:
    """A start makes nothing new; a model that is new in the settings becomes the default agent's."""

    async def start(model: str) -> str:
        async with api.context.database.begin() as connection:
            ready = await ensure_defaults(
                connection, api.context.records, data=tmp_path, agent=AgentSettings(model=model)
            )
        return ready.agent.id

    key = (tmp_path / "key").read_text()
    patched = {"config": {"instructions": "be kind"}}
    await api.mine.call("PATCH", "/accounts/me/agents/default", patched)
    first, second = await start("builtin:shell"), await start("openai:gpt")
    assert first == second
    assert (tmp_path / "key").read_text() == key
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    config = (await api.mine.call("GET", "/accounts/me/agents/default")).body["config"]
    assert (config["model"], config["instructions"]) == ("openai:gpt", "be kind")
    chosen = {"config": {"model": "openai:chosen", "fallback": ["openai:other"]}}
    await api.mine.call("PATCH", "/accounts/me/agents/default", chosen)
    for model, expected in (("openai:gpt", "openai:chosen"), ("openai:new", "openai:new")):
        await start(model)
        config = (await api.mine.call("GET", "/accounts/me/agents/default")).body["config"]
        assert (config["model"], config["fallback"]) == (expected, ["openai:other"])
    for plural in PLURALS:
        assert len((await api.mine.call("GET", f"/accounts/me/{plural}")).body["items"]) == 1


async def test_a_revoked_default_key_is_replaced_at_the_next_start(api: ApiServer, tmp_path: Path) -> None:
    """The key file always opens the default account."""
    old = (tmp_path / "key").read_text()
    await api.mine.call("DELETE", "/accounts/me/keys/default")
    async with api.context.database.begin() as connection:
        await ensure_defaults(connection, api.context.records, data=tmp_path, agent=AgentSettings())
    fresh = ApiClient(session=api.mine.session, url=api.url, key=(tmp_path / "key").read_text().strip())
    assert fresh.key != old.strip()
    assert (await fresh.call("GET", "/accounts/me")).status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/nothing", "/nothing.js", "/vendor/nothing.mjs", "/v2/x"])
async def test_what_does_not_exist_has_no_methods(api: ApiServer, method: str, path: str) -> None:
    """An unknown path is 404 for every method; the console's own files accept GET alone."""
    body: dict[str, str] | None = {} if method in ("POST", "PUT") else None
    assert (await api.mine.call(method, path, body)).status == 404
    assert (await api.mine.call("GET", "/app.js")).status == (await api.mine.call("GET", "/")).status == 200
    assert (await api.mine.call("POST", "/app.js", {})).status == 405


@pytest.mark.parametrize(
    ("method", "path", "headers", "pointer"),
    [
        ("POST", "/accounts/me/agents", {"Idempotency_Key": "x" * 201}, "header/Idempotency-Key"),
        ("POST", "/accounts/me/agents", {"Idempotency_Key": "used"}, "header/Idempotency-Key"),
        ("POST", "/accounts/me/agents", {}, ""),
        ("GET", "/accounts/me/agents?limit=0", {}, "?/limit"),
        ("GET", "/accounts/me/workspaces/default/files/..%2Fx", {}, "path"),
        ("PUT", "/accounts/me/agents/default/files/notes.txt", {}, "path"),
    ],
)
async def test_what_is_refused_says_where(
    api: ApiServer, method: str, path: str, headers: dict[str, str], pointer: str
) -> None:
    """Every 422 names the place of what is wrong, in the body or outside it."""
    used = await api.mine.call("POST", "/accounts/me/agents", {"name": "a"}, Idempotency_Key="used")
    assert used.status == 201
    body: object = None if method != "POST" else {"name": "b"} if headers else []
    answer = await api.mine.call(method, path, body, **headers)
    assert (answer.status, [fault["pointer"] for fault in answer.body["errors"]]) == (422, [pointer])

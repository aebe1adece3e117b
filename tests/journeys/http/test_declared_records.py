"""Records that the settings file declares: made, changed, released and deleted with the file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from api_server import ApiServer, open_api_server
from gateway.records.declared import DeclaredRecords, apply_declared
from gateway.records.errors import InvalidRecord

Config = Mapping[str, Any]

CODER: Config = {
    "model": "builtin:shell",
    "sandbox": "heavy",
    "workspaces": [{"name": "a", "workspaceId": "repo"}],
}
LOGIN: Config = {"host": "git.example.org", "kind": "basic", "secret": "ada:canary", "agents": ["coder"]}
FILE = DeclaredRecords(
    sandboxes={"heavy": {"provider": "host", "envVars": {"TOKEN": "canary-one"}}},
    workspaces={"repo": {}},
    agents={"coder": CODER},
    credentials={"git": LOGIN},
    channels={"telegram": {"token": f"1:{'A' * 35}", "agent": "coder"}},
)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Open the API on a database of its own."""
    async with open_api_server(tmp_path) as server:
        yield server


async def apply(api: ApiServer, declared: DeclaredRecords) -> list[str]:
    """Apply a file to the account and return the changes, one text each."""
    async with api.context.database.begin() as connection:
        account = (await api.mine.call("GET", "/accounts/me")).body["id"]
        changes = await apply_declared(connection, api.context.records, account, declared)
    return [" ".join((one.change, one.kind, one.name, *one.fields)) for one in changes]


async def listed(api: ApiServer, plural: str) -> dict[str, Any]:
    """Return the account's records of a kind that others than the gateway made, by name."""
    items = (await api.mine.call("GET", f"/accounts/me/{plural}")).body["items"]
    return {one["name"]: one for one in items if one["name"] != "default"}


async def test_a_file_makes_changes_and_deletes_its_own_records(api: ApiServer) -> None:
    """What is as the file says is not written again; records of HTTP are left alone."""
    made = await api.mine.call(
        "POST", "/accounts/me/agents", {"name": "mine", "config": {"model": "builtin:shell"}}
    )
    assert made.status == 201
    assert await apply(api, FILE) == [
        "create sandbox heavy",
        "create workspace repo",
        "create agent coder",
        "create credential git",
        "create channel telegram",
    ]
    agents = await listed(api, "agents")
    assert {name: one["managed"] for name, one in agents.items()} == {"coder": True, "mine": False}
    assert await apply(api, FILE) == []
    assert (await listed(api, "agents"))["coder"]["updated_at"] == agents["coder"]["updated_at"]
    for path in (f"agents/{agents['coder']['id']}", "sandboxes/heavy", "workspaces/repo"):
        assert (await api.mine.call("PATCH", f"/accounts/me/{path}", {"config": {}})).status == 409
        assert (await api.mine.call("DELETE", f"/accounts/me/{path}")).status == 409
    (shown,) = (await api.mine.call("GET", "/accounts/me/credentials")).body["items"]
    assert shown["managed"]
    assert "canary" not in str(shown)
    assert (await api.mine.call("DELETE", f"/accounts/me/credentials/{shown['id']}")).status == 409
    changed = DeclaredRecords(
        sandboxes={"heavy": {"provider": "host", "envVars": {"TOKEN": "canary-two"}}},
        workspaces=FILE.workspaces,
        agents={"coder": {**CODER, "instructions": "Be thorough."}},
        credentials={"git": {**LOGIN, "secret": "ada:other"}},
        channels=FILE.channels,
    )
    assert await apply(api, changed) == [
        "update sandbox heavy envVars",
        "update agent coder instructions",
        "update credential git secret",
    ]
    assert await apply(api, DeclaredRecords()) == [
        "delete channel telegram",
        "delete credential git",
        "delete agent coder",
        "release workspace repo",
        "delete sandbox heavy",
    ]
    assert (await listed(api, "workspaces"))["repo"]["managed"] is False
    assert list(await listed(api, "agents")) == ["mine"]


async def test_a_record_that_others_use_is_released(api: ApiServer) -> None:
    """An agent of HTTP keeps its sandbox, which HTTP can change from then on."""
    await apply(api, DeclaredRecords(sandboxes=FILE.sandboxes))
    user = {"name": "mine", "config": {"model": "builtin:shell", "sandbox": "heavy"}}
    assert (await api.mine.call("POST", "/accounts/me/agents", user)).status == 201
    assert await apply(api, DeclaredRecords()) == ["release sandbox heavy"]
    kept = await api.mine.call("PATCH", "/accounts/me/sandboxes/heavy", {"config": {"memoryLimit": 512}})
    assert kept.status == 200


async def test_a_record_of_http_becomes_the_files(api: ApiServer) -> None:
    """A name that the file takes is the file's from then on, with the same id."""
    await api.mine.call(
        "POST", "/accounts/me/agents", {"name": "coder", "config": {"model": "builtin:shell"}}
    )
    before = (await listed(api, "agents"))["coder"]
    assert await apply(api, DeclaredRecords(agents={"coder": {"model": "builtin:shell"}})) == [
        "update agent coder"
    ]
    after = (await listed(api, "agents"))["coder"]
    assert (after["id"], after["managed"]) == (before["id"], True)


@pytest.mark.parametrize(
    ("declared", "pointer"),
    [
        (DeclaredRecords(agents={"coder": {"model": "pigeon"}}), "/agents/coder/model"),
        (
            DeclaredRecords(agents={"coder": {"model": "builtin:shell", "sandbox": "none"}}),
            "/agents/coder/sandbox",
        ),
        (DeclaredRecords(agents={"default": {"model": "builtin:shell"}}), "/agents/default"),
        (DeclaredRecords(sandboxes={"heavy": {"provider": "pigeon"}}), "/sandboxes/heavy/provider"),
        (DeclaredRecords(workspaces={"repo": {"colour": "red"}}), "/workspaces/repo/colour"),
    ],
)
async def test_a_wrong_table_says_where_and_changes_nothing(
    api: ApiServer, declared: DeclaredRecords, pointer: str
) -> None:
    """One problem keeps the whole file from being applied."""
    whole = DeclaredRecords(
        sandboxes=FILE.sandboxes if not declared.sandboxes else declared.sandboxes,
        workspaces=declared.workspaces,
        agents=declared.agents,
    )
    with pytest.raises(InvalidRecord) as caught:
        await apply(api, whole)
    assert pointer in [one.pointer for one in caught.value.problems]
    assert await listed(api, "sandboxes") == {}

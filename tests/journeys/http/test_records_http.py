"""Records over HTTP: made, read, changed and removed by their own account alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from api_server import ApiClient, ApiServer, open_api_server
from gateway.accounts.vault import DecryptionFailed
from gateway.store.accounts import records

PLURALS = ["agents", "workspaces", "sandboxes"]
EVERY = [*PLURALS, "channels", "webhooks", "keys"]
ODD_IDS = [
    "*",
    ">",
    ".",
    "..",
    "a.b",
    "../../etc/passwd",
    "a\r\nb",
    "a\0b",
    "%00",
    "\N{PILE OF POO}",
    "x" * 4096,
    "' OR 1=1 --",
    "sbx_" + "0" * 26,
    "\u202e",
]
LOGIN = {"host": "git.example.org", "kind": "basic", "secret": "ada:canary", "agents": ["default"]}
CANARY = "canary-of-a-secret-5f1c"


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


@pytest.mark.parametrize("plural", PLURALS)
async def test_a_record_lives_from_making_to_removal(api: ApiServer, plural: str) -> None:
    """It is made, listed, shown by id and by name, renamed, and gone after its removal."""
    record = await create_record(api.mine, plural)
    listed = await api.mine.call("GET", f"/accounts/me/{plural}")
    assert record in [item["id"] for item in listed.body["items"]]
    shown = await api.mine.call("GET", f"/accounts/me/{plural}/mine")
    assert shown.body["id"] == record
    renamed = await api.mine.call("PATCH", f"/accounts/me/{plural}/{record}", {"name": "yours"})
    assert (renamed.status, renamed.body["name"]) == (200, "yours")
    removed = await api.mine.call("DELETE", f"/accounts/me/{plural}/yours")
    assert (removed.status, removed.body) == (204, b"")
    assert (await api.mine.call("GET", f"/accounts/me/{plural}/{record}")).status == 404


@pytest.mark.parametrize("plural", PLURALS)
async def test_another_account_finds_nothing(api: ApiServer, plural: str) -> None:
    """Reading, changing and removing another account's record is 404, as if it were not there."""
    record = await create_record(api.mine, plural)
    for wanted in (record, "mine"):
        path = f"/accounts/me/{plural}/{wanted}"
        assert (await api.other.call("GET", path)).status == 404
        assert (await api.other.call("PATCH", path, {"name": "stolen"})).status == 404
        assert (await api.other.call("DELETE", path)).status == 404
    assert (await api.mine.call("GET", f"/accounts/me/{plural}/{record}")).body["name"] == "mine"


async def test_another_account_finds_no_key_and_no_webhook(api: ApiServer) -> None:
    """Keys and webhooks of one account cannot be seen, ended or rotated by another."""
    key = await api.mine.call("POST", "/accounts/me/keys", {"name": "k"})
    hook = await api.mine.call("POST", "/accounts/me/webhooks", {"url": "https://example.org/", "name": "h"})
    paths = [f"/accounts/me/keys/{key.body['id']}", f"/accounts/me/webhooks/{hook.body['id']}"]
    for path in [*paths, "/accounts/me/keys/k", "/accounts/me/webhooks/h"]:
        assert (await api.other.call("GET", path)).status == 404
        assert (await api.other.call("DELETE", path)).status == 404
    for name in (hook.body["id"], "h"):
        assert (await api.other.call("POST", f"/webhooks/{name}/rotate")).status == 404


@pytest.mark.parametrize("wanted", ODD_IDS)
async def test_a_strange_id_is_not_found(api: ApiServer, wanted: str) -> None:
    """Patterns, paths, control characters and walls of text are no id of anything."""
    for plural in EVERY:
        path = f"/accounts/me/{plural}/{quote(wanted, safe='')}"
        for method, body in (("GET", None), ("PATCH", {"name": "n"}), ("DELETE", None)):
            answer = await api.mine.call(method, path, body)
            assert answer.status in (404, 405), (method, plural, answer)


async def test_a_name_is_taken_once(api: ApiServer) -> None:
    """A second record of the same name is a conflict; another account may use the name."""
    await create_record(api.mine, "sandboxes")
    again = await api.mine.call("POST", "/accounts/me/sandboxes", {"name": "mine"})
    assert (again.status, again.body["title"]) == (409, "Conflict")
    await create_record(api.other, "sandboxes")


async def test_variables_are_sealed_and_never_shown(api: ApiServer, tmp_path: Path) -> None:
    """A sandbox's variables are shown by name; their values are nowhere in answers or files."""
    record = await create_record(api.mine, "sandboxes", envVars={"TOKEN": CANARY, "B": f"{CANARY}-2"})
    shown = await api.mine.call("GET", f"/accounts/me/sandboxes/{record}")
    assert shown.body["config"]["envVars"] == {"TOKEN": "***", "B": "***"}
    patch = {"config": {"envVars": {"TOKEN": "***", "B": None, "C": "c"}}}
    changed = await api.mine.call("PATCH", f"/accounts/me/sandboxes/{record}", patch)
    assert set(changed.body["config"]["envVars"]) == {"TOKEN", "C"}
    async with api.context.database.read() as connection:
        account = (await api.mine.call("GET", "/accounts/me")).body["id"]
        stored = await api.context.records.get(connection, account, "sandbox", record)
    assert api.context.records.sandbox_config(stored).env_vars == {"TOKEN": CANARY, "C": "c"}
    assert not files_with_text(tmp_path, CANARY)


async def test_a_secret_of_another_record_does_not_open(api: ApiServer) -> None:
    """A ciphertext copied into another row is refused, not revealed."""
    account = (await api.mine.call("GET", "/accounts/me")).body["id"]
    await create_record(api.mine, "sandboxes", "one", envVars={"TOKEN": CANARY})
    await create_record(api.mine, "sandboxes", "two", envVars={"TOKEN": "other"})
    async with api.context.database.begin() as connection:
        one = await records.get(connection, account, "sandbox", "one")
        two = await records.get(connection, account, "sandbox", "two")
    assert one is not None
    assert two is not None
    with pytest.raises(DecryptionFailed):
        api.context.records.with_secrets(replace(two, encrypted_secrets=one.encrypted_secrets))


@pytest.mark.parametrize(
    ("config", "pointer", "says"),
    [
        ({"provider": "nowhere"}, "/config/provider", "installed: "),
        ({"timeout": 100_000}, "/config/timeout", "at most 600"),
        ({"timeout": "long"}, "/config/timeout", '"long"'),
        ({"envVars": {"LD_PRELOAD": "x"}}, "/config/envVars/LD_PRELOAD", "not allowed"),
        ({"envVars": {"A": 1}}, "/config/envVars/A", "string"),
        ({"network": {"mode": "everything"}}, "/config/network/mode", '"everything"'),
        ({"permissionMode": "never"}, "/config/permissionMode", '"never"'),
        ({"outputLimitBytes": 1 << 30}, "/config/outputLimitBytes", "262144"),
        ({"nonsense": True}, "/config/nonsense", "no such key"),
    ],
)
async def test_a_wrong_sandbox_says_where_and_what_is_allowed(
    api: ApiServer, config: dict[str, object], pointer: str, says: str
) -> None:
    """Each wrong field is a 422 that points at it and names what was given or is allowed."""
    answer = await api.mine.call("POST", "/accounts/me/sandboxes", {"name": "n", "config": config})
    assert answer.status == 422
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    (fault,) = [fault for fault in answer.body["errors"] if fault["pointer"] == pointer]
    assert says in fault["detail"]


async def test_a_value_of_a_variable_is_not_repeated_in_a_problem(api: ApiServer) -> None:
    """What was given for a secret is not echoed when it is refused."""
    config = {"envVars": {"A": f"{CANARY}\0"}}
    answer = await api.mine.call("POST", "/accounts/me/sandboxes", {"name": "n", "config": config})
    config2 = {"envVars": {"1A": CANARY}}
    again = await api.mine.call("POST", "/accounts/me/sandboxes", {"name": "n", "config": config2})
    assert (answer.status, again.status) == (422, 422)
    assert CANARY not in str(answer.body) + str(again.body)


async def test_an_agent_refers_to_records_by_name_and_keeps_their_ids(api: ApiServer) -> None:
    """Names in an agent's config become ids, so that renaming breaks nothing."""
    sandbox = await create_record(api.mine, "sandboxes", "box")
    workspace = await create_record(api.mine, "workspaces", "space")
    config = {"sandbox": "box", "workspaces": [{"name": "w", "workspaceId": "space", "sandbox": "box"}]}
    agent = await create_record(api.mine, "agents", "ag", **config)
    shown = (await api.mine.call("GET", f"/accounts/me/agents/{agent}")).body["config"]
    assert shown["sandbox"] == sandbox
    assert shown["workspaces"][0]["workspaceId"] == workspace
    assert shown["workspaces"][0]["sandbox"] == sandbox


async def test_an_agent_cannot_refer_to_another_accounts_records(api: ApiServer) -> None:
    """A foreign id is as unknown as a wrong one, and the answer points at it."""
    sandbox = await create_record(api.mine, "sandboxes", "box")
    config = {"sandbox": sandbox, "workspaces": [{"name": "w", "workspaceId": "nowhere"}]}
    answer = await api.other.call("POST", "/accounts/me/agents", {"name": "a", "config": config})
    assert answer.status == 422
    pointers = {fault["pointer"] for fault in answer.body["errors"]}
    assert pointers == {"/config/sandbox", "/config/workspaces/0/workspaceId"}


async def test_what_is_used_is_not_removed(api: ApiServer) -> None:
    """A sandbox that an agent works in stays until the agent lets it go."""
    await create_record(api.mine, "sandboxes", "box")
    await create_record(api.mine, "agents", "ag", sandbox="box")
    refused = await api.mine.call("DELETE", "/accounts/me/sandboxes/box")
    assert refused.status == 409
    assert "'ag'" in refused.body["detail"]
    await api.mine.call("PATCH", "/accounts/me/agents/ag", {"config": {"sandbox": None}})
    assert (await api.mine.call("DELETE", "/accounts/me/sandboxes/box")).status == 204


async def test_lists_go_by_pages(api: ApiServer) -> None:
    """`limit` and `cursor` walk through everything once; a wrong cursor is a 422."""
    for number in range(5):
        await create_record(api.mine, "workspaces", f"w{number}")
    seen: list[str] = []
    path = "/accounts/me/workspaces?limit=2"
    cursor = ""
    while True:
        page = (await api.mine.call("GET", path + cursor)).body
        seen += [item["name"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert sorted(seen) == ["default", "w0", "w1", "w2", "w3", "w4"]
    for wrong in ("limit=0", "limit=100000", "limit=x", "cursor=*", "cursor=%00", "cursor="):
        assert (await api.mine.call("GET", f"/accounts/me/workspaces?{wrong}")).status == 422, wrong


async def test_a_credential_is_deleted(api: ApiServer) -> None:
    """By its name or its id; a version that it does not have is refused."""
    for path in ("name", "id"):
        made = await api.mine.call("POST", "/accounts/me/credentials", {"name": "git", **LOGIN})
        assert made.status == 201
        credential = f"/accounts/me/credentials/{made.body[path]}"
        assert (await api.other.call("DELETE", credential)).status == 404
        assert (await api.mine.call("DELETE", credential, If_Match='"other"')).status == 412
        assert (await api.mine.call("DELETE", credential)).status == 204
        assert (await api.mine.call("DELETE", credential)).status == 404
    assert (await api.mine.call("GET", "/accounts/me/credentials")).body["items"] == []


async def test_a_file_of_a_skill_is_deleted(api: ApiServer) -> None:
    """The other files of the skill stay."""
    config = {"description": "How to deploy"}
    made = await api.mine.call("POST", "/accounts/me/skills", {"name": "deploy", "config": config})
    assert made.status == 201
    files, headers = "/accounts/me/skills/deploy/files", {"Authorization": f"Bearer {api.mine.key}"}
    for name in ("SKILL.md", "notes.md"):
        async with api.mine.session.put(f"{api.url}{files}/{name}", data=b"text", headers=headers) as answer:
            assert answer.status == 204
    assert (await api.other.call("DELETE", f"{files}/notes.md")).status == 404
    assert (await api.mine.call("DELETE", f"{files}/notes.md")).status == 204
    assert (await api.mine.call("DELETE", f"{files}/notes.md")).status == 404
    assert [one["path"] for one in (await api.mine.call("GET", files)).body["items"]] == ["SKILL.md"]


async def test_an_agent_is_deleted_while_a_file_of_it_is_uploaded(api: ApiServer) -> None:
    """The upload ends with 404, and the file is not stored."""
    agent = await api.mine.call("POST", "/accounts/me/agents", {"name": "a", "config": {}})
    path = f"/accounts/me/agents/{agent.body['id']}"

    async def content() -> AsyncIterator[bytes]:
        yield b"Be "
        assert (await api.mine.call("DELETE", path)).status == 204
        yield b"brief."

    headers = {"Authorization": f"Bearer {api.mine.key}"}
    url = f"{api.url}{path}/files/AGENTS.md"
    async with api.mine.session.put(url, data=content(), headers=headers) as answer:
        assert answer.status == 404

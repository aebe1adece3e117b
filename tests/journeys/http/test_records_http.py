"""Records over HTTP: made, read, changed and removed by their own account alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from api_server import Client, Face, open_face
from gateway.accounts.vault import Unreadable
from gateway.store.accounts import records

PLURALS = ["agents", "workspaces", "sandboxes"]
EVERY = [*PLURALS, "channels", "webhooks", "keys"]
STRANGE = [
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
CANARY = "canary-of-a-secret-5f1c"


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    """A running face."""
    async with open_face(tmp_path) as running:
        yield running


def holding(folder: Path, text: str) -> list[Path]:
    """Return the files that hold a text (other than the key file, whose purpose that is)."""
    found = [file for file in folder.rglob("*") if file.is_file() and file.name != "key"]
    return [file for file in found if text.encode() in file.read_bytes()]


async def made(client: Client, plural: str, name: str = "mine", **config: object) -> str:
    """Make a record and return its id."""
    answer = await client.ask("POST", f"/accounts/me/{plural}", {"name": name, "config": config})
    assert answer.status == 201, answer.body
    return str(answer.body["id"])


@pytest.mark.parametrize("plural", PLURALS)
async def test_a_record_lives_from_making_to_removal(face: Face, plural: str) -> None:
    """It is made, listed, shown by id and by name, renamed, and gone after its removal."""
    record = await made(face.mine, plural)
    listed = await face.mine.ask("GET", f"/accounts/me/{plural}")
    assert record in [item["id"] for item in listed.body["items"]]
    shown = await face.mine.ask("GET", f"/accounts/me/{plural}/mine")
    assert shown.body["id"] == record
    renamed = await face.mine.ask("PATCH", f"/accounts/me/{plural}/{record}", {"name": "yours"})
    assert (renamed.status, renamed.body["name"]) == (200, "yours")
    removed = await face.mine.ask("DELETE", f"/accounts/me/{plural}/yours")
    assert (removed.status, removed.body) == (204, b"")
    assert (await face.mine.ask("GET", f"/accounts/me/{plural}/{record}")).status == 404


@pytest.mark.parametrize("plural", PLURALS)
async def test_another_account_finds_nothing(face: Face, plural: str) -> None:
    """Reading, changing and removing another account's record is 404, as if it were not there."""
    record = await made(face.mine, plural)
    for wanted in (record, "mine"):
        path = f"/accounts/me/{plural}/{wanted}"
        assert (await face.other.ask("GET", path)).status == 404
        assert (await face.other.ask("PATCH", path, {"name": "stolen"})).status == 404
        assert (await face.other.ask("DELETE", path)).status == 404
    assert (await face.mine.ask("GET", f"/accounts/me/{plural}/{record}")).body["name"] == "mine"


async def test_another_account_finds_no_key_and_no_webhook(face: Face) -> None:
    """Keys and webhooks of one account cannot be seen, ended or rotated by another."""
    key = await face.mine.ask("POST", "/accounts/me/keys", {"name": "k"})
    hook = await face.mine.ask("POST", "/accounts/me/webhooks", {"url": "https://example.org/", "name": "h"})
    paths = [f"/accounts/me/keys/{key.body['id']}", f"/accounts/me/webhooks/{hook.body['id']}"]
    for path in [*paths, "/accounts/me/keys/k", "/accounts/me/webhooks/h"]:
        assert (await face.other.ask("GET", path)).status == 404
        assert (await face.other.ask("DELETE", path)).status == 404
    for name in (hook.body["id"], "h"):
        assert (await face.other.ask("POST", f"/webhooks/{name}/rotate")).status == 404


@pytest.mark.parametrize("wanted", STRANGE)
async def test_a_strange_id_is_not_found(face: Face, wanted: str) -> None:
    """Patterns, paths, control characters and walls of text are no id of anything."""
    for plural in EVERY:
        path = f"/accounts/me/{plural}/{quote(wanted, safe='')}"
        for method, body in (("GET", None), ("PATCH", {"name": "n"}), ("DELETE", None)):
            answer = await face.mine.ask(method, path, body)
            assert answer.status in (404, 405), (method, plural, answer)


async def test_a_name_is_taken_once(face: Face) -> None:
    """A second record of the same name is a conflict; another account may use the name."""
    await made(face.mine, "sandboxes")
    again = await face.mine.ask("POST", "/accounts/me/sandboxes", {"name": "mine"})
    assert (again.status, again.body["title"]) == (409, "Conflict")
    await made(face.other, "sandboxes")


async def test_variables_are_sealed_and_never_shown(face: Face, tmp_path: Path) -> None:
    """A sandbox's variables are shown by name; their values are nowhere in answers or files."""
    record = await made(face.mine, "sandboxes", envVars={"TOKEN": CANARY, "B": f"{CANARY}-2"})
    shown = await face.mine.ask("GET", f"/accounts/me/sandboxes/{record}")
    assert shown.body["config"]["envVars"] == {"TOKEN": "***", "B": "***"}
    patch = {"config": {"envVars": {"TOKEN": "***", "B": None, "C": "c"}}}
    changed = await face.mine.ask("PATCH", f"/accounts/me/sandboxes/{record}", patch)
    assert set(changed.body["config"]["envVars"]) == {"TOKEN", "C"}
    async with face.surface.database.read() as connection:
        account = (await face.mine.ask("GET", "/accounts/me")).body["id"]
        stored = await face.surface.book.get(connection, account, "sandbox", record)
    assert face.surface.book.sandbox_config(stored).env_vars == {"TOKEN": CANARY, "C": "c"}
    assert not holding(tmp_path, CANARY)


async def test_a_secret_of_another_record_does_not_open(face: Face) -> None:
    """A ciphertext copied into another row is refused, not revealed."""
    account = (await face.mine.ask("GET", "/accounts/me")).body["id"]
    await made(face.mine, "sandboxes", "one", envVars={"TOKEN": CANARY})
    await made(face.mine, "sandboxes", "two", envVars={"TOKEN": "other"})
    async with face.surface.database.begin() as connection:
        one = await records.find(connection, account, "sandbox", "one")
        two = await records.find(connection, account, "sandbox", "two")
    assert one is not None
    assert two is not None
    with pytest.raises(Unreadable):
        face.surface.book.opened(replace(two, sealed=one.sealed))


@pytest.mark.parametrize(
    ("config", "pointer", "says"),
    [
        ({"provider": "nowhere"}, "/config/provider", "installed: "),
        ({"timeout": 100_000}, "/config/timeout", "at most 600"),
        ({"timeout": "long"}, "/config/timeout", "'long'"),
        ({"envVars": {"LD_PRELOAD": "x"}}, "/config/envVars/LD_PRELOAD", "not allowed"),
        ({"envVars": {"A": 1}}, "/config/envVars/A", "string"),
        ({"network": {"mode": "everything"}}, "/config/network/mode", "'everything'"),
        ({"permissionMode": "never"}, "/config/permissionMode", "'never'"),
        ({"outputLimitBytes": 1 << 30}, "/config/outputLimitBytes", "262144"),
        ({"nonsense": True}, "/config/nonsense", "no such key"),
    ],
)
async def test_a_wrong_sandbox_says_where_and_what_is_allowed(
    face: Face, config: dict[str, object], pointer: str, says: str
) -> None:
    """Each wrong field is a 422 that points at it and names what was given or is allowed."""
    answer = await face.mine.ask("POST", "/accounts/me/sandboxes", {"name": "n", "config": config})
    assert answer.status == 422
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    (fault,) = [fault for fault in answer.body["errors"] if fault["pointer"] == pointer]
    assert says in fault["detail"]


async def test_a_value_of_a_variable_is_not_repeated_in_a_problem(face: Face) -> None:
    """What was given for a secret is not echoed when it is refused."""
    config = {"envVars": {"A": f"{CANARY}\0"}}
    answer = await face.mine.ask("POST", "/accounts/me/sandboxes", {"name": "n", "config": config})
    config2 = {"envVars": {"1A": CANARY}}
    again = await face.mine.ask("POST", "/accounts/me/sandboxes", {"name": "n", "config": config2})
    assert (answer.status, again.status) == (422, 422)
    assert CANARY not in str(answer.body) + str(again.body)


async def test_an_agent_refers_to_records_by_name_and_keeps_their_ids(face: Face) -> None:
    """Names in an agent's config become ids, so that renaming breaks nothing."""
    sandbox = await made(face.mine, "sandboxes", "box")
    workspace = await made(face.mine, "workspaces", "space")
    config = {"sandbox": "box", "workspaces": [{"name": "w", "workspaceId": "space", "sandbox": "box"}]}
    agent = await made(face.mine, "agents", "ag", **config)
    shown = (await face.mine.ask("GET", f"/accounts/me/agents/{agent}")).body["config"]
    assert shown["sandbox"] == sandbox
    assert shown["workspaces"][0]["workspaceId"] == workspace
    assert shown["workspaces"][0]["sandbox"] == sandbox


async def test_an_agent_cannot_refer_to_another_accounts_records(face: Face) -> None:
    """A foreign id is as unknown as a wrong one, and the answer points at it."""
    sandbox = await made(face.mine, "sandboxes", "box")
    config = {"sandbox": sandbox, "workspaces": [{"name": "w", "workspaceId": "nowhere"}]}
    answer = await face.other.ask("POST", "/accounts/me/agents", {"name": "a", "config": config})
    assert answer.status == 422
    pointers = {fault["pointer"] for fault in answer.body["errors"]}
    assert pointers == {"/config/sandbox", "/config/workspaces/0/workspaceId"}


async def test_what_is_used_is_not_removed(face: Face) -> None:
    """A sandbox that an agent works in stays until the agent lets it go."""
    await made(face.mine, "sandboxes", "box")
    await made(face.mine, "agents", "ag", sandbox="box")
    refused = await face.mine.ask("DELETE", "/accounts/me/sandboxes/box")
    assert refused.status == 409
    assert "'ag'" in refused.body["detail"]
    await face.mine.ask("PATCH", "/accounts/me/agents/ag", {"config": {"sandbox": None}})
    assert (await face.mine.ask("DELETE", "/accounts/me/sandboxes/box")).status == 204


async def test_lists_go_by_pages(face: Face) -> None:
    """`limit` and `cursor` walk through everything once; a wrong cursor is a 422."""
    for number in range(5):
        await made(face.mine, "workspaces", f"w{number}")
    seen: list[str] = []
    path = "/accounts/me/workspaces?limit=2"
    cursor = ""
    while True:
        page = (await face.mine.ask("GET", path + cursor)).body
        seen += [item["name"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert sorted(seen) == ["default", "w0", "w1", "w2", "w3", "w4"]
    for wrong in ("limit=0", "limit=100000", "limit=x", "cursor=*", "cursor=%00", "cursor="):
        assert (await face.mine.ask("GET", f"/accounts/me/workspaces?{wrong}")).status == 422, wrong

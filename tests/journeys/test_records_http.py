"""Records over HTTP: made, read, changed and removed by their own account alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from gateway.defaults import ensure_defaults
from gateway.options import AgentSettings
from gateway.records import webhooks
from gateway.secrets import Unreadable
from gateway.store import records
from web_face import Client, Face, open_face

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


async def test_an_agents_webhook_gets_a_secret_that_is_told_once(face: Face) -> None:
    """The secret made for an agent's hook is in the first answer and in no other."""
    hook = {"hooks": {"webhook": {"url": "https://example.org/hook?x=1"}}}
    first = await face.mine.ask("POST", "/accounts/me/agents", {"name": "a", "config": hook})
    assert first.body["webhook_secret"].startswith("whsec_")
    secret = first.body["webhook_secret"].removeprefix("whsec_")
    again = await face.mine.ask("PATCH", "/accounts/me/agents/a", {"config": {"instructions": "be brief"}})
    shown = await face.mine.ask("GET", "/accounts/me/agents/a")
    assert again.body["webhook_secret"] is None
    assert secret not in str(again.body) + str(shown.body)
    assert shown.body["config"]["hooks"]["webhook"]["events"] == ["agent.finished"]
    assert (await face.mine.ask("GET", "/accounts/me/webhooks")).body["items"] == []


async def test_a_webhooks_secret_is_told_once_and_rotates_with_overlap(face: Face) -> None:
    """Making and rotating tell a secret; afterwards both old and new sign."""
    first = await face.mine.ask("POST", "/accounts/me/webhooks", {"url": "https://example.org/", "name": "h"})
    second = await face.mine.ask("POST", "/webhooks/h/rotate")
    assert (first.status, second.status) == (201, 200)
    assert first.body["secret"] != second.body["secret"]
    assert "secret" not in (await face.mine.ask("GET", "/accounts/me/webhooks/h")).body
    account = (await face.mine.ask("GET", "/accounts/me")).body["id"]
    async with face.surface.database.read() as connection:
        endpoint = await webhooks.get(connection, account, "h")
    live = webhooks.live_secrets(face.surface.book.vault, endpoint)
    assert live == (second.body["secret"], first.body["secret"])


@pytest.mark.parametrize(
    "body",
    [
        {"url": "ftp://example.org/"},
        {"url": "https://user:pw@example.org/"},
        {"url": "https://example.org/\r\nX: y"},
        {"url": "not a url"},
        {"url": "https://example.org/", "events": ["agent.exploded"]},
        {"url": "https://example.org/", "events": []},
        {"url": "https://example.org/", "secret": "short"},
        {"url": "https://example.org/", "conversation": "cnv_of_nobody"},
        {"events": ["*"]},
    ],
)
async def test_a_wrong_webhook_is_refused(face: Face, body: dict[str, object]) -> None:
    """URLs that are none, events that do not exist and weak secrets are 422."""
    answer = await face.mine.ask("POST", "/accounts/me/webhooks", body)
    assert answer.status == 422, answer.body
    assert answer.body["errors"]


async def test_a_key_does_what_its_scopes_say(face: Face) -> None:
    """A reading key reads; making records, keys and accounts needs more."""
    key = (await face.mine.ask("POST", "/accounts/me/keys", {"name": "r", "scopes": ["read"]})).body["key"]
    reader = Client(session=face.mine.session, url=face.url, key=key)
    assert (await reader.ask("GET", "/accounts/me/agents")).status == 200
    assert (await reader.ask("POST", "/accounts/me/agents", {"name": "a"})).status == 403
    assert (await reader.ask("POST", "/accounts/me/keys", {"name": "k"})).status == 403
    assert (await reader.ask("POST", "/accounts", {"name": "k"})).status == 403


async def test_a_revoked_key_opens_nothing(face: Face) -> None:
    """The next request with a revoked key is 401."""
    made_key = await face.mine.ask("POST", "/accounts/me/keys", {"name": "k"})
    client = Client(session=face.mine.session, url=face.url, key=made_key.body["key"])
    assert (await client.ask("GET", "/accounts/me")).status == 200
    assert (await face.mine.ask("DELETE", "/accounts/me/keys/k")).status == 204
    assert (await client.ask("GET", "/accounts/me")).status == 401


async def test_only_the_operator_makes_accounts(face: Face) -> None:
    """An account's own key is not enough, whatever fields come with it; nobody is 401."""
    body = {"name": "new"}
    assert (await face.mine.ask("POST", "/accounts", body)).status == 403
    assert (await face.nobody.ask("POST", "/accounts", body)).status == 401
    made_account = await face.operator.ask("POST", "/accounts", body)
    assert made_account.status == 201
    fresh = Client(session=face.mine.session, url=face.url, key=made_account.body["key"])
    assert (await fresh.ask("GET", "/accounts/me")).body["id"] == made_account.body["id"]
    assert (await face.operator.ask("POST", "/accounts", body)).status == 409
    assert (await face.operator.ask("GET", "/accounts/me")).status == 401


async def test_a_removed_account_is_gone_with_its_keys(face: Face) -> None:
    """After its removal the account's key opens nothing; the other account is untouched."""
    await made(face.other, "agents")
    assert (await face.other.ask("DELETE", "/accounts/me")).status == 204
    assert (await face.other.ask("GET", "/accounts/me")).status == 401
    assert (await face.mine.ask("GET", "/accounts/me/agents")).status == 200


async def test_the_same_post_twice_is_carried_out_once(face: Face) -> None:
    """An Idempotency-Key answers the second request as the first, the secret included."""
    body = {"url": "https://example.org/"}
    first = await face.mine.ask("POST", "/accounts/me/webhooks", body, Idempotency_Key="k1")
    second = await face.mine.ask("POST", "/accounts/me/webhooks", body, Idempotency_Key="k1")
    assert (second.status, second.body) == (first.status, first.body)
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len((await face.mine.ask("GET", "/accounts/me/webhooks")).body["items"]) == 1
    foreign = await face.other.ask("POST", "/accounts/me/webhooks", body, Idempotency_Key="k1")
    assert foreign.body["id"] != first.body["id"]


async def test_the_same_key_for_something_else_is_refused(face: Face) -> None:
    """Another body or another path under a used key is a 422."""
    await face.mine.ask("POST", "/accounts/me/agents", {"name": "a"}, Idempotency_Key="k")
    other_body = await face.mine.ask("POST", "/accounts/me/agents", {"name": "b"}, Idempotency_Key="k")
    other_path = await face.mine.ask("POST", "/accounts/me/keys", {"name": "a"}, Idempotency_Key="k")
    assert (other_body.status, other_path.status) == (422, 422)


async def test_a_refused_post_gives_its_key_back(face: Face) -> None:
    """What was refused may be corrected under the same key."""
    refused = await face.mine.ask("POST", "/accounts/me/agents", {"name": ""}, Idempotency_Key="k")
    fault = {"name": "a", "config": {"sandbox": "nowhere"}}
    again = await face.mine.ask("POST", "/accounts/me/agents", fault, Idempotency_Key="k")
    corrected = await face.mine.ask("POST", "/accounts/me/agents", {"name": "a"}, Idempotency_Key="k")
    assert (refused.status, again.status, corrected.status) == (422, 422, 201)


async def test_the_same_post_at_once_is_carried_out_once(face: Face) -> None:
    """Of ten concurrent requests with one key one is carried out, and all get its answer."""
    body = {"name": "k"}
    answers = await asyncio.gather(
        *(face.mine.ask("POST", "/accounts/me/keys", body, Idempotency_Key="k") for _ in range(10))
    )
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body["key"] for answer in answers}) == 1
    named = [k for k in (await face.mine.ask("GET", "/accounts/me/keys")).body["items"] if k["name"] == "k"]
    assert len(named) == 1


async def test_told_secrets_are_not_kept_in_clear(face: Face, tmp_path: Path) -> None:
    """An answer that is kept for repeats is sealed."""
    told = await face.mine.ask("POST", "/accounts/me/keys", {"name": "k"}, Idempotency_Key="k")
    assert not holding(tmp_path, told.body["key"])


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


async def test_defaults_stay_at_every_start_and_follow_the_settings(face: Face, tmp_path: Path) -> None:
    """A second start makes nothing new; the model of the settings becomes the default agent's."""

    async def start(model: str) -> str:
        async with face.surface.database.begin() as connection:
            ready = await ensure_defaults(
                connection, face.surface.book, data=tmp_path, agent=AgentSettings(model=model)
            )
        return ready.agent.id

    key = (tmp_path / "key").read_text()
    patched = {"config": {"instructions": "be kind"}}
    await face.mine.ask("PATCH", "/accounts/me/agents/default", patched)
    first, second = await start("builtin:shell"), await start("openai:gpt")
    assert first == second
    assert (tmp_path / "key").read_text() == key
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    config = (await face.mine.ask("GET", "/accounts/me/agents/default")).body["config"]
    assert (config["model"], config["instructions"]) == ("openai:gpt", "be kind")
    for plural in PLURALS:
        assert len((await face.mine.ask("GET", f"/accounts/me/{plural}")).body["items"]) == 1


async def test_a_revoked_default_key_is_replaced_at_the_next_start(face: Face, tmp_path: Path) -> None:
    """The key file always opens the default account."""
    old = (tmp_path / "key").read_text()
    await face.mine.ask("DELETE", "/accounts/me/keys/default")
    async with face.surface.database.begin() as connection:
        await ensure_defaults(connection, face.surface.book, data=tmp_path, agent=AgentSettings())
    fresh = Client(session=face.mine.session, url=face.url, key=(tmp_path / "key").read_text().strip())
    assert fresh.key != old.strip()
    assert (await fresh.ask("GET", "/accounts/me")).status == 200


TELEGRAM = {"name": "tg", "kind": "telegram", "settings": {"token": f"123456:{'A' * 35}"}}


async def test_a_channel_goes_live_changes_and_closes(face: Face) -> None:
    """Making, changing and removing a channel each tell the gateway at once; its token is never shown."""
    made_channel = await face.mine.ask("POST", "/accounts/me/channels", TELEGRAM)
    assert made_channel.status == 201, made_channel.body
    channel = made_channel.body["id"]
    assert made_channel.body["settings"]["token"] == "***"
    shown = await face.mine.ask("GET", "/accounts/me/channels/tg")
    assert "AAAA" not in str(shown.body)
    default = (await face.mine.ask("GET", "/accounts/me/agents/default")).body["id"]
    assert shown.body["agent"] == default
    patch = {"settings": {"allow": ["*"], "token": "***"}}
    changed = await face.mine.ask("PATCH", "/accounts/me/channels/tg", patch)
    assert (changed.status, changed.body["settings"]["allow"]) == (200, ["*"])
    assert (await face.mine.ask("DELETE", "/accounts/me/agents/default")).status == 409
    assert (await face.mine.ask("DELETE", f"/accounts/me/channels/{channel}")).status == 204
    assert [record for _account, record in face.changed] == [channel] * 3


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"kind": "pigeon"}, "/kind"),
        ({"agent": "nobody"}, "/agent"),
        ({"settings": {}}, "/settings/token"),
        ({"settings": {"token": ""}}, "/settings/token"),
        ({"settings": {"token": "   "}}, "/settings/token"),
        ({"settings": {"token": "t", "nonsense": 1}}, "/settings/nonsense"),
        ({"surplus": 1}, "/surplus"),
    ],
)
async def test_a_wrong_channel_says_where(face: Face, change: dict[str, object], pointer: str) -> None:
    """Unknown platforms, agents and settings, and blank tokens, are 422 and open nothing."""
    answer = await face.mine.ask("POST", "/accounts/me/channels", TELEGRAM | change)
    assert answer.status == 422
    assert pointer in [fault["pointer"] for fault in answer.body["errors"]]
    assert face.changed == []


async def test_a_channel_of_the_configuration_file_is_changed_there(face: Face, tmp_path: Path) -> None:
    """It is listed as managed, refuses changes over HTTP, and is gone when the file no longer has it."""

    async def start(**channels: dict[str, object]) -> None:
        async with face.surface.database.begin() as connection:
            await ensure_defaults(
                connection, face.surface.book, data=tmp_path, agent=AgentSettings(), channels=channels
            )

    await start(telegram={"token": f"1:{'A' * 35}"})
    (listed,) = (await face.mine.ask("GET", "/accounts/me/channels")).body["items"]
    assert (listed["name"], listed["managed"]) == ("telegram", True)
    path = f"/accounts/me/channels/{listed['id']}"
    assert (await face.mine.ask("PATCH", path, {"settings": {"allow": ["*"]}})).status == 409
    assert (await face.mine.ask("DELETE", path)).status == 409
    await start(telegram={"token": f"2:{'B' * 35}"})
    (again,) = (await face.mine.ask("GET", "/accounts/me/channels")).body["items"]
    assert again["id"] == listed["id"]
    await start()
    assert (await face.mine.ask("GET", "/accounts/me/channels")).body["items"] == []

"""People of an account over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from api_server import ApiServer, open_api_server
from commands import PIPE, gateway_command
from gateway.accounts.persons import Sighting, issue_code, see
from gateway.config.load import environment_without_ours
from gateway.store.accounts.persons import Identity
from gateway.store.conversations.memories import Memory, MemoryScope, insert_memory

PERSONS = "/accounts/me/persons"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A running face."""
    async with open_api_server(tmp_path) as running:
        yield running


async def seen(api: ApiServer, author: str, platform: str = "telegram") -> Identity:
    """Record a person in the default account."""
    account = (await api.mine.call("GET", "/accounts/me")).body["id"]
    async with api.context.database.begin() as connection:
        sighting = Sighting(account=account, platform=platform, author=author, name=f"Name {author}")
        return await see(connection, sighting)


async def code_for(api: ApiServer, identity: Identity) -> str:
    """Return a code as `/link` gives it."""
    async with api.context.database.begin() as connection:
        return await issue_code(connection, identity)


@pytest.mark.parametrize("subject", ["per_unknown", "Ann", "telegram:", ":1", "telegram:4 711"])
async def test_a_note_names_a_person_who_can_exist(api: ApiServer, subject: str) -> None:
    """A note for a person that cannot exist is a 422 that names the field, in the body and in the query."""
    note = {"scope": "person", "subject": subject, "text": "prefers tea"}
    written = await api.mine.call("POST", "/accounts/me/memories", note)
    assert (written.status, written.body["errors"][0]["pointer"]) == (422, "/subject")
    listed = await api.mine.call("GET", f"/accounts/me/memories?scope=person&subject={quote(subject)}")
    assert (listed.status, listed.body["errors"][0]["pointer"]) == (422, "?/subject")
    assert "/accounts/me/persons" in listed.body["errors"][0]["detail"]


async def test_people_are_listed_joined_and_separated(api: ApiServer) -> None:
    """A code joins a person to another one, once; the account alone sees and changes its people."""
    ann, slack = await seen(api, "1"), await seen(api, "U1", "slack:T1")
    first, second = (await api.mine.call("GET", PERSONS)).body["items"]
    assert [first["id"], second["id"]] == [ann.person, slack.person]
    assert [one["id"] for one in second["identities"]] == ["slack:T1:U1"]
    code, path = await code_for(api, ann), f"{PERSONS}/{slack.person}/link"
    assert (await api.other.call("POST", path, {"code": code})).status == 404
    wrong = await api.mine.call("POST", path, {"code": "WRONG"})
    assert (wrong.status, wrong.body["errors"][0]["pointer"]) == (422, "/code")
    own = await api.mine.call("POST", f"{PERSONS}/{ann.person}/link", {"code": code})
    assert own.status == 409
    joined = await api.mine.call("POST", path, {"code": code})
    assert joined.body["id"] == ann.person
    assert [one["id"] for one in joined.body["identities"]] == ["telegram:1", "slack:T1:U1"]
    assert (await api.mine.call("POST", path, {"code": code})).status == 404
    identity = f"{PERSONS}/{ann.person}/identities/{quote('slack:T1:U1', safe='')}"
    assert (await api.other.call("DELETE", identity)).status == 404
    assert (await api.mine.call("DELETE", identity)).status == 204
    assert (await api.mine.call("DELETE", identity)).status == 404
    last = f"{PERSONS}/{ann.person}/identities/{quote('telegram:1', safe='')}"
    assert (await api.mine.call("DELETE", last)).status == 409
    assert [len(one["identities"]) for one in (await api.mine.call("GET", PERSONS)).body["items"]] == [1, 1]
    assert (await api.other.call("GET", PERSONS)).body["items"] == []


async def test_a_person_has_a_budget(api: ApiServer) -> None:
    """A person's own budget replaces that of everybody until it is removed, also for joined people."""
    ann, slack = await seen(api, "1"), await seen(api, "U1", "slack:T1")
    path = f"{PERSONS}/{slack.person}/budget"
    none = {"requests": 0, "tokens": 0, "cost": 0.0}
    changed = await api.mine.call("PUT", path, {"day": {"requests": 3}})
    own = {"day": none | {"requests": 3}, "month": none}
    assert (changed.status, changed.body["budget"]) == (200, own)
    assert (await api.other.call("PUT", path, {"day": {"requests": 9}})).status == 404
    code = await code_for(api, ann)
    joined = await api.mine.call("POST", f"{PERSONS}/{slack.person}/link", {"code": code})
    assert (joined.body["id"], joined.body["budget"]) == (ann.person, own)
    removed = await api.mine.call("DELETE", f"{PERSONS}/{ann.person}/budget")
    assert (removed.status, removed.body["budget"]) == (200, None)


async def test_notes_name_a_person_by_any_of_its_names(api: ApiServer) -> None:
    """A note about an identity, or about a person's id, is one about the joined person."""
    ann, bob = await seen(api, "1"), await seen(api, "2")
    await api.mine.call("POST", f"{PERSONS}/{bob.person}/link", {"code": await code_for(api, ann)})
    memory = Memory(
        id="mem_1",
        account=ann.account,
        scope=MemoryScope.PERSON,
        subject=ann.id,
        text="prefers tea",
        created_by="",
        created_at=ann.created_at,
        updated_at=ann.created_at,
    )
    async with api.context.database.begin() as connection:
        await insert_memory(connection, memory, memory.text)
    for subject, count in {"telegram:1": 1, "telegram:2": 1, ann.person: 1, "telegram:3": 0}.items():
        found = await api.mine.call("GET", f"/accounts/me/memories?scope=person&subject={quote(subject)}")
        assert len(found.body["items"]) == count


async def test_the_command_line_lists_and_joins(api: ApiServer, tmp_path: Path) -> None:
    """`dovecote persons` lists, links and unlinks."""
    ann, bob = await seen(api, "1"), await seen(api, "2")

    async def run(*words: str) -> str:
        env = environment_without_ours() | {"DOVECOTE_URL": api.url, "DOVECOTE_KEY": api.mine.key}
        child = await gateway_command("persons", *words, env=env, cwd=tmp_path, stdout=PIPE, stderr=PIPE)
        out, errors = await child.communicate()
        assert child.returncode == 0, errors
        return out.decode()

    assert "telegram:1 (Name 1)" in await run("list")
    await run("link", bob.person, await code_for(api, ann))
    (person,) = json.loads(await run("list", "--json"))
    assert [one["id"] for one in person["identities"]] == ["telegram:1", "telegram:2"]
    assert "a person of its own" in await run("unlink", ann.person, "telegram:2")

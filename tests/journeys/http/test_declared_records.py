"""Records that the settings file declares: made, changed, released and deleted with the file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from api_server import ApiServer, open_api_server
from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.records.declared import DeclaredRecords, apply_declared
from gateway.records.errors import InvalidRecord
from gateway.records.skill_folders import read_skill_folders
from gateway.schedules.declared import apply_file
from gateway.store.tables import records

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

AS_TOML = f"""
[sandboxes.heavy]
provider = "host"
envVars.TOKEN = "canary-one"

[workspaces.repo]

[agents.coder]
model = "builtin:shell"
sandbox = "heavy"
workspaces = [{{name = "a", workspaceId = "repo"}}]

[credentials.git]
host = "git.example.org"
kind = "basic"
secret = "ada:canary"
agents = ["coder"]

[channels.telegram]
token = "1:{"A" * 35}"
agent = "coder"
"""


def test_the_tables_can_be_written_in_a_settings_file(tmp_path: Path) -> None:
    """Every key of the tables of these tests passes the checks of the file."""
    (tmp_path / "dovecote.toml").write_text(AS_TOML)
    declared = DeclaredRecords.from_settings(load(env={}, directory=tmp_path))
    telegram = {**FILE.channels["telegram"], "kind": "telegram"}
    assert declared == replace(FILE, channels={"telegram": telegram})


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


async def test_a_place_of_an_agent_is_a_channel_of_the_same_file(api: ApiServer) -> None:
    """The agent is made before the channel that answers with it, and refers to it by id at once."""
    sends = {"to": {"ops": {"channel": "telegram", "room": "1"}}}
    declared = replace(FILE, agents={"coder": {**CODER, "sends": sends}})
    assert len(await apply(api, declared)) == 5
    channel = (await listed(api, "channels"))["telegram"]["id"]
    places = (await listed(api, "agents"))["coder"]["config"]["sends"]["to"]
    assert places["ops"]["channel"] == channel
    assert await apply(api, declared) == []


async def test_a_secret_that_cannot_be_decrypted_is_stored_again(api: ApiServer) -> None:
    """The file has the secret, so that the start does not end because of the stored one."""
    await apply(api, FILE)
    damaged = {"/settings/token": "x"}
    async with api.context.database.begin() as connection:
        await connection.execute(update(records).where(records.c.kind == "channel").values(secrets=damaged))
    assert await apply(api, FILE) == ["update channel telegram agent kind settings"]
    assert await apply(api, FILE) == []


async def test_a_record_that_others_use_is_released(api: ApiServer) -> None:
    """An agent of HTTP keeps its sandbox, which HTTP can change from then on."""
    await apply(api, DeclaredRecords(sandboxes=FILE.sandboxes))
    user = {"name": "mine", "config": {"model": "builtin:shell", "sandbox": "heavy"}}
    assert (await api.mine.call("POST", "/accounts/me/agents", user)).status == 201
    assert await apply(api, DeclaredRecords()) == ["release sandbox heavy"]
    kept = await api.mine.call("PATCH", "/accounts/me/sandboxes/heavy", {"config": {"memoryLimit": 512}})
    assert kept.status == 200


async def test_an_agent_of_a_single_room_is_released(api: ApiServer) -> None:
    """A room of a channel uses its agent like the channel itself: neither the file nor HTTP deletes it."""
    channel = {**FILE.channels["telegram"], "agent": "default", "rooms": {"-1001": {"agent": "coder"}}}
    rest = DeclaredRecords(channels={"telegram": channel})
    await apply(api, replace(rest, agents={"coder": {"model": "builtin:shell"}}))
    assert await apply(api, rest) == ["release agent coder"]
    assert await apply(api, rest) == []
    refused = await api.mine.call("DELETE", "/accounts/me/agents/coder")
    assert (refused.status, "channel 'telegram'" in refused.body["detail"]) == (409, True)


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


def write_skill(folder: Path, document: str, **files: str) -> None:
    """Write a folder with a SKILL.md."""
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(document)
    for name, text in files.items():
        (folder / name).write_text(text)


async def test_skills_are_those_of_a_directory(api: ApiServer, tmp_path: Path) -> None:
    """Folders make skills with their files; HTTP cannot change them; links are not followed."""
    skills = tmp_path / "skills"
    write_skill(
        skills / "deploy", '---\nname: deploy\ndescription: "How to deploy."\n---\nRun it.', script="x"
    )
    (skills / "deploy" / "key").symlink_to(tmp_path / "key")
    (skills / "notes").mkdir()
    assert await apply(api, DeclaredRecords(skills=read_skill_folders(skills))) == ["create skill deploy"]
    assert await apply(api, DeclaredRecords(skills=read_skill_folders(skills))) == []
    shown = (await listed(api, "skills"))["deploy"]
    assert (shown["config"], shown["managed"]) == ({"description": "How to deploy."}, True)
    files = await api.mine.call("GET", "/accounts/me/skills/deploy/files")
    assert [one["path"] for one in files.body["items"]] == ["SKILL.md", "script"]
    assert (await api.mine.call("DELETE", "/accounts/me/skills/deploy/files/script")).status == 409
    (skills / "deploy" / "script").unlink()
    assert await apply(api, DeclaredRecords(skills=read_skill_folders(skills))) == [
        "update skill deploy files"
    ]
    assert await apply(api, DeclaredRecords()) == ["delete skill deploy"]
    (skills / "deploy" / "large").write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(InvalidRecord, match="has more than 1048576 bytes"):
        read_skill_folders(skills)
    with pytest.raises(InvalidRecord, match="is not a directory"):
        read_skill_folders(tmp_path / "missing")


async def apply_schedules(api: ApiServer, *, agents: Config | None = None, **tables: Config) -> list[str]:
    """Apply tables of schedules, and of agents, to the account and return the changes of schedules."""
    settings = Settings(
        agents=dict(agents or {}), schedules={name: dict(table) for name, table in tables.items()}
    )
    async with api.context.database.begin() as connection:
        account = (await api.mine.call("GET", "/accounts/me")).body["id"]
        changes = await apply_file(connection, api.context.records, account, settings)
    shown = [one for one in changes if one.kind == "schedule"]
    return [" ".join((one.change, one.kind, one.name, *one.fields)) for one in shown]


REPORT: Config = {"conversation": "reports", "cron": "0 9 * * 1-5", "text": "Report."}


async def test_schedules_of_the_file_are_made_changed_and_deleted(api: ApiServer) -> None:
    """A table makes one schedule, whatever starts again; HTTP shows it and cannot change it."""
    assert await apply_schedules(api, report=REPORT) == ["create schedule report"]
    assert await apply_schedules(api, report=REPORT) == []
    (shown,) = (await api.mine.call("GET", "/accounts/me/schedules")).body["items"]
    assert (shown["name"], shown["managed"], shown["state"]) == ("report", True, "active")
    path = f"/accounts/me/schedules/{shown['id']}"
    assert (await api.mine.call("PATCH", path, {"paused": True})).status == 409
    assert (await api.mine.call("DELETE", path)).status == 409
    changed = {**REPORT, "every": "PT2H", "paused": True}
    del changed["cron"]
    assert await apply_schedules(api, report=changed) == [
        "update schedule report cron every_seconds state",
    ]
    assert await apply_schedules(api, report={**changed, "paused": False}) == ["update schedule report state"]
    heartbeat = {**changed, "paused": False, "heartbeat": True}
    assert await apply_schedules(api, report=heartbeat) == ["update schedule report heartbeat"]
    assert (await api.mine.call("GET", path)).body["every"] == "PT2H"
    once = {"conversation": "reports", "at": datetime(2020, 1, 1, tzinfo=UTC), "text": "Past."}
    assert await apply_schedules(api, once=once) == ["delete schedule report"]
    assert (await api.mine.call("GET", "/accounts/me/schedules")).body["items"] == []


@pytest.mark.parametrize(
    ("table", "pointer"),
    [
        ({"conversation": "reports", "cron": "no", "text": "x"}, "/schedules/report/cron"),
        ({"conversation": "reports", "text": "x"}, "/schedules/report/at"),
        ({**REPORT, "agent": "nobody"}, "/schedules/report/agent"),
        ({**REPORT, "conversation": "cnv_1"}, "/schedules/report/conversation"),
        ({**REPORT, "color": "red"}, "/schedules/report/color"),
        ({**REPORT, "timezone": "Mars"}, "/schedules/report/timezone"),
        ({**REPORT, "kind": "reminder", "heartbeat": True}, "/schedules/report/heartbeat"),
    ],
)
async def test_a_wrong_schedule_says_where(api: ApiServer, table: Config, pointer: str) -> None:
    """The problem names the table's field, and nothing is made."""
    with pytest.raises(InvalidRecord) as caught:
        await apply_schedules(api, report=table)
    assert [one.pointer for one in caught.value.problems] == [pointer]
    assert (await api.mine.call("GET", "/conversations")).body["items"] == []


async def test_a_schedule_of_a_renamed_agent_names_the_remedies(api: ApiServer) -> None:
    """Its conversation is the agent's of the old name: the error names both, and another conversation."""
    await apply(api, DeclaredRecords(agents={"old": {}}))
    await apply_schedules(api, agents={"old": {}}, report={**REPORT, "agent": "old"})
    await apply(api, DeclaredRecords(agents={"new": {}}))
    for agent in ({}, {"agent": "new"}):
        with pytest.raises(InvalidRecord) as refused:
            await apply_schedules(api, agents={"new": {}}, report={**REPORT, **agent})
        assert "belongs to an agent that no longer exists: name another conversation" in str(refused.value)
    both: Config = {"old": {}, "new": {}}
    await apply_schedules(api, agents=both, report={**REPORT, "conversation": "other", "agent": "old"})
    with pytest.raises(InvalidRecord) as refused:
        await apply_schedules(api, agents=both, report={**REPORT, "conversation": "other", "agent": "new"})
    assert "belongs to agent 'old': name that agent, or another conversation" in str(refused.value)


async def test_an_agent_that_is_renamed_in_the_file_cannot_take_a_conversation_with_it(
    api: ApiServer,
) -> None:
    """A renamed agent is a new one: the reason names the earlier agent, and both remedies."""
    agents: Config = {"ada": {"model": "builtin:shell"}}
    news = {**REPORT, "conversation": "news"}
    assert await apply_schedules(api, agents=agents, news={**news, "agent": "ada"}) == [
        "create schedule news"
    ]
    with pytest.raises(InvalidRecord) as refused:
        await apply_schedules(api, agents={"bea": agents["ada"]}, news={**news, "agent": "bea"})
    (problem,) = refused.value.problems
    assert problem.pointer == "/schedules/news/conversation"
    assert "'news' belongs to agent 'ada', which the file does not declare any more" in problem.detail
    assert "keep [agents.ada]" in problem.detail

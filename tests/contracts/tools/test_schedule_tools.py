"""The tools schedule_create, schedule_list and schedule_delete, with what models get wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delivery.database.engine import Database
from gateway.schedules.schedules import MAX_TEXT
from gateway.tools.executor import ToolExecutor
from turn_worker import add_sandbox_record, open_turn_worker

LATER = "2030-01-31T09:00:00+01:00"

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "at"),
    ({"every": "PT1S"}, "every"),
    ({"every": "1s"}, "every"),
    ({"cron": "* * * * * *"}, "cron"),
    ({"cron": "0 0 30 2 *"}, "cron"),
    ({"cron": "0 9 * * *", "timezone": "Nowhere"}, "timezone"),
    ({"at": "tomorrow"}, "at"),
    ({"at": "2020-01-01T00:00:00Z"}, "at"),
    ({"at": "2030-01-31T09:00:00"}, "at"),
    ({"at": "9999-12-31T23:59:59-12:00"}, "at"),
    ({"at": LATER, "every": "P1D"}, "every"),
    ({"at": LATER, "text": "x" * (MAX_TEXT + 1)}, "text"),
    ({"at": LATER, "kind": "alarm"}, "kind"),
    ({"at": LATER, "kind": "reminder", "heartbeat": True}, "heartbeat"),
]


async def tools_of(database: Database, directory: Path) -> ToolExecutor:
    """Return the tools of a turn whose sandbox asks for no approval."""
    harness = await open_turn_worker(database, directory)
    sandbox = await add_sandbox_record(database, harness.agent.account, permissionMode="bypass")
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    return await harness.tools(await harness.add_turn(running=True))


@pytest.fixture
async def tools(database: Database, tmp_path: Path) -> ToolExecutor:
    """The tools of a turn."""
    return await tools_of(database, tmp_path)


async def listed(tools: ToolExecutor, call: str) -> list[dict[str, Any]]:
    """Return the schedules of the conversation."""
    found = await tools.call("schedule_list", {}, call=call)
    return list(json.loads(found.content)["schedules"])


async def test_an_agent_schedules_lists_and_deletes(tools: ToolExecutor) -> None:
    """The times are in UTC, and a deleted schedule is gone."""
    args = {"text": "drink tea", "kind": "reminder", "at": LATER}
    made = json.loads((await tools.call("schedule_create", args, call="1")).content)
    assert (made["kind"], made["next_at"]) == ("reminder", "2030-01-31T08:00:00.000Z")
    assert [one["id"] for one in await listed(tools, "2")] == [made["id"]]
    assert not (await tools.call("schedule_delete", {"schedule": "sch_none"}, call="3")).ok
    assert (await tools.call("schedule_delete", {"schedule": made["id"]}, call="4")).ok
    assert await listed(tools, "5") == []


async def test_what_cannot_be_scheduled_is_explained(tools: ToolExecutor) -> None:
    """A wrong time, text or kind is an answer to the model that names it; nothing is scheduled."""
    for number, (wrong, field) in enumerate(WRONG):
        refused = await tools.call("schedule_create", {"text": "look", **wrong}, call=f"wrong-{number}")
        assert not refused.ok, wrong
        assert field in refused.content, (wrong, refused.content)
        assert len(refused.content) < 400
    assert await listed(tools, "after") == []

"""Tool calls of a turn: an approval covers one exact call, and a recorded result is never produced twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from delivery.database.engine import Database
from delivery.events.event import new_id
from gateway.accounts.vault import Vault
from gateway.agents.port import PendingToolCall
from gateway.conversations.approvals import request
from gateway.conversations.call_binding import call_digest
from gateway.conversations.outdated_approvals import list_outdated, pending_calls
from gateway.environments.fingerprint import fingerprint
from gateway.records.records import Records
from gateway.store.turns import approvals, turn_steps
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.tools.external_tools import MAX_NAME
from turn_worker import TurnWorkerHarness, add_sandbox_record, open_turn_worker

APPROVED: Mapping[str, Any] = {"command": "ls"}
RECORDED = {"ok": True, "content": "pigeon", "detail": {"exit_code": 0}}


@pytest.fixture
async def harness(database: Database, tmp_path: Path) -> TurnWorkerHarness:
    """An agent whose commands need an approval."""
    harness = await open_turn_worker(database, tmp_path)
    sandbox = await add_sandbox_record(database, harness.agent.account, permissionMode="ask")
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    return harness


async def _approve(
    harness: TurnWorkerHarness,
    turn: Turn,
    *,
    args: Mapping[str, Any],
    tool: str = "bash",
    file: str | None = None,
) -> Approval:
    """Record an approved call with the id `call-1`."""
    environment = await harness.environment_resolver.resolve(harness.agent, turn.conversation)
    approval = Approval(
        id=new_id("apr"),
        account=turn.account,
        conversation=turn.conversation,
        turn=turn.id,
        call="call-1",
        tool=tool,
        args=args,
        command=str(args.get("command")),
        digest=call_digest(tool, args, fingerprint(environment), file=file),
        state="approved",
        created_at=datetime.now(UTC),
    )
    async with harness.database.begin() as connection:
        await approvals.insert_approval(connection, approval)
    return approval


async def test_tools_may_have_names_as_long_as_models_accept(harness: TurnWorkerHarness) -> None:
    """The call and its approval are stored on every database."""
    turn = await harness.add_turn(running=True)
    call = PendingToolCall(id="call-1", name="t" * MAX_NAME, args={})
    async with harness.transactions.begin("test") as tx:
        await turn_steps.begin(tx.connection, turn.id, call.id, tool=call.name, args=call.args)
        await request(tx, turn, [call], "")
        (step,) = await turn_steps.list_for_turn(tx.connection, turn.id)
        (asked,) = await approvals.list_for_turn(tx.connection, turn.id)
    assert {step.tool, asked.tool} == {call.name}


async def test_an_approval_covers_the_call_that_was_approved(harness: TurnWorkerHarness) -> None:
    """The same id with the same arguments needs no second approval."""
    turn = await harness.add_turn(running=True)
    await _approve(harness, turn, args=APPROVED)
    tools = await harness.tools(turn)
    assert not await tools.needs_approval("bash", APPROVED, call="call-1")


@pytest.mark.parametrize(
    "args", [{"command": "rm -r build"}, {"command": "ls", "background": True}, {"command": "ls "}]
)
async def test_an_approval_covers_no_other_arguments(
    harness: TurnWorkerHarness, args: Mapping[str, Any]
) -> None:
    """A call that reuses the approved id with other arguments is refused and does not run."""
    turn = await harness.add_turn(running=True)
    await _approve(harness, turn, args=APPROVED)
    tools = await harness.tools(turn)
    assert await tools.needs_approval("bash", args, call="call-1")
    result = await tools.call("bash", args, call="call-1")
    assert not result.ok
    assert "must approve this call" in result.content
    async with harness.database.read() as connection:
        assert await turn_steps.list_for_turn(connection, turn.id) == []


async def test_an_approval_covers_no_other_sandbox_configuration(harness: TurnWorkerHarness) -> None:
    """After the sandbox was changed, the same call needs a new approval."""
    turn = await harness.add_turn(running=True)
    await _approve(harness, turn, args=APPROVED)
    sandbox = await add_sandbox_record(
        harness.database, harness.agent.account, name="larger", permissionMode="ask", memoryLimit=1024
    )
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    tools = await harness.tools(turn)
    assert await tools.needs_approval("bash", APPROVED, call="call-1")


async def test_an_approved_change_of_a_file_that_cannot_be_read_is_not_asked_about_again(
    database: Database, tmp_path: Path
) -> None:
    """It cannot be compared with what the question showed: the call fails for that reason."""
    harness = await open_turn_worker(database, tmp_path)
    sandbox = await add_sandbox_record(database, harness.agent.account, permissionMode="ask")
    async with database.begin() as connection:
        saved = await Records(cast("Vault", None)).create(
            connection, harness.agent.account, "workspace", name="files", config={}
        )
    workspaces = [{"name": "files", "workspaceId": saved.record.id}]
    harness.agent = replace(harness.agent, config={"sandbox": sandbox.id, "workspaces": workspaces})
    args = {"path": "notes.txt", "old_text": "a", "new_text": "b"}
    turn = await harness.add_turn(running=True)
    approval = await _approve(harness, turn, args=args, tool="edit", file="the hash of the file")
    environment = await harness.environment_resolver.resolve(harness.agent, turn.conversation)
    assert environment.spec.workspace is not None
    (environment.spec.workspace / "notes.txt").mkdir(parents=True)
    tools = await harness.tools(turn)
    files = await tools.preview_changes(pending_calls([approval]), start=True)
    assert list_outdated([approval], fingerprint(environment), files=files) == []
    assert not await tools.needs_approval("edit", args, call="call-1")
    result = await tools.call("edit", args, call="call-1")
    assert not result.ok
    assert "could not be compared with the one that the person saw" in result.content
    assert "directory" in result.content


async def test_a_finished_call_is_replayed_after_a_crash(harness: TurnWorkerHarness) -> None:
    """The second attempt gets the recorded result; the command does not run again."""
    turn = await harness.add_turn(running=True)
    async with harness.database.begin() as connection:
        await turn_steps.begin(connection, turn.id, "call-1", tool="bash", args=APPROVED)
        await turn_steps.end(connection, turn.id, "call-1", RECORDED)
    tools = await harness.tools(replace(turn, attempt=2))
    result = await tools.call("bash", APPROVED, call="call-1")
    assert {"ok": result.ok, "content": result.content, "detail": dict(result.detail)} == RECORDED


async def test_an_unfinished_call_is_reported_as_interrupted(harness: TurnWorkerHarness) -> None:
    """A command that may have run in part is not repeated; the result says what to check."""
    turn = await harness.add_turn(running=True)
    async with harness.database.begin() as connection:
        await turn_steps.begin(connection, turn.id, "call-1", tool="bash", args=APPROVED)
    tools = await harness.tools(replace(turn, attempt=2))
    result = await tools.call("bash", APPROVED, call="call-1")
    assert not result.ok
    assert "interrupted while it ran" in result.content


async def test_no_approval_is_requested_for_a_call_that_is_refused(
    database: Database, tmp_path: Path
) -> None:
    """A model's call that obviously cannot work is refused at once; a person's own command is asked about."""
    harness = await open_turn_worker(database, tmp_path)
    sandbox = await add_sandbox_record(
        database, harness.agent.account, permissionMode="ask", runtimes=["bash"]
    )
    harness.agent = replace(harness.agent, config={**harness.agent.config, "sandbox": sandbox.id})
    tools = await harness.tools(await harness.add_turn(running=True))
    for command, why in (("python3 -V", "'python'"), ("x" * 70_000, "longer than"), ("echo \0", "a NUL")):
        args = {"command": command}
        assert not await tools.needs_approval("bash", args, call="call-1")
        refused = await tools.call("bash", args, call=f"call-{len(command)}")
        assert (refused.ok, why in refused.content) == (False, True), refused.content
    typed = {"command": "pip -V"}
    assert not await tools.needs_approval("bash", typed, call="call-4", typed_by_asker=True)
    ran = await tools.call("bash", typed, call="call-4", typed_by_asker=True)
    assert "the sandbox could not be used" in ran.content, "it was tried"

"""Files in `outbox/` that cannot be stored at the end of their turn are announced, and sent later."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.event import EventType
from gateway.accounts.vault import Vault
from gateway.agents.port import Agent, AgentEvent, Finished, MessageCompleted, Tools, TurnInput
from gateway.records.records import Records
from gateway.store.turn_state import TurnState
from gateway.store.turns import turn_steps
from turn_worker import TurnWorkerHarness, open_turn_worker


class ReportWriter(Agent):
    """An agent that writes a report for the person."""

    def __init__(self, harness: TurnWorkerHarness) -> None:
        self._harness = harness

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Write the report and answer."""
        harness, turn = self._harness, turn_input.turn
        environment = await harness.environment_resolver.resolve(harness.agent, harness.conversation)
        assert environment.spec.workspace is not None
        async with harness.database.begin() as connection:
            await turn_steps.begin(connection, turn, "call-1", tool="write", args={})
        folder = environment.spec.workspace / "outbox"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{turn_input.input}.txt").write_text("pigeons")
        async with harness.database.begin() as connection:
            await turn_steps.end(connection, turn, "call-1", {})
        yield MessageCompleted(text="done")
        yield Finished(output="done")


async def test_files_that_cannot_be_stored_are_announced_and_sent_later(
    database: Database, tmp_path: Path
) -> None:
    """The first answer says which file is late and why; the second one has both files."""
    harness = await open_turn_worker(database, tmp_path)
    async with database.begin() as connection:
        records, account = Records(cast("Vault", None)), harness.agent.account
        files = (await records.create(connection, account, "workspace", name="files", config={})).record
        config = {"workspaces": [{"name": "files", "workspaceId": files.id}]}
        harness.agent = (
            await records.create(connection, account, "agent", name="writer", config=config)
        ).record
    blocked = tmp_path / "files"
    blocked.write_text("a file where a directory is needed: as good as a full disk")
    async with harness.running(ReportWriter(harness)):
        first = await harness.add_turn("first")
        await harness.wake()
        await harness.wait_for_state(first, TurnState.COMPLETED)
        blocked.unlink()
        second = await harness.add_turn("second")
        await harness.wake()
        await harness.wait_for_state(second, TurnState.COMPLETED)
    async with database.read() as connection:
        events = [
            one
            for turn in (first, second)
            for one in await outbox.list_for_turn(connection, turn.id)
            if one.type is EventType.MESSAGE_COMPLETED
        ]
    notice, late, sent = events
    assert "Not a directory). They are sent with a later answer" in notice.data["text"]
    assert "- `outbox/first.txt`" in notice.data["text"]
    assert (late.data["text"], late.data["files"]) == ("done", [])
    assert sorted(one["name"] for one in sent.data["files"]) == ["first.txt", "second.txt"]

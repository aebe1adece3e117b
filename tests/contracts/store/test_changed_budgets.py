"""A budget that is changed while a turn runs holds from the turn's next model request on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import pytest

from agent_tools import RecordingTools
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.budgets import MeteredAgent, UsageMeter
from gateway.accounts.vault import Vault
from gateway.agents.port import (
    Agent,
    AgentError,
    AgentEvent,
    AgentSpec,
    Finished,
    ModelRequestEnded,
    ModelRequestStarting,
    Tools,
    TurnInput,
    Usage,
)
from gateway.observability.metrics import Metrics
from gateway.records.agent import agent_config, turn_limits
from gateway.records.records import Records
from gateway.store.accounts import records
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import claims
from gateway.turns.budget_warnings import present_limits


@dataclass(kw_only=True)
class LimitChangingAgent(Agent):
    """Requests its model three times, and changes its record when the first request has ended."""

    database: Database
    limits: dict[str, Any]
    asked: int = 0

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Announce and end each request."""
        del tools
        usage = Usage()
        for number in range(1, 4):
            yield ModelRequestStarting(estimate_tokens=lambda: 60)
            self.asked, usage = number, Usage(model="openai:pigeon", requests=number)
            yield ModelRequestEnded(started_at=utc_now(), ended_at=utc_now(), usage=usage)
            if number == 1:
                await self._change(turn_input.agent.id)
        yield Finished(output="done", usage=usage)

    async def _change(self, agent: str) -> None:
        async with self.database.begin() as connection:
            record = await records.get_by_id(connection, agent)
            assert record is not None
            await Records(cast("Vault", None)).update(connection, record, patch={"limits": self.limits})


@pytest.mark.parametrize(
    ("before", "after", "asked"),
    [({}, {"budgetDayRequests": 1}, 1), ({"budgetDayRequests": 1}, {"budgetDayRequests": 5}, 3)],
    ids=["lowered", "raised"],
)
async def test_a_running_turn_has_the_present_budget_of_its_agent(
    database: Database, before: dict[str, int], after: dict[str, int], asked: int
) -> None:
    """One that was set stops the turn, and one that was raised lets it go on."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        saved = await Records(cast("Vault", None)).create(
            connection, account.id, "agent", name="ada", config={"limits": before}
        )
        conversation = Conversation(
            id="cnv_1", account=account.id, agent=saved.record.id, created_at=utc_now()
        )
        await conversations.insert_conversation(connection, conversation)
        claimed = await claims.read(connection, conversation.id)
    assert claimed is not None
    spec = AgentSpec(
        id=saved.record.id,
        name="ada",
        models=("openai:pigeon",),
        limits=turn_limits(agent_config(saved.record)),
    )
    given = TurnInput(
        turn="trn_1", conversation="cnv_1", attempt=1, trigger="message", input="hi", agent=spec
    )
    agent = LimitChangingAgent(database=database, limits=after)
    meter = UsageMeter(database, Metrics(), {}, present_limits=present_limits)
    with suppress(AgentError):
        async for _step in MeteredAgent(agent, meter, claimed).run(given, RecordingTools()):
            pass
    assert agent.asked == asked

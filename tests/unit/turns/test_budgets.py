"""What is used is written down as it is used, and a budget that is used up refuses the next model call."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent_tools import RecordingTools
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.budget_periods import BudgetNames, render_refusal, render_share, render_warning
from gateway.accounts.budgets import Budget, MeteredAgent, UsageMeter, budget_problem
from gateway.accounts.reservations import BudgetReservations, BudgetWarning, OnBudgetWarning, no_warning
from gateway.agents.port import (
    Agent,
    AgentError,
    AgentEvent,
    AgentSpec,
    Checkpoint,
    Finished,
    ModelRequestEnded,
    ModelRequestStarting,
    Tools,
    TurnInput,
    TurnLimits,
    Usage,
)
from gateway.config.setting_types import PriceSettings
from gateway.observability.metrics import Metrics
from gateway.store.accounts import budgets, deletion
from gateway.store.accounts import usage as store
from gateway.store.accounts.budgets import BudgetCounter, BudgetKind
from gateway.store.accounts.usage import Amount
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import claims
from migrated import migrated_sqlite

MODEL = "openai:pigeon"
PRICES = {MODEL: PriceSettings(input=2.0, output=10.0)}


class ThreeCallAgent(Agent):
    """Asks its model three times, a hundred tokens each; counts how often it could."""

    def __init__(self) -> None:
        self.asked = 0

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Save after each call, as the model agent does."""
        del turn_input, tools
        for number in range(1, 4):
            yield ModelRequestStarting(estimate_tokens=lambda: 60)
            self.asked += 1
            usage = Usage(
                model="pigeon-2026", requests=number, input_tokens=60 * number, output_tokens=40 * number
            )
            yield ModelRequestEnded(started_at=utc_now(), ended_at=utc_now(), usage=usage)
            yield Checkpoint(state=b"", usage=usage)
        yield Finished(output="done", usage=usage)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A database with the account `acc_1` and its conversation `cnv_1`."""
    url = await migrated_sqlite(tmp_path / "gateway.db")
    opened = Database(url)
    yield opened
    await opened.close()


@pytest.fixture
async def account(database: Database) -> str:
    """An account with a conversation."""
    async with database.begin() as connection:
        made, _key = await api_keys.create_account(connection, "one")
        conversation = Conversation(id="cnv_1", account=made.id, agent="agt_1", created_at=datetime.now(UTC))
        await conversations.insert_conversation(connection, conversation)
    return made.id


def turn_input(turn: str, **limits: float) -> TurnInput:
    """Return a turn of an agent with these budgets."""
    spec = AgentSpec(id="agt_1", name="ada", models=(MODEL,), limits=TurnLimits(**limits))  # type: ignore[arg-type]  # by name
    return TurnInput(turn=turn, conversation="cnv_1", attempt=1, trigger="message", input="hi", agent=spec)


async def metered(
    agent: Agent,
    database: Database,
    metrics: Metrics | None = None,
    *,
    on_warning: OnBudgetWarning = no_warning,
) -> MeteredAgent:
    """Return an agent that is metered in the conversation, as it was claimed now."""
    async with database.read() as connection:
        claimed = await claims.read(connection, "cnv_1")
    assert claimed is not None
    reservations = BudgetReservations(database, on_warning=on_warning)
    meter = UsageMeter(database, metrics or Metrics(), PRICES, reservations=reservations)
    return MeteredAgent(agent, meter, claimed)


async def run_turn(database: Database, asked: TurnInput, metrics: Metrics | None = None) -> ThreeCallAgent:
    """Perform a turn to its end."""
    thinker = ThreeCallAgent()
    agent = await metered(thinker, database, metrics)
    async for _step in agent.run(asked, RecordingTools()):
        pass
    return thinker


async def usage_totals(database: Database, account: str) -> Amount:
    """Return what the account has used."""
    async with database.read() as connection:
        return sum((await store.totals(connection, account)).values(), Amount())


async def test_a_turn_is_counted_once(database: Database, account: str) -> None:
    """Each call adds what it used, a repetition of the turn adds nothing, and money follows the price."""
    metrics = Metrics()
    await run_turn(database, turn_input("trn_1"), metrics)
    used = await usage_totals(database, account)
    assert (used.requests, used.input_tokens, used.output_tokens) == (3, 180, 120)
    assert used.micros == 180 * 2 + 120 * 10
    assert 'dovecote_tokens_total{direction="input",model="pigeon-2026"} 180.0' in metrics.render().decode()
    await run_turn(database, turn_input("trn_1"), metrics)
    assert await usage_totals(database, account) == used


async def test_the_call_after_the_budget_is_refused(database: Database, account: str) -> None:
    """A turn stops between two calls; the next turn is refused before its first, in words for a person."""
    with pytest.raises(AgentError, match="tokens of agent 'ada' is used up: 200 of 150"):
        await run_turn(database, turn_input("trn_1", budget_tokens=150))
    assert (await usage_totals(database, account)).tokens == 200
    thinker = ThreeCallAgent()
    agent = await metered(thinker, database)
    with pytest.raises(AgentError, match="can raise it"):
        await anext(agent.run(turn_input("trn_2", budget_cost=0.0001), RecordingTools()))
    assert thinker.asked == 0


async def test_requests_have_a_budget_as_well(database: Database, account: str) -> None:
    """Models that cost nothing can be bounded by how often they are asked, by agent and by account."""
    with pytest.raises(AgentError, match="model requests of agent 'ada' is used up: 2 of 2"):
        await run_turn(database, turn_input("trn_1", budget_requests=2))
    async with database.begin() as connection:
        await budgets.set_budget(connection, account, {"requests": 3})
    with pytest.raises(AgentError, match="model requests of this account is used up: 3 of 3"):
        await run_turn(database, turn_input("trn_2"))


async def test_an_account_has_a_budget_of_all_its_agents(database: Database, account: str) -> None:
    """What the operator allows the account holds for every agent of it."""
    async with database.begin() as connection:
        await budgets.set_budget(connection, account, {"seconds": 0.0, "tokens": 150, "cost": 0.0})
    with pytest.raises(AgentError, match=r"this account is used up.*operator"):
        await run_turn(database, turn_input("trn_1"))


async def test_a_budget_that_is_set_during_a_turn_stops_its_next_request(
    database: Database, account: str
) -> None:
    """The claim has found no budget: the first request is not checked again, and all later ones are."""
    thinker = ThreeCallAgent()
    agent = await metered(thinker, database)
    async with aclosing(agent.run(turn_input("trn_1"), RecordingTools())) as steps:
        await anext(steps)
        async with database.begin() as connection:
            await budgets.set_budget(connection, account, {"requests": 1})
        with pytest.raises(AgentError, match="model requests of this account is used up: 1 of 1"):
            await anext(steps)
    assert thinker.asked == 1


@pytest.mark.parametrize("whose", ["account", "agent"])
async def test_a_total_budget_warns_once_until_it_is_raised(
    database: Database, account: str, whose: str
) -> None:
    """At 80 percent the conversation gets one message, which says who can raise the budget."""
    warnings: list[BudgetWarning] = []

    async def warn(warning: BudgetWarning) -> None:
        async with database.begin() as connection:
            if await budgets.mark_warned(connection, warning.account, warning.counter):
                warnings.append(warning)

    async def ask(turn: str, tokens: int) -> list[str]:
        """Use 300 tokens, and return the new warnings."""
        warnings.clear()
        if whose == "account":
            async with database.begin() as connection:
                await budgets.set_budget(connection, account, {"tokens": tokens})
        asked = turn_input(turn, **({"budget_tokens": tokens} if whose == "agent" else {}))
        agent = await metered(ThreeCallAgent(), database, on_warning=warn)
        with suppress(AgentError):
            async for _step in agent.run(asked, RecordingTools()):
                pass
        return [one.text for one in warnings]

    owner = "this account" if whose == "account" else "agent 'ada'"
    raiser = "the gateway's operator" if whose == "account" else "who may change the agent (limits)"
    assert await ask("one", 1000) == []
    (text,) = await ask("two", 720)
    assert text.startswith(f"83% of the budget of tokens of {owner} is used: 600 of 720. When all is used, I")
    assert text.endswith(f"{raiser} can raise it.")
    assert await ask("three", 720) == []
    assert len(await ask("four", 1300)) == 1


def test_no_budget_is_no_limit() -> None:
    """Zero means no limit; each budget is reported by its name."""
    used = Amount(seconds=1e9, input_tokens=10**12, micros=10**12)
    assert budget_problem(Budget(), used, owner="x", raised_by="y") is None
    assert "sandbox seconds" in (budget_problem(Budget(seconds=1), used, owner="x", raised_by="y") or "")
    assert "money" in (budget_problem(Budget(cost=1), used, owner="x", raised_by="y") or "")


def money_counter(used: int, reserved: int = 0) -> BudgetCounter:
    """Return the counter of an account's budget of 5 per day."""
    return BudgetCounter(
        owner="",
        period="2030-01-31",
        kind=BudgetKind.COST,
        used=used,
        reserved=reserved,
        ceiling=5_000_000,
        warned=False,
        ends_at=datetime(2030, 2, 1, tzinfo=UTC),
    )


def test_people_in_chats_see_only_the_share_of_money() -> None:
    """What a budget of money refuses, warns of or shows in a chat contains no amount of money."""
    names = BudgetNames(agent="agt_1", agent_name="ada", timezone="UTC")
    whole = budget_problem(Budget(cost=5), Amount(micros=5_085_000), owner="this account", raised_by="Who")
    assert whole == "The budget of money of this account is used up: 101%. Who can raise it."
    assert "is used up: 101%. It begins" in render_refusal(money_counter(5_085_000), names)
    assert "requests: 60%, and 40% reserved by running requests. It may" in render_refusal(
        money_counter(3_000_000, 2_000_000), names
    )
    assert render_warning(money_counter(4_050_000), names).startswith(
        "81% of the budget of money per day of this account is used. When all is used,"
    )
    assert "is used: 101%. I can" in render_warning(money_counter(5_085_000), names)
    assert "of this account: 81%, until" in render_share(money_counter(4_050_000), names)


async def test_a_deleted_account_has_no_usage(database: Database, account: str) -> None:
    """The account of a turn that asks a model is deleted: nothing is recorded, and no failure logged."""
    agent = await metered(ThreeCallAgent(), database)
    with capture_logs() as logs:
        async with aclosing(agent.run(turn_input("trn_1"), RecordingTools())) as steps:
            await anext(steps)
            async with database.begin() as connection:
                await deletion.delete_account(connection, account)
    assert logs == []
    assert await usage_totals(database, account) == Amount()

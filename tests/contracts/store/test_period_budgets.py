"""Budgets are reserved before each model request, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent_tools import RecordingTools
from channels.message import Author
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.budgets import MeteredAgent, UsageMeter
from gateway.accounts.reservations import BudgetReservations, BudgetUsedUp, BudgetWarning
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
    TurnLimits,
    Usage,
)
from gateway.observability.metrics import Metrics
from gateway.records.records import Records
from gateway.store.accounts import budgets as store
from gateway.store.accounts import persons, records
from gateway.store.accounts.budgets import BudgetCounter
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.turns import claims
from gateway.turns.budget_warnings import BudgetWarnings
from ingress_harness import ANN, BOB, IngressHarness, open_ingress_harness
from statement_recorder import recorded_statements

MODEL = "openai:pigeon"


class CountingAgent(Agent):
    """Requests its model a number of times with 100 tokens each; the requests can be held, or fail."""

    def __init__(self, requests: int = 1) -> None:
        self.requests = requests
        self.asked = 0
        self.asking = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails = False

    async def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Announce and end each request."""
        del turn_input, tools
        usage = Usage()
        for number in range(1, self.requests + 1):
            yield ModelRequestStarting(estimate_tokens=lambda: 60)
            self.asked += 1
            self.asking.set()
            await self.may_answer.wait()
            if self.fails:
                yield ModelRequestEnded(started_at=utc_now(), ended_at=utc_now(), error="Down")
                raise AgentError("The model is down.")
            usage = Usage(model=MODEL, requests=number, input_tokens=60 * number, output_tokens=40 * number)
            yield ModelRequestEnded(started_at=utc_now(), ended_at=utc_now(), usage=usage)
        yield Finished(output="done", usage=usage)


@pytest.fixture
async def account(database: Database) -> str:
    """An account with a conversation."""
    async with database.begin() as connection:
        made, _key = await api_keys.create_account(connection, "one")
        conversation = Conversation(id="cnv_1", account=made.id, agent="agt_1", created_at=utc_now())
        await conversations.insert_conversation(connection, conversation)
    return made.id


def turn_input(turn: str, **limits: Any) -> TurnInput:
    """Return a turn of an agent with these budgets."""
    spec = AgentSpec(id="agt_1", name="ada", models=(MODEL,), limits=TurnLimits(**limits))
    return TurnInput(turn=turn, conversation="cnv_1", attempt=1, trigger="message", input="hi", agent=spec)


async def run_turn(meter: UsageMeter, asked: TurnInput, agent: Agent | None = None) -> None:
    """Perform a turn to its end."""
    async with meter._database.read() as connection:
        claimed = await claims.read(connection, asked.conversation)
    assert claimed is not None
    async for _step in MeteredAgent(agent or CountingAgent(), meter, claimed).run(asked, RecordingTools()):
        pass


async def set_budget(database: Database, account: str, **limits: Any) -> None:
    """Set the budget of the account."""
    async with database.begin() as connection:
        await store.set_budget(connection, account, limits)


async def counters(database: Database, account: str) -> Sequence[BudgetCounter]:
    """Return the account's counters."""
    async with database.read() as connection:
        return await store.list_counters(connection, account, now=utc_now())


@pytest.mark.parametrize("limits", [{"day": {"requests": 10}}, {"requests": 10}], ids=["day", "total"])
async def test_competing_replicas_keep_a_budget(database: Database, account: str, limits: Any) -> None:
    """Of 30 requests that begin together on two replicas, as many run as the budget has places for."""
    await set_budget(database, account, **limits)
    other = Database(database.url.render_as_string(hide_password=False))
    meters = [UsageMeter(one, Metrics(), {}) for one in (database, other)]
    agents = [CountingAgent() for _ in range(30)]
    for agent in agents:
        agent.may_answer.clear()
    running = [
        asyncio.create_task(run_turn(meters[place % 2], turn_input(f"trn_{place}"), agent))
        for place, agent in enumerate(agents)
    ]
    try:
        async with asyncio.timeout(60):
            for agent, one in zip(agents, running, strict=True):
                asking = asyncio.create_task(agent.asking.wait())
                await asyncio.wait({asking, one}, return_when=asyncio.FIRST_COMPLETED)
                asking.cancel()
        assert sum(agent.asked for agent in agents) == 10
        for agent in agents:
            agent.may_answer.set()
        ended = await asyncio.gather(*running, return_exceptions=True)
    finally:
        await other.close()
    refused = [one for one in ended if isinstance(one, AgentError)]
    assert len(refused) == 20
    assert "has no room beside the running requests: 0 of 10, and 10 reserved" in str(refused[0])
    assert all(one.retryable for one in refused)
    with pytest.raises(AgentError, match="used up: 10 of 10"):
        await run_turn(meters[0], turn_input("trn_30"))


async def test_usage_replaces_the_reservation(database: Database, account: str) -> None:
    """Each request counts with its real usage; the next one after the limit is refused with its end."""
    meter = UsageMeter(database, Metrics(), {})
    await run_turn(meter, turn_input("trn_1", budget_day_tokens=250), CountingAgent(requests=3))
    found = await counters(database, account)
    assert [(one.owner, one.used, one.reserved) for one in found] == [("agt_1", 300, 0)]
    agent = CountingAgent()
    with pytest.raises(
        AgentError, match=r"tokens per day of agent 'ada' is used up: 300 of 250\. It begins"
    ) as caught:
        await run_turn(meter, turn_input("trn_2", budget_day_tokens=250), agent)
    assert agent.asked == 0
    assert f"{found[0].ends_at:%Y-%m-%d %H:%M} (UTC)" in str(caught.value)
    await run_turn(meter, turn_input("trn_3"), agent)
    assert agent.asked == 1


async def test_a_refused_request_reserves_nothing(database: Database, account: str) -> None:
    """If one of several budgets is used up, the others keep what they had."""
    meter = UsageMeter(database, Metrics(), {})
    await set_budget(database, account, month={"tokens": 1_000_000})
    await run_turn(meter, turn_input("trn_1", budget_day_requests=1))
    before = await counters(database, account)
    with pytest.raises(AgentError, match="model requests per day of agent 'ada' is used up: 1 of 1"):
        await run_turn(meter, turn_input("trn_2", budget_day_requests=1))
    assert await counters(database, account) == before


async def test_a_day_ends_by_the_new_time_zone(database: Database, account: str) -> None:
    """A full counter whose day has ended in the time zone before refuses with its end in the present one."""
    await set_budget(database, account, day={"requests": 1})
    morning = datetime(2030, 6, 15, 9, tzinfo=UTC)
    before = BudgetReservations(database, timezone="Asia/Tokyo", now=lambda: morning)
    after = BudgetReservations(database, timezone="UTC", now=lambda: morning + timedelta(hours=12))
    await run_turn(UsageMeter(database, Metrics(), {}, reservations=before), turn_input("trn_1"))
    with pytest.raises(AgentError, match=r"used up: 1 of 1\. It begins again at 2030-06-16 00:00 \(UTC\)"):
        await run_turn(UsageMeter(database, Metrics(), {}, reservations=after), turn_input("trn_2"))


async def test_a_failed_request_gives_back(database: Database, account: str) -> None:
    """A request without an answer takes nothing of the budget."""
    meter, agent = UsageMeter(database, Metrics(), {}), CountingAgent()
    agent.fails = True
    with pytest.raises(AgentError, match="down"):
        await run_turn(meter, turn_input("trn_1", budget_day_requests=1), agent)
    await run_turn(meter, turn_input("trn_2", budget_day_requests=1))


async def test_a_dead_process_gives_back(database: Database, account: str) -> None:
    """What a killed process reserved is given back when the turn is repeated, or when it has expired."""
    await set_budget(database, account, day={"requests": 1})
    reservations = BudgetReservations(database)
    meter = UsageMeter(database, Metrics(), {}, reservations=reservations)
    asked = turn_input("trn_1")
    await meter.reserve(account, asked, lambda: 1, is_first=True)
    with pytest.raises(AgentError, match="running requests: 0 of 1, and 1 reserved"):
        await meter.reserve(account, turn_input("trn_2"), lambda: 1, is_first=True)
    await meter.reserve(account, replace(asked, attempt=2), lambda: 1, is_first=True)
    assert [(one.used, one.reserved) for one in await counters(database, account)] == [(0, 1)]
    assert await reservations.release_expired() == 0
    late = BudgetReservations(database, now=lambda: utc_now() + timedelta(days=1))
    assert await late.release_expired() == 1
    assert await late.release_expired() == 0
    await run_turn(meter, turn_input("trn_2"))
    assert [(one.used, one.reserved) for one in await counters(database, account)] == [(1, 0)]


async def test_an_expired_reservation_is_given_back_once(database: Database, account: str) -> None:
    """A request that ends after its reservation was given back counts with its usage alone."""
    await set_budget(database, account, day={"requests": 5})
    meter, agent = UsageMeter(database, Metrics(), {}), CountingAgent()
    agent.may_answer.clear()
    running = asyncio.create_task(run_turn(meter, turn_input("trn_1"), agent))
    async with asyncio.timeout(60):
        await agent.asking.wait()
    assert (
        await BudgetReservations(database, now=lambda: utc_now() + timedelta(days=1)).release_expired() == 1
    )
    agent.may_answer.set()
    await running
    assert [(one.used, one.reserved) for one in await counters(database, account)] == [(1, 0)]


async def test_a_limit_is_removed_while_a_request_runs(database: Database, account: str) -> None:
    """No budget is shown then, and a limit that is set again begins with all that was used."""
    await set_budget(database, account, day={"tokens": 5000})
    meter, agent = UsageMeter(database, Metrics(), {}), CountingAgent()
    agent.may_answer.clear()
    running = asyncio.create_task(run_turn(meter, turn_input("trn_1"), agent))
    async with asyncio.timeout(60):
        await agent.asking.wait()
    await set_budget(database, account)
    assert await counters(database, account) == []
    agent.may_answer.set()
    await running
    await run_turn(meter, turn_input("trn_2"))
    assert await counters(database, account) == []
    await set_budget(database, account, day={"tokens": 5000})
    await run_turn(meter, turn_input("trn_3"))
    assert [(one.used, one.reserved) for one in await counters(database, account)] == [(300, 0)]


async def test_an_agents_limit_counts_what_was_used_without_it(database: Database) -> None:
    """A limit that is removed from an agent's record and set again includes the usage in between."""
    book, meter = Records(Vault(["k" * 40])), UsageMeter(database, Metrics(), {})
    async with database.begin() as connection:
        made, _key = await api_keys.create_account(connection, "one")
        agent = (await book.create(connection, made.id, "agent", name="ada", config={})).record
        conversation = Conversation(id="cnv_1", account=made.id, agent=agent.id, created_at=utc_now())
        await conversations.insert_conversation(connection, conversation)

    async def ask(turn: str, limit: int) -> None:
        async with database.begin() as connection:
            present = await records.get_by_id(connection, agent.id)
            assert present is not None
            await book.update(connection, present, patch={"limits": {"budgetDayRequests": limit}})
        asked = turn_input(turn, budget_day_requests=limit)
        await run_turn(meter, replace(asked, agent=replace(asked.agent, id=agent.id)))

    for number, limit in enumerate((5, 0, 0)):
        await ask(f"trn_{number}", limit)
    with pytest.raises(AgentError, match="used up: 3 of 3"):
        await ask("trn_3", 3)


async def test_a_lowered_limit_is_shown(database: Database, account: str) -> None:
    """The account's is shown at once; that of an agent as soon as it refuses a request."""
    meter = UsageMeter(database, Metrics(), {})
    await set_budget(database, account, day={"tokens": 5000})
    await run_turn(meter, turn_input("trn_1", budget_day_requests=9))
    await set_budget(database, account, day={"tokens": 200}, month={"cost": 2.5})
    assert {(one.owner, one.ceiling) for one in await counters(database, account)} == {
        ("", 200),
        ("agt_1", 9),
    }
    with pytest.raises(AgentError, match="used up: 1 of 1"):
        await run_turn(meter, turn_input("trn_2", budget_day_requests=1))
    assert {(one.owner, one.ceiling) for one in await counters(database, account)} == {
        ("", 200),
        ("", 2_500_000),
        ("agt_1", 1),
    }


@pytest.mark.parametrize(
    ("limit", "warning"),
    [
        (500, "80% of the budget of tokens per day of this account is used: 400 of 500. When all is used,"),
        (440, "90% of the budget of tokens per day of this account is used: 400 of 440. When all is used,"),
        (400, "All of the budget of tokens per day of this account is used: 400 of 400. I can answer again"),
    ],
)
async def test_people_are_warned_once(database: Database, account: str, limit: int, warning: str) -> None:
    """At 80 percent of a budget or above there is one warning in its period, with the use and the end."""
    warnings: list[BudgetWarning] = []

    async def warn(warning: BudgetWarning) -> None:
        async with database.begin() as connection:
            if await store.mark_warned(connection, warning.account, warning.counter):
                warnings.append(warning)

    meter = UsageMeter(database, Metrics(), {}, reservations=BudgetReservations(database, on_warning=warn))
    await set_budget(database, account, day={"tokens": limit}, timezone="Europe/Berlin")
    await run_turn(meter, turn_input("trn_1"), CountingAgent(requests=3))
    assert not warnings
    with suppress(BudgetUsedUp):  # the last request of the smallest limit
        await run_turn(meter, turn_input("trn_2"), CountingAgent(requests=2))
    assert len(warnings) == 1
    assert warnings[0].text.startswith(warning)
    assert warnings[0].conversation == "cnv_1"


async def test_earlier_usage_counts_when_a_limit_is_set(database: Database, account: str) -> None:
    """A limit that is set in the middle of a day includes what was used that day."""
    meter = UsageMeter(database, Metrics(), {})
    await run_turn(meter, turn_input("trn_1"), CountingAgent(requests=3))
    await set_budget(database, account, day={"tokens": 200})
    for turn in ("trn_2", "trn_2"):
        with pytest.raises(AgentError, match="used up: 300 of 200"):
            await run_turn(meter, turn_input(turn))
        assert [(one.used, one.reserved, one.ceiling) for one in await counters(database, account)] == [
            (300, 0, 200)
        ]
    await set_budget(database, account, day={"tokens": 400})
    await run_turn(meter, turn_input("trn_3"))
    assert [one.used for one in await counters(database, account)] == [400]
    await set_budget(database, account)
    await run_turn(meter, turn_input("trn_4"))
    await set_budget(database, account, day={"tokens": 10_000})
    await run_turn(meter, turn_input("trn_5"))
    assert [one.used for one in await counters(database, account)] == [600]


async def open_chat(database: Database) -> tuple[IngressHarness, UsageMeter, Metrics]:
    """Return a chat, and a meter that warns in it."""
    harness, metrics = await open_ingress_harness(database), Metrics()
    warnings = BudgetWarnings(harness.transactions, metrics)
    reservations = BudgetReservations(database, on_warning=warnings.warn)
    return harness, UsageMeter(database, metrics, {}, reservations=reservations), metrics


async def turn_of(harness: IngressHarness, text: str, by: Author) -> TurnInput:
    """Return the turn that a person's message starts."""
    await harness.send_message(text, by=by)
    turn = (await harness.list_open_turns())[-1]
    return replace(turn_input(turn.id), conversation=turn.conversation)


async def test_each_person_has_a_budget(database: Database) -> None:
    """People have what the account gives to everybody, or a budget of their own, on all their identities."""
    harness, meter, _ = await open_chat(database)
    await set_budget(database, harness.account, person_day={"requests": 1})
    await run_turn(meter, await turn_of(harness, "one", ANN))
    with pytest.raises(AgentError, match="model requests per day of the person who asks is used up: 1 of 1"):
        await run_turn(meter, await turn_of(harness, "two", ANN))
    await run_turn(meter, await turn_of(harness, "three", BOB))
    async with database.begin() as connection:
        people = await persons.list_after(connection, harness.account, after=None, limit=10)
        ann = next(one for one in people if one.subject.endswith(f":{ANN.id}"))
        own = {"day": {"requests": 2}}
        assert await store.set_person_budget(connection, harness.account, ann.id, own)
    await run_turn(meter, await turn_of(harness, "four", ANN))
    with pytest.raises(AgentError, match="used up: 2 of 2"):
        await run_turn(meter, await turn_of(harness, "five", ANN))


async def test_the_chat_is_warned_once(database: Database) -> None:
    """The warning is a message of the conversation, it is counted, and `/usage` shows the budget."""
    harness, meter, metrics = await open_chat(database)
    await set_budget(database, harness.account, day={"requests": 5})
    for number in range(5):
        await run_turn(meter, await turn_of(harness, str(number), ANN))
    said = [event.data for event in await harness.list_events() if event.data.get("role") == "notice"]
    assert ["80% of the budget of model requests per day" in one["text"] for one in said] == [True]
    assert 'dovecote_budget_warnings_total{whose="account"} 1.0' in metrics.render().decode()
    await harness.send_command("usage")
    assert "The budget of model requests per day of this account: 5 of 5, until " in harness.replies[-1]


async def test_requests_without_a_budget_cost_one_statement(database: Database, account: str) -> None:
    """Where no budget is set, a request reads the limits and writes nothing before it."""
    meter = UsageMeter(database, Metrics(), {})
    await run_turn(meter, turn_input("trn_1"))
    with recorded_statements() as statements:
        assert await meter.reserve(account, turn_input("trn_2"), lambda: 1, is_first=True) is None
    executed = [one.text for one in statements.executed if "accounts" in one.text]
    assert len(executed) == 1
    assert all(one.text.startswith(("SELECT", "BEGIN", "PRAGMA")) for one in statements.executed)

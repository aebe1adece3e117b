"""What one message costs: statements, transactions and messages to the broker, from chat to chat.

A message needs 21 statements beside BEGIN (25 with a model), 3 commits and 6 publishes: one for each event.
At most once a second, two more statements store how far events are published.
The limits are above that: work that runs by time is counted as well, and there is more of it while a slow
machine answers. Lower them when a change saves something.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from nats.aio.msg import Msg
from sqlalchemy import func, select, text

from bench.chaos.deployment import large_nats_server
from channels.telegram.simulator import Simulator, simulate
from delivery.broker.connection import connect
from delivery.database.clock import utc_now
from delivery.database.tables import IS_OPEN, deliveries
from gateway.app import RunningGateway
from gateway.maintenance.janitor import Janitor
from gateway.observability.gauges import QueueGauges
from gateway.observability.metrics import Metrics
from gateway_process import channel_env
from in_process_gateway import gateway_in_process
from openai_server import OpenAIServer, ScriptedTurn
from statement_recorder import StatementRecorder, recorded_statements

CHAT = 4711
MESSAGES = 10
MAX_STATEMENTS = 25.0
MAX_STATEMENTS_WITH_MODEL = 29.0
MAX_COMMITS = 5.0
MAX_PUBLISHES = 7.0
OWN = "/* of the test */"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCosts:
    """What a message costs on average."""

    statements: float
    commits: float
    publishes: float


async def test_a_message_costs_few_statements_and_commits(tmp_path: Path) -> None:
    """Messages that come one after the other stay within the limits, on average."""
    costs = await _measure(tmp_path, {})
    assert costs.statements <= MAX_STATEMENTS, costs
    assert costs.commits <= MAX_COMMITS, costs
    assert costs.publishes <= MAX_PUBLISHES, costs


async def test_a_short_reply_of_a_model_costs_no_further_publish(tmp_path: Path) -> None:
    """A streamed reply that is complete at once has no delta."""
    async with OpenAIServer(lambda _body: ScriptedTurn(text="ok", pieces=1)) as model:
        agent = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        costs = await _measure(tmp_path, agent | {"OPENAI_API_KEY": "a key for a loopback model"})
    assert costs.statements <= MAX_STATEMENTS_WITH_MODEL, costs
    assert costs.commits <= MAX_COMMITS, costs
    assert costs.publishes <= MAX_PUBLISHES, costs


async def _measure(tmp_path: Path, agent: Mapping[str, str]) -> MessageCosts:
    """Exchange messages with a gateway whose agent has these settings."""
    with recorded_statements() as recorder:
        async with simulate() as platform:
            channel = channel_env("telegram", platform.settings(allow=["*"]))
            env = {"PATH": os.environ["PATH"], **channel, **agent}
            async with gateway_in_process(tmp_path / "data", env) as running:
                regular = await _regular_statements(running, recorder)
                await _exchange(platform, running)
                recorder.clear()
                sent = _published(running)
                for _ in range(MESSAGES):
                    await _exchange(platform, running)
                published = (_published(running) - sent) / MESSAGES
        caused = [one.text for one in recorder.executed if one.text not in regular and OWN not in one.text]
    return MessageCosts(
        statements=len(caused) / MESSAGES, commits=recorder.commits / MESSAGES, publishes=published
    )


async def test_with_a_nats_server_that_replicas_share_a_message_writes_no_lease(tmp_path: Path) -> None:
    """The replica holds the shards: it needs no leases, no wake-ups, and no more commits than one alone."""
    events: list[str] = []
    others: list[str] = []
    complete = asyncio.Event()

    async def record(message: Msg) -> None:
        (events if message.subject.startswith("ev.") else others).append(message.subject)
        if len(events) == 6 * MESSAGES:
            complete.set()

    async with AsyncExitStack() as stack:
        recorder = stack.enter_context(recorded_statements())
        server = large_nats_server(tmp_path / "nats")
        await server.start()
        stack.push_async_callback(server.stop)
        platform = await stack.enter_async_context(simulate())
        env = {
            "PATH": os.environ["PATH"],
            "DOVECOTE_NATS_URL": server.url.replace("://", f"://{server.token}@"),
            **channel_env("telegram", platform.settings(allow=["*"])),
        }
        running = await stack.enter_async_context(gateway_in_process(tmp_path / "data", env))
        await _exchange(platform, running)
        observer = await stack.enter_async_context(connect(server.url, token=server.token))
        for subject in ("lease.t.>", "lease.d.>", "work.>", "wake.>", "ev.>"):
            await stack.enter_async_context(observer.subscribe(subject, record))
        await observer.api_request("INFO")
        recorder.clear()
        for _ in range(MESSAGES):
            await _exchange(platform, running)
        async with asyncio.timeout(60):
            await complete.wait()  # the last event follows the reply
        commits = recorder.commits / MESSAGES
    assert commits <= MAX_COMMITS, commits
    assert not others


async def _regular_statements(running: RunningGateway, recorder: StatementRecorder) -> set[str]:
    """Return the statements that run by time and not for a message."""
    transactions = running.services.transactions
    recorder.clear()
    await Janitor(transactions.database, transactions._relay, transactions.wake_soon).run_once(timedelta(0))
    await QueueGauges(transactions.database, Metrics()).run_once()
    await running.services.conversation_deletion.run_once(utc_now())
    return {one.text for one in recorder.executed}


async def _exchange(platform: Simulator, running: RunningGateway) -> None:
    """Send a message and wait until its answer is recorded as delivered."""
    said = len(platform.messages(CHAT))
    await platform.say(CHAT, "hello")
    await platform.wait_for_messages(said + 1, chat=CHAT)
    async with asyncio.timeout(60):
        while await _count_open_deliveries(running):
            pass


async def _count_open_deliveries(running: RunningGateway) -> int:
    counted = select(func.count()).prefix_with(text(OWN)).select_from(deliveries).where(IS_OPEN)
    async with running.services.transactions.database.read() as connection:
        await asyncio.sleep(0.02)
        return int((await connection.execute(counted)).scalar_one())


def _published(running: RunningGateway) -> int:
    """Return how many messages the gateway has sent to the broker."""
    return int(cast("Any", running.services.stream)._nats._client.stats["out_msgs"])

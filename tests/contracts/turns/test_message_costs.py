"""What one message costs: statements, transactions and messages to the broker, from chat to chat.

A message needs 38 statements beside BEGIN, 3 commits and 6 publishes: one for each event. The limits are
above that: work that runs by time is counted as well, and there is more of it while a slow machine
answers. Lower them when a change saves something.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from sqlalchemy import func, select, text

from channels.telegram.simulator import Simulator, simulate
from delivery.database.clock import utc_now
from delivery.database.tables import IS_OPEN, deliveries
from gateway.app import RunningGateway
from gateway.maintenance.janitor import Janitor
from gateway.observability.gauges import QueueGauges
from gateway.observability.metrics import Metrics
from gateway_process import channel_env
from in_process_gateway import gateway_in_process
from statement_recorder import StatementRecorder, recorded_statements

CHAT = 4711
MESSAGES = 10
MAX_STATEMENTS = 42.0
MAX_COMMITS = 6.0
MAX_PUBLISHES = 10.0
OWN = "/* of the test */"


async def test_a_message_costs_few_statements_and_commits(tmp_path: Path) -> None:
    """Messages that come one after the other stay within the limits, on average."""
    with recorded_statements() as recorder:
        async with simulate() as platform:
            env = {"PATH": os.environ["PATH"], **channel_env("telegram", platform.settings(allow=["*"]))}
            async with gateway_in_process(tmp_path / "data", env) as running:
                regular = await _regular_statements(running, recorder)
                await _exchange(platform, running)
                recorder.clear()
                sent = _published(running)
                for _ in range(MESSAGES):
                    await _exchange(platform, running)
                published = (_published(running) - sent) / MESSAGES
        caused = [one.text for one in recorder.executed if one.text not in regular and OWN not in one.text]
    counts = (len(caused) / MESSAGES, recorder.commits / MESSAGES, published)
    assert counts[0] <= MAX_STATEMENTS, counts
    assert counts[1] <= MAX_COMMITS, counts
    assert counts[2] <= MAX_PUBLISHES, counts


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

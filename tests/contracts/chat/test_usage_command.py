"""The command `/usage` adds up what its own conversation has used."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from delivery.database.engine import Database
from gateway.accounts.usage_report import NONE_YET
from gateway.store.accounts import usage
from gateway.store.accounts.usage import Amount, UsageKind, UsageRow
from ingress_harness import open_ingress_harness

NOW = datetime(2030, 1, 1, tzinfo=UTC)


async def test_usage_of_a_conversation(database: Database) -> None:
    """Model and sandbox use of this conversation are added up; that of others and costs are not shown."""
    harness = await open_ingress_harness(database)
    await harness.send_message("hello")
    conversation = await harness.get_conversation()
    await harness.send_command("usage")
    assert harness.replies[-1] == NONE_YET
    row = UsageRow(
        id="one",
        account=harness.account,
        agent=conversation.agent,
        conversation=conversation.id,
        kind=UsageKind.MODEL,
        what="test",
        reason="turn",
        amount=Amount(requests=2, input_tokens=1200, output_tokens=30, micros=5_000_000),
        started_at=NOW,
        ended_at=NOW,
    )
    rows = [
        row,
        replace(row, id="two"),
        replace(row, id="three", kind=UsageKind.SANDBOX, amount=Amount(seconds=1)),
        replace(row, id="four", conversation="cnv_other"),
    ]
    async with database.begin() as connection:
        for one in rows:
            await usage.record(connection, one)
    await harness.send_command("usage")
    assert harness.replies[-1] == (
        "This conversation has used 4 requests to models with 2,400 input and 60 output tokens "
        "and 1 second of sandboxes."
    )

"""A delivery worker sends nothing once its lease on the destination is lost (G5)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from channels.message import Address
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.port import WorkQueue
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.workers.sink_config import SinkConfig
from delivery_worker import FAST_RETRIES, DeliveryWorkerHarness, open_empty_database

ROOM = Address(channel="chn_1", room="7")


class AttemptRecorder(Sink):
    """A receiver that accepts everything, and checks no lease itself, as webhooks do."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    async def send(self, delivery: Delivery) -> Outcome:
        """Record the attempt."""
        self.attempts.append(delivery.attempt)
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id="1")


@dataclass(kw_only=True)
class RepeatableWorkerHarness(DeliveryWorkerHarness):
    """A worker whose sends may be repeated, as those to webhooks may."""

    def _sink_config(self) -> SinkConfig:
        sink = self.wrap_sink(AttemptRecorder())
        return SinkConfig(
            queue=WorkQueue.DELIVER, sink=sink, schedule=FAST_RETRIES, ordered=False, repeatable=True
        )


async def test_nothing_is_sent_when_the_lease_is_lost_before_the_call(tmp_path: Path) -> None:
    """The attempt is recorded and the lease is lost: only the next holder's attempt reaches the receiver."""
    sink, leases, claims = AttemptRecorder(), MemoryLeases(), list[str]()

    def lose_lease(point: str) -> None:
        if point == "delivery.claim.after_commit":
            claims.append(point)
            if len(claims) == 1:
                leases.revoke(f"d:{ROOM.destination}")

    async with open_empty_database(tmp_path / "one.db") as database:
        harness = RepeatableWorkerHarness(
            database=database, bots={}, leases=leases, checkpoint=lose_lease, wrap_sink=lambda _sink: sink
        )
        async with harness.running():
            conversation = await harness.create_deliveries(ROOM, ["pigeon"])
            await harness.wait_for_states(conversation, "delivered")
    assert len(claims) == 2
    assert sink.attempts == [2]

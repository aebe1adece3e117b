"""G6: clients that come and go, and a broker that dies, never cost or double an event (scaled down)."""

from __future__ import annotations

from pathlib import Path

from bench.reconnects import ReconnectPlan, run_reconnects


async def test_no_event_is_lost_or_doubled_while_clients_and_broker_come_and_go(tmp_path: Path) -> None:
    """Every client gets every durable event once, in order, and no gap."""
    tally = await run_reconnects(
        tmp_path, ReconnectPlan(clients=20, reconnects=12, conversations=4, events=150, kills=2)
    )
    assert tally.reconnects == 240
    assert tally.frames >= 20 * 150
    assert (tally.missing, tally.doubled, tally.wrong) == (0, 0, 0)

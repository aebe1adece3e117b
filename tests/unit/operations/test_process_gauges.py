"""The gauges of a process show what is measured, and nothing that is not known yet."""

from __future__ import annotations

from pathlib import Path

from delivery.broker.stream_config import LogUsage
from delivery.database.engine import Database
from gateway.observability.gauges import ProcessGauges
from gateway.observability.metrics import Metrics


async def test_the_days_of_the_event_log_are_no_number_until_they_are_known(tmp_path: Path) -> None:
    """A gateway that was just started would otherwise raise the alarm of a log that holds no day."""
    usages = iter([LogUsage(fill=0.5), LogUsage(fill=0.9, days=2.5)])
    metrics, database = Metrics(), Database(f"sqlite+aiosqlite:///{tmp_path / 'gauges.db'}")
    gauges = ProcessGauges(
        metrics=metrics,
        database=database,
        directory=tmp_path,
        is_broker_up=lambda: True,
        event_log=lambda: next(usages),
        count_channels=dict,
    )
    await gauges.run_once()
    assert "dovecote_stream_days NaN" in metrics.render().decode()
    await gauges.run_once()
    assert "dovecote_stream_days 2.5" in metrics.render().decode()
    await database.close()

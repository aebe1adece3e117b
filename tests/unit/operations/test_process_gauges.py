"""The gauges of a process show what is measured, and nothing that is not known yet."""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Event

from delivery.broker.stream_config import LogUsage
from delivery.database.engine import Database
from gateway.observability.gauges import DiskGauges, ProcessGauges
from gateway.observability.metrics import Metrics


async def test_the_days_of_the_event_log_are_no_number_until_they_are_known(tmp_path: Path) -> None:
    """A gateway that was just started would otherwise raise the alarm of a log that holds no day."""
    usages = iter([LogUsage(fill=0.5), LogUsage(fill=0.9, days=2.5)])
    metrics, database = Metrics(), Database(f"sqlite+aiosqlite:///{tmp_path / 'gauges.db'}")
    gauges = ProcessGauges(
        metrics=metrics,
        database=database,
        is_broker_up=lambda: True,
        event_log=lambda: next(usages),
        count_channels=dict,
    )
    await gauges.run_once()
    assert "dovecote_stream_days NaN" in metrics.render().decode()
    await gauges.run_once()
    assert "dovecote_stream_days 2.5" in metrics.render().decode()
    await database.close()


async def test_each_disk_has_its_free_bytes(tmp_path: Path) -> None:
    """A directory on a disk of its own has its own value; one that fails has none, and not an old one."""
    free = {"data": [3000, 2000], "nats": [10**12]}

    def read_free(directory: Path) -> int:
        if not free[directory.name]:
            raise OSError(errno.EIO, "input/output error")
        return free[directory.name].pop()

    metrics = Metrics()
    gauges = DiskGauges(
        metrics, lambda: {name: tmp_path / name for name in ("data", "nats")}, read_free=read_free
    )
    await gauges.run_once()
    assert 'dovecote_disk_free_bytes{disk="data"} 2000.0' in metrics.render().decode()
    assert 'dovecote_disk_free_bytes{disk="nats"} 1e+12' in metrics.render().decode()
    await gauges.run_once()
    assert 'dovecote_disk_free_bytes{disk="data"} 3000.0' in metrics.render().decode()
    assert 'dovecote_disk_free_bytes{disk="nats"} NaN' in metrics.render().decode()


async def test_a_mount_that_hangs_has_no_value_until_it_returns(tmp_path: Path) -> None:
    """The measurement goes on in its thread, and no second one begins."""
    returned, calls = Event(), []

    def read_free(directory: Path) -> int:
        calls.append(directory)
        assert len(calls) == 1 or returned.wait(30)
        return 1000 * len(calls)

    metrics = Metrics()
    gauges = DiskGauges(metrics, lambda: {"data": tmp_path}, read_free=read_free, answer_seconds=0.05)
    await gauges.run_once()
    assert 'dovecote_disk_free_bytes{disk="data"} 1000.0' in metrics.render().decode()
    await gauges.run_once()
    await gauges.run_once()
    assert 'dovecote_disk_free_bytes{disk="data"} NaN' in metrics.render().decode()
    returned.set()
    while "NaN" in metrics.render().decode():
        await gauges.run_once()
    assert 'dovecote_disk_free_bytes{disk="data"} 2000.0' in metrics.render().decode()

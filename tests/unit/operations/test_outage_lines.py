"""What the log has of an outage that all work waits for."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from delivery.background import log_errors
from delivery.database.engine import DatabaseUnavailable, TransactionConflict
from delivery.errors import AppendConflict, BrokerFull, BrokerUnreachable
from gateway.observability.log_repeats import INTERVAL_SECONDS, RepeatFilter
from gateway.observability.log_setup import set_up_logging


class CountedLines(logging.Handler):
    """Counts the lines that the filter lets through."""

    def __init__(self, now: list[float]) -> None:
        super().__init__()
        self.addFilter(RepeatFilter(lambda: now[0]))
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a line."""
        self.count += 1


@pytest.fixture(autouse=True)
def _restored_log() -> Iterator[None]:
    """Give the next test the log that it had."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers = before
    root.setLevel(level)


@pytest.mark.parametrize("error", [BrokerUnreachable("away"), BrokerFull(), DatabaseUnavailable("away")])
def test_an_outage_is_not_a_line_for_each_conversation(error: Exception) -> None:
    """Five minutes with 60 conversations and ten tasks that are tried every two seconds are five lines."""
    assert lines_of(error, [0.0]) == 5


@pytest.mark.parametrize("error", [AppendConflict(), TransactionConflict("locked")])
def test_an_error_of_one_conversation_names_it(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """Only what fails all work alike is logged without ids."""
    set_up_logging(level="warning")
    logging.getLogger().addHandler(caplog.handler)
    with log_errors("relay", conversation="cnv_1"):
        raise error
    (record,) = caplog.records
    assert isinstance(record.msg, dict)
    assert record.msg["conversation"] == "cnv_1"


def test_another_reason_is_another_line() -> None:
    """A server that refuses connections, and then starts up, is not one outage for the reader of the log."""
    now = [0.0]
    set_up_logging(level="warning")
    counted = CountedLines(now)
    logging.getLogger().handlers = [counted]
    for reason in ("refused", "starting up", "refused"):
        with log_errors("relay"):
            raise DatabaseUnavailable(reason)
    assert counted.count == 2


def lines_of(error: Exception, now: list[float]) -> int:
    """Return how many lines five minutes of it are."""
    set_up_logging(level="warning")
    counted = CountedLines(now)
    logging.getLogger().handlers = [counted]
    while now[0] < 30 * INTERVAL_SECONDS:
        for number in range(60):
            with log_errors(f"task {number % 10}", conversation=f"cnv_{number}"):
                raise error
        now[0] += 2
    return counted.count

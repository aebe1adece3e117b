"""Moments in SQLite: one text for one moment, as SQLAlchemy's own type writes and reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import DateTime
from sqlalchemy.dialects import sqlite

from delivery.database.tables import UtcDateTime

DIALECT = sqlite.dialect()
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=ZONES).filter(lambda moment: 1 < moment.year < 9999))
def test_a_moment_is_stored_as_sqlalchemy_stores_it(moment: datetime) -> None:
    """In UTC, with microseconds, whatever its zone; comparisons of texts are those of moments."""
    ours = UtcDateTime().dialect_impl(DIALECT)
    theirs = DateTime(timezone=True).dialect_impl(DIALECT)
    store, usual, load = (
        ours.bind_processor(DIALECT),
        theirs.bind_processor(DIALECT),
        ours.result_processor(DIALECT, None),
    )
    assert store is not None
    assert usual is not None
    assert load is not None
    assert store(moment) == usual(moment.astimezone(UTC))
    assert load(store(moment)) == moment

"""Allowances as rows: the same on SQLite and PostgreSQL, whoever draws on them at once."""

from __future__ import annotations

import asyncio

from delivery.chat.rate_limit import STRICT_SECONDS, Bucket, Use, strict
from delivery.chat.rate_limit_store import StoredAllowances
from delivery.chat.shared_rate_limit import Wish
from delivery.database.engine import Database


def ten_an_hour(now: float) -> Bucket:
    """Return a bucket that hardly refills: four at once."""
    return strict(10, 3600, now=now, reserve=0.25)


async def test_those_who_draw_at_once_share_what_there_is(database: Database) -> None:
    """Twenty draws at the same moment get four tokens in all, and the rest is told how long to wait."""
    one, other = StoredAllowances(database), StoredAllowances(database)
    wish = Wish(use=Use.FINAL, want=1)
    grants = await asyncio.gather(*((one, other)[n % 2].draw("bot", wish, ten_an_hour) for n in range(20)))
    assert sum(grant.tokens for grant in grants) == 4
    assert all(grant.tokens or 0 < grant.wait <= 3600 for grant in grants)


async def test_what_was_spent_without_asking_counts(database: Database) -> None:
    """Final texts that were told of afterwards leave nothing for drafts."""
    allowances = StoredAllowances(database)
    await allowances.draw("bot", Wish(use=Use.FINAL, spent=3), ten_an_hour)
    edit = await allowances.draw("bot", Wish(use=Use.EDIT, want=1), ten_an_hour)
    final = await allowances.draw("bot", Wish(use=Use.FINAL, want=5), ten_an_hour)
    assert (edit.tokens, final.tokens) == (0, 1)


async def test_a_refusal_is_known_to_everybody(database: Database) -> None:
    """One replica's 429 makes the others strict, for the time it is remembered; another bot is left alone."""
    one, other = StoredAllowances(database), StoredAllowances(database)
    await one.draw("bot", Wish(use=Use.FINAL, refused=True), ten_an_hour)
    told = await other.draw("bot", Wish(use=Use.FINAL, spent=1), ten_an_hour)
    assert STRICT_SECONDS - 60 < told.strict <= STRICT_SECONDS
    assert (await other.draw("another", Wish(use=Use.FINAL, spent=1), ten_an_hour)).strict == 0

"""Token buckets as rows: the same on SQLite and PostgreSQL, with concurrent requests."""

from __future__ import annotations

import asyncio

from delivery.chat.rate_limit import STRICT_SECONDS, SendPriority, TokenBucket, strict_bucket
from delivery.chat.rate_limit_store import SqlTokenBuckets
from delivery.chat.shared_rate_limit import TokenRequest
from delivery.database.engine import Database


def slow_bucket(now: float) -> TokenBucket:
    """Return a bucket that hardly refills: four at once."""
    return strict_bucket(10, 3600, now=now, reserve=0.25)


async def test_those_who_draw_at_once_share_what_there_is(database: Database) -> None:
    """Twenty concurrent requests get four tokens in all, and the rest get the wait."""
    one, other = SqlTokenBuckets(database), SqlTokenBuckets(database)
    wish = TokenRequest(priority=SendPriority.FINAL, wanted=1)
    grants = await asyncio.gather(*((one, other)[n % 2].acquire("bot", wish, slow_bucket) for n in range(20)))
    assert sum(grant.tokens for grant in grants) == 4
    assert all(grant.tokens or 0 < grant.wait <= 3600 for grant in grants)


async def test_what_was_spent_without_asking_counts(database: Database) -> None:
    """Final texts that were counted afterwards leave nothing for drafts."""
    allowances = SqlTokenBuckets(database)
    await allowances.acquire("bot", TokenRequest(priority=SendPriority.FINAL, spent=3), slow_bucket)
    edit = await allowances.acquire("bot", TokenRequest(priority=SendPriority.EDIT, wanted=1), slow_bucket)
    final = await allowances.acquire("bot", TokenRequest(priority=SendPriority.FINAL, wanted=5), slow_bucket)
    assert (edit.tokens, final.tokens) == (0, 1)


async def test_a_refusal_is_known_to_everybody(database: Database) -> None:
    """One replica's 429 makes the others strict, for the time it is remembered; another bot is left alone."""
    one, other = SqlTokenBuckets(database), SqlTokenBuckets(database)
    await one.acquire("bot", TokenRequest(priority=SendPriority.FINAL, rate_limited=True), slow_bucket)
    reported = await other.acquire("bot", TokenRequest(priority=SendPriority.FINAL, spent=1), slow_bucket)
    assert STRICT_SECONDS - 60 < reported.strict_seconds <= STRICT_SECONDS
    assert (
        await other.acquire("another", TokenRequest(priority=SendPriority.FINAL, spent=1), slow_bucket)
    ).strict_seconds == 0

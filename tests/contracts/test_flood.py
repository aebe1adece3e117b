"""What a flood costs: what is turned away is hardly written, said once a minute, and does not come back."""

from __future__ import annotations

from sqlalchemy import func, select

from delivery.database import Database
from delivery.tables import outbox
from gateway.store.tables import inbox
from reception_stage import BOB, open_stage


async def test_what_is_turned_away_costs_next_to_nothing(database: Database) -> None:
    """A thousand messages to a full line are a few transactions and one notice; all keys are remembered."""
    now = [0.0]
    commits: list[str] = []
    stage = await open_stage(database, clock=lambda: now[0], limit=3, checkpoint=commits.append)
    for number in range(1000):
        await stage.say("more", key=f"flood{number}", desk={"messages_per_minute": 0})
    assert len(await stage.line()) == 3
    assert len([name for name in commits if name.endswith("before_commit")]) <= 3 + 1 + 1000 // 200
    (notice,) = await stage.owed()
    assert "3 messages are waiting" in notice
    now[0] += 1
    await stage.say("once more", by=BOB)
    assert len(await stage.owed()) == 1, "once a minute is enough"
    async with database.read() as connection:
        keys = (await connection.execute(select(func.count()).select_from(inbox))).scalar_one()
        told = (await connection.execute(select(func.count()).select_from(outbox))).scalar_one()
    assert keys == 1001
    assert told == 3 * 2 + 1, "two events of each message taken, and the notice"


async def test_a_line_is_looked_at_again_after_an_order(database: Database) -> None:
    """What is said right after `/stop` is judged by what waits then; what was refused stays it."""
    stage = await open_stage(database, clock=lambda: 0.0, limit=1)
    for text in ("first", "second", "third"):
        await stage.say(text, key=text)
    await stage.command("new")
    await stage.say("third", key="third")
    await stage.say("fourth")
    assert [turn.input for turn in await stage.line()] == ["fourth"]

"""Background tasks survive errors: an outage of the database ends one pass, never the process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from draft_harness import STREAMS, open_draft_harness


@pytest.mark.parametrize("features", [STREAMS, None])
async def test_a_database_outage_while_a_draft_shows_ends_no_task(
    tmp_path: Path, features: frozenset[object] | None
) -> None:
    """The draft's last write fails, and the next turn still gets its drafts."""
    async with open_draft_harness(tmp_path) as harness:
        if features:
            harness.features = STREAMS
        async with harness.drafts() as drafts:
            async with drafts.publish_while("cnv_1", "trn_1") as on_text:
                assert on_text is not None
                on_text.show_text("msg_1", "Hel")
                await harness.channel.until(lambda: len(harness.visible_texts) == 1)
                async with harness.database.begin() as connection:
                    await connection.exec_driver_sql("ALTER TABLE drafts RENAME TO drafts_away")
            if showing := {task for task in asyncio.all_tasks() if "_update_chat" in str(task.get_coro())}:
                await asyncio.wait(showing)
            async with harness.database.begin() as connection:
                await connection.exec_driver_sql("ALTER TABLE drafts_away RENAME TO drafts")
            async with drafts.publish_while("cnv_1", "trn_2") as on_text:
                assert on_text is not None
                on_text.show_text("msg_2", "Wor")
                await harness.channel.until(lambda: len(harness.visible_texts) == 2)

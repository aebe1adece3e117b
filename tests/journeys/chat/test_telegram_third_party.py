"""The same story at a Telegram that others wrote, from their own reading of the Bot API."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway_process import channel_env, gateway
from third_party_telegram import SKIP_REASON, third_party_telegram

pytestmark = pytest.mark.skipif(find_spec("tg_auto_test") is None, reason=SKIP_REASON)


async def test_a_question_a_job_and_its_result_at_a_foreign_telegram(tmp_path: Path) -> None:
    """What is asked is answered there, the job's result comes by itself, and the menu is set."""
    async with third_party_telegram() as telegram:
        env = channel_env("telegram", telegram.settings())
        async with gateway(tmp_path / "data", env=env):
            await telegram.say(4711, "!echo **hello**")
            await telegram.until(lambda: any("hello" in text for text in telegram.visible_texts()))
            await telegram.say(4711, "!&sleep 1; echo pigeon")
            await telegram.until(lambda: any("pigeon" in text for text in telegram.visible_texts()[2:]))
            await telegram.say(4711, "/help")
            await telegram.until(lambda: any("/new" in text for text in telegram.visible_texts()))
    assert "stop" in telegram.command_menu()

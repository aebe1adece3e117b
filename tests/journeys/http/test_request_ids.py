"""The id of a response leads to the log lines about its request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from openai_gateway import openai_gateway
from openai_server import echo


async def test_the_log_has_the_ids_that_clients_show(tmp_path: Path) -> None:
    """OpenAI's client shows them of answers and errors; refused requests and turns are logged with them."""
    async with openai_gateway(tmp_path / "data", echo) as running:
        create: Any = running.client.chat.completions.create
        said = [{"role": "user", "content": "hello"}]
        answer = await create(model="default", messages=said)
        with pytest.raises(openai.NotFoundError) as unknown:
            await create(model="nobody", messages=said)
        with pytest.raises(openai.AuthenticationError) as denied:
            await running.client.with_options(api_key="dvk_wrong").models.list()
        async with running.process.http() as session, session.get("/status/trn_none") as missing:
            native = missing.headers["X-Request-Id"]
    asked, refused = str(answer._request_id), str(unknown.value.request_id)
    assert len({asked, refused, denied.value.request_id, native}) == 4
    lines = {one: [line for line in running.process.log if one in line] for one in (asked, refused, native)}
    (about_turn,) = lines[asked]
    assert "turn.requested" in about_turn
    assert answer.id.removeprefix("chatcmpl-") in about_turn
    (about_refusal,) = lines[refused]
    for word in ("request.refused", "/v1/chat/completions", "404"):
        assert word in about_refusal
    assert "/status/{id}" in lines[native][0]

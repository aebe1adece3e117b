"""Calls of tools and their results, as an agent framework keeps them in a conversation of OpenAI's client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from gateway_process import gateway
from openai_server import OpenAIServer, echo, spoken

CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"place": "Oslo"}'}
CUSTOM = {"type": "custom_tool_call", "call_id": "call_2", "name": "query", "input": "select 1"}
PARTS = [
    {"type": "input_text", "text": "sunny"},
    {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
]
THOUGHT = [{"type": "summary_text", "text": "I thought of rain."}]
GIVEN: list[Any] = [
    {"role": "user", "content": "weather?"},
    CALL,
    {"type": "function_call_output", "call_id": "call_1", "output": PARTS},
    CUSTOM,
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": ""},
]


async def test_calls_and_results_are_read_as_they_were_added(tmp_path: Path) -> None:
    """They keep type, call and content, the model gets them as such, and one without a call is refused.

    Reasoning and items of other types are kept too, and the agent gets nothing of them.
    """
    async with OpenAIServer(echo) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with (
            gateway(tmp_path / "data", env=env) as process,
            AsyncOpenAI(base_url=f"{process.url}/v1", api_key=process.key) as client,
        ):
            made = await client.conversations.create(items=GIVEN[:2])
            await client.conversations.items.create(made.id, items=GIVEN[2:])
            listed = [item async for item in client.conversations.items.list(made.id, order="asc")]
            shown: list[Any] = [item.model_dump(exclude_unset=True) for item in listed]
            assert [one["type"] for one in shown] == ["message", *(one["type"] for one in GIVEN[1:])]
            assert shown[1].items() >= CALL.items()
            assert shown[3].items() >= CUSTOM.items()
            texts = [part["text"] for part in shown[2]["output"]]
            assert (shown[2]["call_id"], texts) == ("call_1", ["sunny", "(an image)"])
            assert (shown[4]["call_id"], shown[4]["output"]) == ("call_2", "")
            await client.conversations.items.delete(shown[4]["id"], conversation_id=made.id)
            await client.responses.create(model="default", input="well?", conversation=made.id)
            assert spoken(model.bodies[-1]) == [
                ("user", "weather?"),
                ("assistant", [CALL["arguments"]]),
                ("tool", "sunny\n(an image)"),
                ("assistant", ['{"input": "select 1"}']),
                ("tool", "The tool call was interrupted before it returned a result."),
                ("user", "well?"),
            ]
            reasoning: Any = {"type": "reasoning", "id": "rs_1", "summary": THOUGHT, "encrypted_content": "x"}
            added = await client.conversations.items.create(made.id, items=[reasoning, GIVEN[0]])
            assert [one.type for one in added.data] == ["reasoning", "message"]
            kept: Any = await client.conversations.items.retrieve(
                str(added.data[0].id), conversation_id=made.id
            )
            assert [one.model_dump() for one in kept.summary] == THOUGHT
            await client.responses.create(model="default", input="and?", conversation=made.id)
            assert "thought of rain" not in str(model.bodies[-1]["messages"])
            await client.conversations.items.delete(kept.id, conversation_id=made.id)
            search: Any = {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "failed",
                "action": {"type": "search", "query": "rain", "sources": None},
                "results": ["x" * 40_000],
            }
            added = await client.conversations.items.create(made.id, items=[search, GIVEN[0]])
            as_kept: Any = {**search, "id": added.data[0].id, "results": ["(left out: 40000 characters)"]}
            assert added.data[0].model_dump(exclude_unset=True) == as_kept
            newest = await client.conversations.items.list(made.id, limit=2)
            assert newest.data[1].model_dump(exclude_unset=True) == as_kept
            untyped: Any = {"type": 5}
            with pytest.raises(openai.UnprocessableEntityError, match="/items/0/type"):
                await client.conversations.items.create(made.id, items=[untyped])
            nameless: Any = {"type": "function_call", "name": "weather", "arguments": "{}"}
            with pytest.raises(openai.UnprocessableEntityError, match="/items/0/call_id"):
                await client.conversations.items.create(made.id, items=[nameless])

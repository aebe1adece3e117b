"""What is used through pydantic-ai: it reads stored messages, and its client holds keys to their origins."""

from __future__ import annotations

import pytest
from httpx2 import ConnectError
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessagesTypeAdapter

from gateway.agents.clients.pydantic_ai_client import open_http_client
from gateway.agents.model import Vendors
from gateway.agents.model.state import AgentState
from model_messages import conversation_of, exchanges


@given(st.lists(exchanges, max_size=4))
def test_pydantic_ai_reads_what_is_stored(exchanges: list[tuple[str, str, dict[str, object]]]) -> None:
    """The stored messages are in its form, for the vendors that are used through it."""
    entry = AgentState(messages=conversation_of(exchanges)).to_entry()
    found = ModelMessagesTypeAdapter.validate_python(list(entry.messages))
    assert [message.kind for message in found] == ["request", "response"] * (2 * len(exchanges))


async def test_a_key_leaves_for_its_vendors_origins_only() -> None:
    """The client refuses a request that carries a key elsewhere."""
    vendors = Vendors(openai_api_key="sk-o", anthropic_api_key="sk-a")
    async with open_http_client(vendors.bound_keys()) as client:
        for url, headers in (
            ("http://127.0.0.1:9/v1", {"Authorization": "Bearer sk-o"}),
            ("https://api.openai.com:8443/v1", {"Authorization": "Bearer sk-o"}),
            ("http://api.openai.com/v1", {"Authorization": "Bearer sk-o"}),
            ("https://api.openai.com/v1", {"x-api-key": "sk-a"}),
        ):
            with pytest.raises(ConnectError, match="not an address to which this key may be sent"):
                await client.get(url, headers=headers)

"""OpenAI's client gets the reason why an answer does not come, before its own time ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from openai_gateway import OpenAIGateway, openai_gateway
from openai_server import echo

IMPATIENT = {"x-stainless-read-timeout": "0.5"}
"""What the SDK sends with a timeout of half a second; the one of the connection is longer in these tests."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def waiting_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIGateway]:
    """Run a gateway whose model calls tools, and a client that repeats nothing by itself."""
    data = tmp_path_factory.mktemp("openai") / "data"
    async with openai_gateway(data, echo, max_retries=0) as running:
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("form", ["completions", "responses"])
async def test_an_answer_that_waits_for_a_person_names_the_approval(
    waiting_gateway: OpenAIGateway, form: str
) -> None:
    """The error has its id, command and address; after the decision the same request gets the answer."""
    client, said = waiting_gateway.client, f"run: echo {form}"
    chat: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": said}]}
    key = {"Idempotency-Key": form}

    async def ask(headers: dict[str, str]) -> str:
        if form == "responses":
            made = await client.responses.create(model="default", input=said, extra_headers=headers)
            return made.output_text
        answer = await client.chat.completions.create(**chat, extra_headers=headers)
        return str(answer.choices[0].message.content)

    async with asyncio.timeout(60):
        while True:
            with pytest.raises(openai.APIStatusError) as late:
                await ask(key | IMPATIENT)
            assert late.value.status_code == 504
            if late.value.code == "approval_pending":
                break
    problem = late.value.response.json()
    (approval,) = problem["approvals"]
    assert f"echo {form}" in approval["question"]
    assert f"POST {approval['url']} " in problem["detail"]
    assert f"/status/{problem['turnId']}" in str(late.value)
    decision = {"decision": "approve"}
    async with waiting_gateway.process.http() as http, http.post(approval["url"], json=decision) as decided:
        assert decided.status == 200
    assert form in await ask(key)

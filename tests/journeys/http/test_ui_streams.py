"""The AI SDK's chat transport: answers as UI message streams, which are resumed after a lost connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, echo, spoken

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True, kw_only=True)
class UiGateway:
    """A gateway whose default agent is a shell."""

    process: GatewayProcess
    session: aiohttp.ClientSession

    async def chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a stream up to its end."""
        assert response.status == 200, await response.text()
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        async for line in response.content:
            data = line.removeprefix(b"data: ").strip()
            if line.startswith(b"data: ") and data != b"[DONE]":
                yield json.loads(data)

    async def ask(self, chat: str, text: str, message: str = "m1", **headers: str) -> list[dict[str, Any]]:
        """Send a message and return the chunks of its answer."""
        body = request(chat, text, message)
        async with self.session.post("/agents/default/ui", json=body, headers=headers) as response:
            return [chunk async for chunk in self.chunks(response)]


def request(chat: str, text: str, message: str = "m1") -> dict[str, Any]:
    """Return a body as the transport sends it."""
    parts = [{"type": "text", "text": text}]
    said = {"id": message, "role": "user", "parts": parts, "metadata": None}
    return {"id": chat, "messages": [said], "trigger": "submit-message", "messageId": None}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ui(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[UiGateway]:
    """Run the gateway."""
    async with gateway(tmp_path_factory.mktemp("ui") / "data") as process, process.http() as session:
        yield UiGateway(process=process, session=session)


async def test_an_answer_is_a_stream_of_chunks(ui: UiGateway) -> None:
    """The message starts and finishes, its text has a start and an end, and tools have input and output."""
    chunks = await ui.ask("chat-1", "!echo hello")
    kinds = [chunk["type"] for chunk in chunks]
    assert kinds[:2] == ["start", "start-step"]
    assert kinds[-2:] == ["finish-step", "finish"]
    called = next(chunk for chunk in chunks if chunk["type"] == "tool-input-available")
    returned = next(chunk for chunk in chunks if chunk["type"] == "tool-output-available")
    assert (called["toolName"], called["input"]["command"]) == ("bash", "echo hello")
    assert returned["toolCallId"] == called["toolCallId"]
    assert "hello" in returned["output"]
    text = [chunk for chunk in chunks if chunk["type"].startswith("text-")]
    assert (text[0]["type"], text[-1]["type"]) == ("text-start", "text-end")
    assert "hello" in "".join(chunk.get("delta", "") for chunk in text)
    turn = chunks[0]["messageMetadata"]["turnId"]
    async with ui.session.get(f"/status/{turn}") as shown:
        assert (await shown.json())["state"] == "completed"


async def test_a_message_that_is_sent_again_is_the_same_turn(ui: UiGateway) -> None:
    """By the message's id, or by an Idempotency-Key; another message is another turn."""
    first = await ui.ask("chat-2", "!echo once", "same")
    again = await ui.ask("chat-2", "!echo once", "same")
    assert first[0] == again[0]
    other = await ui.ask("chat-2", "!echo once", "other")
    assert other[0]["messageId"] != first[0]["messageId"]
    keyed = [await ui.ask("chat-2", "!echo key", "third", **{"Idempotency-Key": "ui-1"}) for _ in range(2)]
    assert keyed[0][0] == keyed[1][0]


async def test_a_lost_stream_is_resumed_through_kill_9(tmp_path: Path) -> None:
    """While the turn waits for an approval, its stream can be read from the start; afterwards it is 204.

    The earlier messages of a chat that is new to the gateway are the agent's history.
    """
    path = "/agents/default/ui/chat-3/stream"
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(OpenAIServer(echo))
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        process = await stack.enter_async_context(gateway(tmp_path / "data", env=env))
        ui = UiGateway(process=process, session=await stack.enter_async_context(process.http()))
        async with ui.session.get(path) as nothing:
            assert nothing.status == 204
        body = request("chat-3", "run: echo resumed")
        earlier = [("user", "hi"), ("assistant", "hello")]
        shown = [{"role": role, "parts": [{"type": "text", "text": text}]} for role, text in earlier]
        body["messages"] = [*shown, *body["messages"]]
        async with asyncio.timeout(60), ui.session.post("/agents/default/ui", json=body) as response:
            begun = ui.chunks(response)
            opening, asked = await anext(begun), await _approval(begun)
        await process.kill()
        await process.start()
        async with asyncio.timeout(60), ui.session.get(path) as response:
            resumed = ui.chunks(response)
            assert await anext(resumed) == opening
            assert await _approval(resumed) == asked
            async with ui.session.post(f"/approvals/{asked['id']}", json={"decision": "approve"}) as approved:
                assert approved.status == 200
            rest = [chunk async for chunk in resumed]
        assert rest[-1]["type"] == "finish"
        (returned,) = [chunk["output"] for chunk in rest if chunk["type"] == "tool-output-available"]
        assert "resumed" in returned
        assert spoken(model.bodies[-1])[:3] == [*earlier, ("user", "run: echo resumed")]
        async with ui.session.get(path) as ended:
            assert ended.status == 204
        async with ui.session.get("/agents/unknown/ui/chat-3/stream") as unknown:
            assert unknown.status == 404


async def _approval(chunks: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    """Return the next request for an approval."""
    async for chunk in chunks:
        if chunk["type"] == "data-approval":
            return chunk
    raise AssertionError("the stream ended without a request for an approval")


async def test_jobs_are_data_and_failures_are_errors(ui: UiGateway) -> None:
    """A background job is a data part; an unknown agent and an empty message are refused."""
    chunks = await ui.ask("chat-4", "!&sleep 1; echo done")
    (job,) = [chunk["data"] for chunk in chunks if chunk["type"] == "data-job"][:1]
    assert job["resultId"]
    assert job["state"] in {"running", "completed"}
    async with ui.session.post("/agents/unknown/ui", json=request("chat-5", "x")) as refused:
        assert refused.status == 404
    async with ui.session.post("/agents/default/ui", json=request("chat-5", "")) as refused:
        assert refused.status == 422

"""Answers as the servers of other makers give them: not streamed, cut, refused, or with odd numbers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from agent_tools import RecordingTools, agent_spec, collect_steps, turn_input
from gateway.agents.history import encode_entry
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.model.agent import ModelAgent
from gateway.agents.port import CUT_NOTICES, AgentSpec
from model_rig import completed_messages, failure_of, finished_step, history_of

DONE = "data: [DONE]\n\n"
STREAM = "text/event-stream"


def chunk(delta: dict[str, Any], finish: str | None = None, **others: Any) -> str:
    """Return an event with one chunk."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice], **others})}\n\n"


def whole(content: str) -> str:
    """Return a completion that is not streamed."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return json.dumps({"object": "chat.completion", "choices": [choice]})


@asynccontextmanager
async def answering(
    body: str, *, kind: str = STREAM, status: int = 200
) -> AsyncIterator[tuple[ModelAgent, AgentSpec]]:
    """Run a server that gives one answer to every request, and an agent that uses it."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=body, content_type=kind, status=status)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_post("/v1/messages", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        vendors = Vendors(
            trusted_base_urls=(url,),
            anthropic_base_url=url.removesuffix("/v1"),
            anthropic_api_key="a-key",
            retries=0,
        )
        async with open_model_agent(vendors) as agent:
            yield agent, agent_spec(url)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "kind", "output"),
    [
        (whole("not streamed"), "application/json", "not streamed"),
        (chunk({"content": "streamed"}, "stop") + DONE, "application/json", "streamed"),
        (chunk({"refusal": "I cannot help."}) + chunk({}, "stop") + DONE, STREAM, "I cannot help."),
        (chunk({"content": "ended by its end"}) + DONE, STREAM, "ended by its end"),
        (chunk({"content": "ended by its reason"}, "stop"), STREAM, "ended by its reason"),
        (
            chunk({"content": "odd"}, "stop", usage={"prompt_tokens": "three", "completion_tokens": -5})
            + DONE,
            STREAM,
            "odd",
        ),
        (
            chunk({"content": "details"}, "stop", usage={"prompt_tokens": 3, "prompt_tokens_details": []})
            + DONE,
            STREAM,
            "details",
        ),
        (chunk({"content": "numbers"}, "stop", usage=7) + DONE, STREAM, "numbers"),
    ],
)
async def test_an_unusual_answer_is_read(body: str, kind: str, output: str) -> None:
    """Its text is the answer, and its usage never counts below zero."""
    async with answering(body, kind=kind) as (agent, spec):
        end = finished_step(await collect_steps(agent, turn_input(spec), RecordingTools()))
    assert end.output == output
    assert min(end.usage.input_tokens, end.usage.output_tokens) >= 0


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_ends_too_early_says_so(reason: str) -> None:
    """People read why, and the model's own history has its words alone."""
    async with answering(chunk({"content": "This is long and"}, reason) + DONE) as (agent, spec):
        steps = await collect_steps(agent, turn_input(spec), RecordingTools())
    shown = f"This is long and\n\n{CUT_NOTICES[reason]}"
    assert (completed_messages(steps), finished_step(steps).output) == ([shown], shown)
    assert CUT_NOTICES[reason].encode() not in b"".join(map(encode_entry, history_of(steps)))


@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (chunk({"content": "half an ans"}), STREAM, 200, "broke off"),
        ("", STREAM, 200, "ended before it began"),
        ("<html>sign in</html>", "text/html", 200, "answered with text/html"),
        ("[" * 100_000, "application/json", 200, "not JSON"),
        ("data: " + "[" * 100_000 + "\n\n", STREAM, 200, "not JSON"),
        ('data: {"error": {"message": "out of memory"}}\n\n', STREAM, 200, "HTTP 500: out of memory"),
        ('{"error": {"message": "out of memory"}}', "application/json", 200, "HTTP 500: out of memory"),
        ("<html>502 Bad Gateway</html>", "text/html", 502, "HTTP 502"),
    ],
)
async def test_an_answer_that_broke_off_is_no_answer(body: str, kind: str, status: int, words: str) -> None:
    """The turn is tried again later, and the error names what came."""
    async with answering(body, kind=kind, status=status) as (agent, spec):
        error = await failure_of(agent, turn_input(spec))
    assert words in str(error)
    assert "<html" not in str(error)
    assert error.retryable


async def test_a_call_without_a_name_is_no_answer() -> None:
    """Of an API's documented events, one lacks a field; the turn is tried again later."""
    start = {"type": "message_start", "message": {"id": "msg_1", "usage": {}}}
    call = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t"}}
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}
    body = "".join(f"data: {json.dumps(one)}\n\n" for one in (start, call, end, {"type": "message_stop"}))
    async with answering(body) as (agent, spec):
        error = await failure_of(
            agent, turn_input(replace(spec, models=("anthropic:claude",), base_url=None))
        )
    assert "its answer cannot be read" in str(error)
    assert error.retryable


@pytest.mark.parametrize(
    ("status", "message", "shown"),
    [
        (400, "Unsupported parameter: 'x'", "answered with HTTP 400: Unsupported parameter: 'x'"),
        (307, "Temporary Redirect", "set agent.base_url to the address it redirects to"),
        (429, "Rate limit reached in organization org-123", "answered with HTTP 429"),
    ],
)
async def test_the_vendors_words_are_shown_where_they_help(status: int, message: str, shown: str) -> None:
    """A request that it does not accept is explained; a rate limit names the operator's organisation."""
    body = json.dumps({"error": {"message": message}})
    async with answering(body, kind="application/json", status=status) as (agent, spec):
        error = await failure_of(agent, turn_input(spec))
    assert str(error).endswith(shown)

"""One turn has several completions or responses if it calls a client's tools: each reports its own part."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from openai_gateway import OpenAIGateway, openai_gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall

PARAMETERS: Any = {"type": "object", "properties": {}}
FUNCTIONS = [{"name": name, "parameters": PARAMETERS} for name in ("step", "other")]
CHAT_TOOLS: Any = [{"type": "function", "function": one} for one in FUNCTIONS]
RESPONSE_TOOLS: Any = [{"type": "function", "strict": False, **one} for one in FUNCTIONS]
pytestmark = pytest.mark.asyncio(loop_scope="module")


def walker(body: dict[str, Any]) -> ScriptedTurn:
    """Take two steps, the first with 100 tokens and the second with 200, then answer with 300."""
    number = sum(message["role"] == "tool" for message in body["messages"])
    used = (100 * (number + 1), number + 1)
    if number < 2 and "walk" in str(body["messages"]):
        return ScriptedTurn(calls=[ToolCall(name="step", args={})], usage=used)
    return ScriptedTurn(text="arrived", usage=used)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIGateway]:
    """Run the gateway."""
    async with openai_gateway(tmp_path_factory.mktemp("parts") / "data", walker, max_retries=2) as running:
        yield running


@pytest.fixture
def model(parts_gateway: OpenAIGateway) -> OpenAIServer:
    """Return the model."""
    return parts_gateway.model


@pytest.fixture
def client(parts_gateway: OpenAIGateway) -> AsyncOpenAI:
    """Return OpenAI's client of the gateway."""
    return parts_gateway.client


async def complete(client: AsyncOpenAI, messages: list[Any], *, stream: bool) -> tuple[Any, Any]:
    """Return a completion's message and usage."""
    create: Any = partial(client.chat.completions.create, model="default", tools=CHAT_TOOLS)
    if not stream:
        done = await create(messages=messages)
        return done.choices[0].message.model_dump(exclude_none=True), done.usage
    streamed = await create(messages=messages, stream=True, stream_options={"include_usage": True})
    chunks = [one async for one in streamed]
    deltas = [choice.delta for one in chunks for choice in one.choices]
    calls = [call.model_dump() for delta in deltas for call in delta.tool_calls or ()]
    return {"role": "assistant", "content": None, "tool_calls": calls}, chunks[-1].usage


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_each_completion_reports_what_it_used(client: AsyncOpenAI, stream: bool) -> None:
    """The sum of all parts is what the turn used."""
    messages: list[Any] = [{"role": "user", "content": "walk"}]
    used = []
    for number in range(3):
        message, usage = await complete(client, messages, stream=stream)
        used.append((usage.prompt_tokens, usage.completion_tokens))
        if number < 2:
            call = message["tool_calls"][0]["id"]
            messages += [message, {"role": "tool", "tool_call_id": call, "content": "done"}]
    assert used == [(100, 1), (200, 2), (300, 3)]


async def respond(client: AsyncOpenAI, *, stream: bool, **request: Any) -> Any:
    """Return a response."""
    create: Any = partial(client.responses.create, model="default", tools=RESPONSE_TOOLS, **request)
    if not stream:
        return await create()
    events = [event async for event in await create(stream=True)]
    assert events[0].response.previous_response_id == request.get("previous_response_id")
    return events[-1].response


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_each_response_reports_its_part_of_the_turn(client: AsyncOpenAI, stream: bool) -> None:
    """It has its own usage, metadata, and the id of the response before it, also when it is read again."""
    parts = [await respond(client, stream=stream, input="walk", metadata={"part": "0"})]
    for number in (1, 2):
        result = {"type": "function_call_output", "call_id": parts[-1].output[-1].call_id, "output": "done"}
        previous, metadata = parts[-1].id, {"part": str(number)}
        parts.append(
            await respond(
                client, stream=stream, input=[result], previous_response_id=previous, metadata=metadata
            )
        )
    assert [one.usage.input_tokens for one in parts] == [100, 200, 300]
    assert [one.metadata for one in parts] == [{"part": "0"}, {"part": "1"}, {"part": "2"}]
    ids = [None, *(one.id for one in parts[:2])]
    assert [one.previous_response_id for one in parts] == ids
    again = [await client.responses.retrieve(one.id) for one in parts]
    assert [one.previous_response_id for one in again] == ids
    assert [one.usage.output_tokens for one in again if one.usage] == [1, 2, 3]
    assert [one.metadata for one in again] == [{"part": "0"}, {"part": "1"}, {"part": "2"}]


async def are_kept(client: AsyncOpenAI, responses: list[Any]) -> list[bool]:
    """Return which of some responses can be retrieved."""
    found = []
    for one in responses:
        try:
            found.append((await client.responses.retrieve(one.id)).id == one.id)
        except openai.NotFoundError:
            found.append(False)
    return found


async def test_each_response_of_a_turn_is_deleted_alone(client: AsyncOpenAI) -> None:
    """The others stay, and it stays deleted when the turn goes on; the last one takes the conversation."""
    parts = [await respond(client, stream=False, input="walk")]
    for _ in range(2):
        result = {"type": "function_call_output", "call_id": parts[-1].output[-1].call_id, "output": "done"}
        parts.append(await respond(client, stream=False, input=[result]))
        if len(parts) == 2:
            await client.responses.delete(parts[0].id)
            assert await are_kept(client, parts) == [False, True]
    assert await are_kept(client, parts) == [False, True, True]
    await client.responses.delete(parts[2].id)
    assert await are_kept(client, parts) == [False, True, False]
    place = parts[0].conversation.id
    assert (await client.conversations.retrieve(place)).id == place
    await client.responses.delete(parts[1].id)
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(place)


@pytest.mark.parametrize("form", ["completions", "responses"])
async def test_the_turn_goes_on_with_what_the_next_request_says(
    client: AsyncOpenAI, model: OpenAIServer, form: str
) -> None:
    """Its tools and instructions replace those before, as after a handoff; the old tool's result arrives."""
    asked, begin = {"role": "user", "content": "walk"}, len(model.bodies)
    if form == "completions":
        create: Any = partial(client.chat.completions.create, model="default")
        first = await create(messages=[{"role": "system", "content": "Be Ann."}, asked], tools=CHAT_TOOLS[:1])
        message = first.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"}
        said = [
            {"role": "system", "content": "Be Bob."},
            asked,
            message.model_dump(exclude_none=True),
            result,
        ]
        await create(messages=said, tools=CHAT_TOOLS[1:])
    else:
        create = partial(client.responses.create, model="default")
        first = await create(input=[asked], instructions="Be Ann.", tools=RESPONSE_TOOLS[:1])
        result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "done"}
        second = await create(input=[result], instructions="Be Bob.", tools=RESPONSE_TOOLS[1:])
        assert (second.instructions, [tool.name for tool in second.tools]) == ("Be Bob.", ["other"])
        again = [await client.responses.retrieve(one.id) for one in (first, second)]
        assert [(one.instructions, one.tools) for one in again] == [
            (one.instructions, one.tools) for one in (first, second)
        ]
    body = model.bodies[begin + 1]
    assert "Be Bob." in str(body["messages"][0])
    assert "Be Ann." not in str(body["messages"])
    names = {tool["function"]["name"] for tool in body["tools"]}
    assert "other" in names
    assert "step" not in names
    assert (body["messages"][-1]["role"], body["messages"][-1]["content"]) == ("tool", "done")


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("form", ["completions", "responses"])
async def test_a_choice_of_allowed_tools_leaves_out_the_others(
    client: AsyncOpenAI, model: OpenAIServer, form: str, mode: str
) -> None:
    """The model is offered those alone, and has to call one if the mode says so; the turn goes on freely."""
    begin = len(model.bodies)
    if form == "completions":
        named = {"type": "function", "function": {"name": "step"}}
        choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named]}}
        create: Any = partial(client.chat.completions.create, messages=[{"role": "user", "content": "walk"}])
        made = await create(model="default", tools=CHAT_TOOLS, tool_choice=choice)
        assert made.choices[0].message.tool_calls[0].function.name == "step"
    else:
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "step"}]}
        made = await client.responses.create(
            model="default", input="walk", tools=RESPONSE_TOOLS, tool_choice=choice
        )
        assert made.output[-1].type == "function_call"
    (body,) = model.bodies[begin:]
    names = {tool["function"]["name"] for tool in body["tools"]}
    assert "step" in names
    assert "other" not in names
    assert ("bash" in names) == (mode == "auto")
    assert body["tool_choice"] == mode


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "auto", "tools": []},
        {"mode": "sometimes", "tools": [{"type": "function", "name": "step"}]},
        {"mode": "auto", "tools": [{"type": "function", "name": "stop"}]},
        {"mode": "auto", "tools": [{"type": "mcp", "server_label": "step"}]},
    ],
    ids=["none", "mode", "unknown", "kind"],
)
async def test_a_wrong_choice_of_allowed_tools_is_refused(client: AsyncOpenAI, wrong: dict[str, Any]) -> None:
    """The error names the field."""
    create: Any = client.responses.create
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await create(
            model="default", input="x", tools=RESPONSE_TOOLS, tool_choice={"type": "allowed_tools", **wrong}
        )
    assert refused.value.param == "tool_choice"


async def test_a_file_is_uploaded_with_an_expiry(client: AsyncOpenAI) -> None:
    """The answer and the list have the time; other anchors and numbers of seconds are a 422."""
    files, upload = client.files, ("old.txt", b"auks")
    key = {"Idempotency-Key": "expiring"}
    after: Any = {"anchor": "created_at", "seconds": 3600}
    made = await files.create(file=upload, purpose="user_data", expires_after=after, extra_headers=key)
    assert made.expires_at == made.created_at + 3600
    assert [one.expires_at async for one in files.list() if one.filename == "old.txt"] == [made.expires_at]
    assert (await files.retrieve(made.id)).expires_at == made.expires_at
    for wrong, field in (
        ({"anchor": "created_at", "seconds": 3599}, "seconds"),
        ({"anchor": "created_at", "seconds": 2_592_001}, "seconds"),
        ({"anchor": "last_active_at", "seconds": 3600}, "anchor"),
        ({"anchor": "created_at"}, "seconds"),
    ):
        given: Any = wrong
        with pytest.raises(openai.UnprocessableEntityError, match=f"/expires_after/{field}"):
            await files.create(file=upload, purpose="user_data", expires_after=given)
    later: Any = {"anchor": "created_at", "seconds": 7200}
    with pytest.raises(openai.UnprocessableEntityError):
        await files.create(file=upload, purpose="user_data", expires_after=later, extra_headers=key)


async def test_uploads_are_listed_by_their_purpose(client: AsyncOpenAI) -> None:
    """The purpose is what the client gave, and selects in the list; one that is too long is a 422."""
    files = client.files
    made = await files.create(file=("lines.jsonl", b"{}"), purpose="batch")
    plain = await files.create(file=("note.txt", b"auks"), purpose="user_data")
    assert (await files.retrieve(made.id)).purpose == "batch"
    assert [one.id async for one in files.list(purpose="batch", limit=1)] == [made.id]
    assert plain.id in [one.id async for one in files.list(purpose="user_data")]
    long: Any = "b" * 65
    with pytest.raises(openai.UnprocessableEntityError, match="/purpose"):
        await files.create(file=("long.txt", b"auks"), purpose=long)

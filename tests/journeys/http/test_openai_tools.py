"""Clients of OpenAI and AG-UI bring tools of their own: turns wait for results, also through a kill -9."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import openai
import pytest
import pytest_asyncio

from openai_gateway import OpenAIGateway, openai_gateway
from openai_server import ScriptedTurn, ToolCall, spoken

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
LONG_NAME = f"weather_{'x' * 56}"
NAMED_CHOICE = {"type": "function", "function": {"name": "weather"}}
RESPONSE_TOOL: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}
pytestmark = pytest.mark.asyncio(loop_scope="module")


def forecaster(body: dict[str, Any]) -> ScriptedTurn:
    """Call the client's tool for each city in the question, then say what it returned."""
    last = body["messages"][-1]
    if "choiceless" in str(last["content"]) and body.get("tool_choice") == "required":
        return ScriptedTurn(fault="choiceless")
    if last["role"] == "tool":
        results = []
        for message in reversed(body["messages"]):
            if message["role"] != "tool":
                break
            results.append(str(message["content"]))
        return ScriptedTurn(text=f"it is {' and '.join(reversed(results))}")
    words = str(last["content"]).rpartition("weather in ")[2].split()
    offered = [tool["function"]["name"] for tool in body.get("tools", ())]
    named = next((name for name in offered if name.startswith("weather")), None)
    if named is None or "weather in" not in str(last["content"]):
        return ScriptedTurn(text=f"told: {last['content']}")
    return ScriptedTurn(
        text="let me look", calls=[ToolCall(name=named, args={"city": word}) for word in words]
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIGateway]:
    """Run the gateway."""
    async with openai_gateway(tmp_path_factory.mktemp("tools") / "data", forecaster) as running:
        yield running


def asked(text: str) -> list[Any]:
    """Return a user's message."""
    return [{"role": "user", "content": text}]


async def test_a_completion_ends_with_a_call_and_goes_on_after_kill_9(tool_gateway: OpenAIGateway) -> None:
    """The model sees the tool and the system prompt; the waiting turn outlives the gateway."""
    create: Any = tool_gateway.client.chat.completions.create
    said: list[Any] = [{"role": "system", "content": "Speak of weather only."}, *asked("weather in Rome")]
    first = await create(model="default", messages=said, tools=[CHAT_TOOL])
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "let me look")
    (called,) = choice.message.tool_calls
    assert (called.function.name, json.loads(called.function.arguments)) == ("weather", {"city": "Rome"})
    system = tool_gateway.model.bodies[-1]["messages"][0]
    assert system["role"] in {"system", "developer"}
    assert str(system["content"]).endswith("Speak of weather only.")
    assert "bash" in [tool["function"]["name"] for tool in tool_gateway.model.bodies[-1]["tools"]]
    await tool_gateway.process.kill()
    await tool_gateway.process.start()
    result = {"role": "tool", "tool_call_id": called.id, "content": "sunny"}
    history = [*said, choice.message.model_dump(exclude_none=True), result]
    second = await create(model="default", messages=history, tools=[CHAT_TOOL])
    assert (second.choices[0].finish_reason, second.choices[0].message.content) == ("stop", "it is sunny")
    assert second.id != first.id
    assert (await create(model="default", messages=history, tools=[CHAT_TOOL])).id == second.id
    history[-1] = {**result, "content": "rainy"}
    with pytest.raises(openai.ConflictError, match="another result"):
        await create(model="default", messages=history, tools=[CHAT_TOOL])


async def test_a_stream_has_all_calls_and_all_results_are_needed(tool_gateway: OpenAIGateway) -> None:
    """Two calls come as two deltas; one result alone is refused, and both continue the stream."""
    create: Any = tool_gateway.client.chat.completions.create
    said = asked("weather in Oslo Bonn")
    chunks = [
        chunk async for chunk in await create(model="default", messages=said, tools=[CHAT_TOOL], stream=True)
    ]
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [json.loads(call.function.arguments)["city"] for call in deltas] == ["Oslo", "Bonn"]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": city}
        for call, city in zip(deltas, ("cold", "warm"), strict=True)
    ]
    with pytest.raises(openai.UnprocessableEntityError, match="missing too"):
        await create(model="default", messages=[*said, results[0]], tools=[CHAT_TOOL])
    stream = await create(model="default", messages=[*said, *results], tools=[CHAT_TOOL], stream=True)
    words = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert words == "it is cold and warm"


async def test_a_response_ends_with_a_call_and_the_next_one_goes_on(tool_gateway: OpenAIGateway) -> None:
    """Each response has its own items, now and when it is retrieved; requests are echoed."""
    responses: Any = tool_gateway.client.responses
    first = await responses.create(
        model="default",
        input="weather in Rome",
        tools=[RESPONSE_TOOL],
        instructions="Be brief.",
        metadata={"order": "7"},
    )
    assert first.id.startswith("resp_")
    assert (first.status, first.output_text) == ("completed", "let me look")
    assert (first.instructions, first.metadata) == ("Be brief.", {"order": "7"})
    assert [tool.name for tool in first.tools] == ["weather"]
    called = first.output[-1]
    assert (called.type, called.name, json.loads(called.arguments)) == (
        "function_call",
        "weather",
        {"city": "Rome"},
    )
    result: Any = {"type": "function_call_output", "call_id": called.call_id, "output": "foggy"}
    stream = await responses.create(
        model="default", previous_response_id=first.id, input=[result], tools=[RESPONSE_TOOL], stream=True
    )
    last = [event async for event in stream][-1]
    assert (last.type, last.response.output_text) == ("response.completed", "it is foggy")
    assert [item.type for item in last.response.output] == ["message"]
    assert (await responses.retrieve(last.response.id)).output_text == "it is foggy"
    again = await responses.retrieve(first.id)
    assert ([item.type for item in again.output], again.status) == (["message", "function_call"], "completed")
    answered = (await responses.input_items.list(last.response.id)).data
    assert [(item.type, item.output) for item in answered] == [("function_call_output", "foggy")]
    spoken = (await responses.input_items.list(first.id)).data
    assert [item.content[0].text for item in spoken] == ["weather in Rome"]


async def test_responses_to_parallel_calls_are_found(tool_gateway: OpenAIGateway) -> None:
    """Ids of calls of one millisecond are in no order; a person may answer the last of the calls."""
    responses: Any = tool_gateway.client.responses
    process, cities = tool_gateway.process, [f"City{number}" for number in range(12)]
    for answers_by_person in (0, 1, 2):
        first = await responses.create(
            model="default", input=f"weather in {' '.join(cities)}", tools=[RESPONSE_TOOL]
        )
        calls = [item.call_id for item in first.output if item.type == "function_call"]
        mine = calls[: len(calls) - answers_by_person]
        for called in calls[len(mine) :]:
            path = f"/approvals/{called.replace('call_', 'apr_')}"
            async with process.http() as session, session.post(path, json={"answer": "mild"}) as answer:
                assert answer.status == 200, await answer.text()
        given = [{"type": "function_call_output", "call_id": one, "output": "fair"} for one in mine[::-1]]
        second = await responses.create(model="default", input=given, tools=[RESPONSE_TOOL])
        said = ["fair"] * len(mine) + ["mild"] * answers_by_person
        assert second.output_text == f"it is {' and '.join(said)}"
        assert (await responses.retrieve(second.id)).output_text == second.output_text
        assert (await responses.create(model="default", input=given, tools=[RESPONSE_TOOL])).id == second.id
        answered = (await responses.input_items.list(second.id, order="asc")).data
        assert [item.call_id for item in answered] == calls


async def test_a_streamed_response_has_the_events_of_its_call(tool_gateway: OpenAIGateway) -> None:
    """The call's item is added, its arguments come, and the stream can be read again."""
    responses: Any = tool_gateway.client.responses
    stream = await responses.create(
        model="default", input="weather in Kyiv", tools=[RESPONSE_TOOL], stream=True
    )
    events = [event async for event in stream]
    kinds = [event.type for event in events if "function_call" in event.type]
    assert kinds == ["response.function_call_arguments.delta", "response.function_call_arguments.done"]
    again = await responses.retrieve(events[0].response.id, stream=True)
    assert [event.sequence_number async for event in again] == [event.sequence_number for event in events]


async def test_histories_of_other_tools_are_accepted(tool_gateway: OpenAIGateway) -> None:
    """Calls and results of earlier turns reach the model as such; reasoning and references have no words."""
    items: list[Any] = [
        {"role": "developer", "content": "Answer in English."},
        {"role": "user", "content": "look it up"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": "x"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"type": "item_reference", "id": "msg_1"},
        {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
    ]
    made = await tool_gateway.client.responses.create(model="default", input=items)
    assert made.output_text == "told: and now?"
    looked = [("user", "look it up"), ("assistant", ['{"q": "x"}']), ("tool", "found")]
    assert spoken(tool_gateway.model.bodies[-1]) == [*looked, ("user", "and now?")]
    said: list[Any] = [
        {"role": "user", "content": "look it up"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "search", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": "found"},
        {"role": "assistant", "content": "it is there"},
        {"role": "user", "content": "and now?"},
    ]
    await tool_gateway.client.chat.completions.create(model="default", messages=said)
    looked = [("user", "look it up"), ("assistant", ["{}"]), ("tool", "found"), ("assistant", "it is there")]
    assert spoken(tool_gateway.model.bodies[-1]) == [*looked, ("user", "and now?")]


async def test_a_run_of_ag_ui_ends_with_a_call_and_the_next_one_goes_on(tool_gateway: OpenAIGateway) -> None:
    """The client's tool is called in the first run; the second run has the result and continues the turn."""

    async def run(number: int, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        tool = {"name": "weather", "description": "the weather", "parameters": PARAMETERS}
        body = {"threadId": "sky", "runId": f"run-{number}", "messages": messages, "tools": [tool]}
        async with tool_gateway.process.http() as session, session.post("/agui", json=body) as answer:
            assert answer.status == 200, await answer.text()
            lines = (await answer.text()).splitlines()
        return [json.loads(line[5:]) for line in lines if line.startswith("data:")]

    asking = {"id": "1", "role": "user", "content": "weather in Rome"}
    first = await run(1, asking)
    started = next(event for event in first if event["type"] == "TOOL_CALL_START")
    assert started["toolCallName"] == "weather"
    assert (first[-1]["type"], first[-1]["outcome"]) == ("RUN_FINISHED", {"type": "success"})
    calling = {"id": "2", "role": "assistant", "content": "let me look"}
    result = {"id": "3", "role": "tool", "toolCallId": started["toolCallId"], "content": "windy"}
    second = await run(2, asking, calling, result)
    words = "".join(event["delta"] for event in second if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert words == "it is windy"
    assert not [event for event in second if event["type"].startswith("TOOL_CALL")]
    assert second[0]["metadata"] == first[0]["metadata"]


@pytest.mark.parametrize("form", ["completions", "responses"])
async def test_a_message_after_the_results_is_for_the_same_turn(
    tool_gateway: OpenAIGateway, form: str
) -> None:
    """The model gets the results and the message at once; the same request again gets the same answer."""
    said: list[Any] = asked("weather in Oslo Bonn")
    more = {"role": "user", "content": "say it in French"}
    if form == "completions":
        create: Any = partial(tool_gateway.client.chat.completions.create, model="default", tools=[CHAT_TOOL])
        message = (await create(messages=said)).choices[0].message
        given = [{"role": "tool", "tool_call_id": one.id, "content": "fair"} for one in message.tool_calls]
        ask = partial(create, messages=[*said, message.model_dump(exclude_none=True), *given, more])
    else:
        create = partial(tool_gateway.client.responses.create, model="default", tools=[RESPONSE_TOOL])
        first = await create(input=said)
        ids = [item.call_id for item in first.output if item.type == "function_call"]
        given = [{"type": "function_call_output", "call_id": one, "output": "fair"} for one in ids]
        ask = partial(create, input=[*given, more], previous_response_id=first.id)
    answer = await ask()
    sent = tool_gateway.model.bodies[-1]["messages"][-3:]
    assert [(one["role"], one["content"]) for one in sent] == [
        ("tool", "fair"),
        ("tool", "fair"),
        ("user", "say it in French"),
    ]
    text = answer.choices[0].message.content if form == "completions" else answer.output_text
    assert text == "told: say it in French"
    asked_before = tool_gateway.model.requests
    assert (await ask()).id == answer.id
    assert tool_gateway.model.requests == asked_before


async def test_a_message_instead_of_a_result_cancels_the_waiting_turn(tool_gateway: OpenAIGateway) -> None:
    """The conversation goes on with the new message; the result comes too late, and says so."""
    create: Any = tool_gateway.client.chat.completions.create
    place = {"extra_body": {"conversation": "left"}, "model": "default", "tools": [CHAT_TOOL]}
    said = asked("weather in Rome")
    first = await create(messages=said, **place)
    other = await create(messages=asked("never mind"), **place)
    assert other.choices[0].message.content == "told: never mind"
    (called,) = first.choices[0].message.tool_calls
    with pytest.raises(openai.ConflictError, match="ended without"):
        await create(messages=[{"role": "tool", "tool_call_id": called.id, "content": "late"}], **place)


async def test_a_message_instead_of_a_result_cancels_it_after_kill_9_too(tool_gateway: OpenAIGateway) -> None:
    """The gateway dies after it stored the message; the repeated request cancels the waiting turn."""
    process, create = tool_gateway.process, tool_gateway.client.chat.completions.create
    place: Any = {"extra_body": {"conversation": "died"}, "model": "default", "tools": [CHAT_TOOL]}
    await create(messages=asked("weather in Rome"), **place)
    await process.kill()
    await process.start(env={"DOVECOTE_FAULT_POINT": "intake.submit.after_commit"})
    place["extra_headers"] = {"Idempotency-Key": "instead"}
    async with asyncio.TaskGroup() as group:
        answering = group.create_task(create(messages=asked("never mind"), **place))
        await process.wait_for_exit()
        await process.start()
    assert (await answering).choices[0].message.content == "told: never mind"


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("required", "required"), (NAMED_CHOICE, "required"), ("auto", "auto"), (None, "auto")],
)
async def test_a_required_tool_is_required_of_the_first_response_to_a_request(
    tool_gateway: OpenAIGateway, choice: Any, sent: Any
) -> None:
    """The model gets the choice of each request once, also of one that continues a turn.

    A client that requires any tool means its own: the agent's would satisfy the model's vendor too. A tool
    that it names is offered alone, because llama.cpp ignores a choice that names one.
    """
    create: Any = tool_gateway.client.chat.completions.create
    begin = tool_gateway.model.requests
    said = asked("weather in Bonn")
    first = await create(model="default", messages=said, tools=[CHAT_TOOL], tool_choice=choice)
    (call,) = first.choices[0].message.tool_calls
    said += [
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "fair"},
    ]
    second = await create(model="default", messages=said, tools=[CHAT_TOOL], tool_choice=choice)
    assert second.choices[0].message.content == "it is fair"
    bodies = tool_gateway.model.bodies[begin:]
    assert [one["tool_choice"] for one in bodies] == [sent, sent]
    names = [{tool["function"]["name"] for tool in one["tools"]} for one in bodies]
    assert [one == {"weather"} for one in names] == [sent == "required"] * 2


async def test_a_model_that_cannot_be_required_to_call_is_offered_the_tool(
    tool_gateway: OpenAIGateway,
) -> None:
    """A server's refusal of `tool_choice` does not fail the request."""
    found = await tool_gateway.client.responses.create(
        model="default", input="choiceless weather in Bonn", tools=[RESPONSE_TOOL], tool_choice="required"
    )
    assert [one.type for one in found.output] == ["message", "function_call"]
    assert "bash" in [tool["function"]["name"] for tool in tool_gateway.model.bodies[-1]["tools"]]


async def test_a_client_can_have_one_call_at_a_time(tool_gateway: OpenAIGateway) -> None:
    """Further calls of a response are not made, whatever the model's vendor; the model can call again."""
    create: Any = partial(tool_gateway.client.chat.completions.create, model="default", tools=[CHAT_TOOL])
    said = asked("weather in Oslo Bonn")
    first = (await create(messages=said, parallel_tool_calls=False)).choices[0].message
    (called,) = first.tool_calls
    assert json.loads(called.function.arguments) == {"city": "Oslo"}
    result = {"role": "tool", "tool_call_id": called.id, "content": "fair"}
    history = [*said, first.model_dump(exclude_none=True), result]
    assert (await create(messages=history)).choices[0].message.content == "it is fair"
    sent = tool_gateway.model.bodies[-1]["messages"]
    assert [len(one["tool_calls"]) for one in sent if one.get("tool_calls")] == [1]
    respond: Any = tool_gateway.client.responses.create
    found = await respond(
        model="default", input="weather in Oslo Bonn", tools=[RESPONSE_TOOL], parallel_tool_calls=False
    )
    assert [item.type for item in found.output] == ["message", "function_call"]
    assert found.parallel_tool_calls is False


async def test_a_tool_may_have_a_name_as_long_as_models_accept(tool_gateway: OpenAIGateway) -> None:
    """Clients shorten the names of their tools to 64 characters; a longer one is refused."""
    create: Any = partial(tool_gateway.client.chat.completions.create, messages=asked("weather in Bonn"))
    long: Any = {"type": "function", "function": {"name": LONG_NAME, "parameters": PARAMETERS}}
    (called,) = (await create(model="default", tools=[long])).choices[0].message.tool_calls
    assert called.function.name == LONG_NAME
    long["function"]["name"] += "x"
    with pytest.raises(openai.UnprocessableEntityError):
        await create(model="default", tools=[long])


async def test_tools_that_cannot_work_are_refused(tool_gateway: OpenAIGateway) -> None:
    """Repeated names, tools that would have to be executed, unknown choices and calls are 422."""
    create: Any = tool_gateway.client.chat.completions.create
    nested = {"type": "namespace", "name": "inner", "tools": []}
    refused: list[dict[str, Any]] = [
        {"tools": [CHAT_TOOL, CHAT_TOOL]},
        {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]},
        {"tools": [{"type": "namespace", "name": "outer", "tools": [nested]}]},
        {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
        {"tool_choice": NAMED_CHOICE},
        {"tools": [CHAT_TOOL], "tool_choice": {"type": "function", "function": {"name": "weathr"}}},
        {"tools": [CHAT_TOOL], "tool_choice": "sometimes"},
        {"messages": [*asked("x"), {"role": "tool", "tool_call_id": "call_0", "content": "y"}]},
    ]
    for wrong in refused:
        with pytest.raises(openai.UnprocessableEntityError):
            await create(**{"model": "default", "messages": asked("x"), **wrong})
    unused = await create(
        model="default", messages=asked("weather in X"), tools=[CHAT_TOOL], tool_choice="none"
    )
    assert unused.choices[0].message.content == "told: weather in X"

"""Clients of OpenAI bring tools of every kind: of the agent's own names, in namespaces, and with a text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from openai_gateway import OpenAIGateway, openai_gateway
from openai_server import ScriptedTurn, ToolCall

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
OWN: Any = {"type": "function", "name": "bash", "parameters": PARAMETERS, "strict": False}
PATCH: Any = {"type": "custom", "name": "apply_patch", "description": "Change files."}
GRAMMAR = {"syntax": "lark", "definition": "start: /.+/"}
CREW: Any = {
    "type": "namespace",
    "name": "crew",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "spawn", "parameters": PARAMETERS}, {**PATCH, "name": "tell"}],
}
pytestmark = pytest.mark.asyncio(loop_scope="module")


def caller(body: dict[str, Any]) -> ScriptedTurn:
    """Make the calls of the question, one in a line as NAME ARGUMENTS, then say what they returned."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return ScriptedTurn(text=f"it is {last['content']}")
    lines = [line.partition(" ") for line in str(last["content"]).splitlines() if "{" in line]
    return ScriptedTurn(
        text="" if lines else "told",
        calls=[ToolCall(name=name, args=json.loads(args)) for name, _, args in lines],
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calling(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIGateway]:
    """Run the gateway."""
    async with openai_gateway(tmp_path_factory.mktemp("kinds") / "data", caller) as running:
        yield running


def offered(gateway: OpenAIGateway, name: str) -> list[dict[str, Any]]:
    """Return the tools of a name that the model got."""
    tools = [tool["function"] for tool in gateway.model.bodies[-1].get("tools", ())]
    return [tool for tool in tools if tool["name"] == name]


async def test_a_tool_takes_the_place_of_the_agents_own(calling: OpenAIGateway) -> None:
    """The client executes it, also after a kill -9; a request without it has the agent's."""
    responses: Any = calling.client.responses
    first = await responses.create(model="default", input='bash {"command": "echo mine"}', tools=[OWN])
    assert [tool["parameters"]["properties"].keys() for tool in offered(calling, "bash")] == [{"command"}]
    (call,) = first.output
    assert (call.name, json.loads(call.arguments)) == ("bash", {"command": "echo mine"})
    await calling.process.kill()
    await calling.process.start()
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "theirs"}
    second = await responses.create(
        model="default", input=[result], previous_response_id=first.id, tools=[OWN]
    )
    assert second.output_text == "it is theirs"
    await responses.create(model="default", input="hello", tools=[PATCH])
    assert "background" in offered(calling, "bash")[0]["parameters"]["properties"]


async def test_the_result_of_a_tool_that_is_left_out_later_is_the_clients(calling: OpenAIGateway) -> None:
    """The agent's own tool of the name is not executed with the arguments of the client's."""
    responses: Any = calling.client.responses
    first = await responses.create(model="default", input='bash {"command": "echo mine"}', tools=[OWN])
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "theirs"}
    second = await responses.create(model="default", input=[result], tools=[PATCH])
    assert second.output_text == "it is theirs"


async def test_the_tools_of_a_namespace_are_called(calling: OpenAIGateway) -> None:
    """The model gets them with the name of the namespace; calls, streams and echoes have both names."""
    responses: Any = calling.client.responses
    asked: Any = {"model": "default", "input": 'crew__spawn {"command": "x"}\ncrew__tell {"input": "hi"}'}
    stream = await responses.create(**asked, tools=[CREW, PATCH], stream=True)
    done = [event async for event in stream]
    assert "Other agents." in str(calling.model.bodies[-1]["messages"][0])
    kinds = [event.type.removeprefix("response.") for event in done if "call" in event.type]
    texts = [f"{kind}.{end}" for kind in KINDS for end in ("delta", "done")]
    assert kinds == texts
    ended = done[-1].response
    assert [(one.type, one.namespace, one.name) for one in ended.output] == [
        ("function_call", "crew", "spawn"),
        ("custom_tool_call", "crew", "tell"),
    ]
    assert (ended.output[0].arguments, ended.output[1].input) == ('{"command": "x"}', "hi")
    assert [(tool.type, tool.name) for tool in ended.tools] == [
        ("namespace", "crew"),
        ("custom", "apply_patch"),
    ]
    assert [tool.name for tool in ended.tools[0].tools] == ["spawn", "tell"]
    results = [
        {"type": "function_call_output", "call_id": ended.output[0].call_id, "output": "one"},
        {"type": "custom_tool_call_output", "call_id": ended.output[1].call_id, "output": "two"},
    ]
    second = await responses.create(model="default", input=results, tools=[CREW, PATCH])
    assert second.output_text == "it is two"
    given = (await responses.input_items.list(second.id, order="asc")).data
    assert [one.type for one in given] == ["function_call_output", "custom_tool_call_output"]


KINDS = ("function_call_arguments", "custom_tool_call_input")


async def test_a_custom_tool_gets_a_text(calling: OpenAIGateway) -> None:
    """The model sees the grammar; a call without the text is not the client's, but an error for the model."""
    create: Any = calling.client.chat.completions.create
    inner = {"name": "apply_patch", "format": {"type": "grammar", "grammar": GRAMMAR}}
    custom: Any = {"type": "custom", "custom": inner}
    said = [{"role": "user", "content": 'apply_patch {"input": "*** Begin"}'}]
    choice = {"type": "custom", "custom": {"name": "apply_patch"}}
    first = await create(model="default", messages=said, tools=[custom], tool_choice=choice)
    assert "start: /.+/" in offered(calling, "apply_patch")[0]["description"]
    (call,) = first.choices[0].message.tool_calls
    assert (call.type, call.custom.name, call.custom.input) == ("custom", "apply_patch", "*** Begin")
    said += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "patched"}]
    second = await create(model="default", messages=said, tools=[custom])
    assert second.choices[0].message.content == "it is patched"
    wrong = [{"role": "user", "content": 'apply_patch {"patch": "x"}'}]
    third = await create(model="default", messages=wrong, tools=[custom])
    assert "input" in third.choices[0].message.content


async def test_searches_of_openai_are_left_out(calling: OpenAIGateway) -> None:
    """The model gets the other tools, and the response repeats those alone."""
    searches: Any = [{"type": "web_search"}, {"type": "image_generation"}]
    asked = 'bash {"command": "echo mine"}'
    response = await calling.client.responses.create(model="default", input=asked, tools=[*searches, OWN])
    assert [tool.type for tool in response.tools] == ["function"]
    assert not offered(calling, "web_search")


@pytest.mark.parametrize("tool", [OWN, {**PATCH, "name": "bash"}], ids=["function", "custom"])
async def test_the_item_of_a_call_names_it_too(calling: OpenAIGateway, tool: dict[str, Any]) -> None:
    """A client that keeps the id of the item, not that of the call, gives the waiting turn its result.

    Posit's chatlas sends the whole history with such ids.
    """
    responses: Any = calling.client.responses
    question = {"role": "user", "content": 'bash {"input": "echo mine"}'}
    first = await responses.create(model="default", input=[question], tools=[tool])
    (called,) = first.output
    sent = {**called.model_dump(exclude={"id", "status"}, exclude_unset=True), "call_id": called.id}
    result = {"type": f"{called.type}_output", "call_id": called.id, "output": "theirs"}
    second = await responses.create(model="default", input=[question, sent, result], tools=[tool])
    assert second.output_text == "it is theirs"
    assert second.conversation == first.conversation
    (answered,) = (await responses.input_items.list(second.id)).data
    assert (answered.call_id, answered.output) == (called.call_id, "theirs")

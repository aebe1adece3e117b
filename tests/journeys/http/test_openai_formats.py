"""OpenAI's client asks for JSON of a schema: the answer is that JSON alone, whatever the model can do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from api_server import ApiClient
from openai_gateway import OpenAIGateway, openai_gateway
from openai_server import ScriptedTurn, ToolCall, spoken

pytestmark = pytest.mark.asyncio(loop_scope="module")


class City(BaseModel):
    """A city as the client wants it."""

    name: str
    people: int


PARIS = {"name": "Paris", "people": 2_100_000}
NOTHING = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
TOOL: Any = {"type": "function", "function": {"name": "census", "strict": True, "parameters": NOTHING}}
WRITE = "mkdir -p outbox && echo 1 > outbox/a.txt"
SCRIPT = {
    "fenced": ScriptedTurn(text=f"```json\n{json.dumps(PARIS)}\n```"),
    "corrected": ScriptedTurn(text=json.dumps({"name": "Paris", "people": "many"})),
    "prose": ScriptedTurn(text="Paris, with two million people."),
    "counted": ScriptedTurn(text="let me count", calls=[ToolCall(name="census")]),
    "written": ScriptedTurn(text="a file", calls=[ToolCall(name="bash", args={"command": WRITE})]),
    "impossible": ScriptedTurn(refusal="I count no people."),
    "cut": ScriptedTurn(text='{"name": "Par', finish="length"),
}


def geographer(body: dict[str, Any]) -> ScriptedTurn:
    """Answer as the last word of the first question says."""
    messages = body["messages"]
    question = next(str(one["content"]).split()[-1] for one in messages if one["role"] == "user")
    if question == "refused" and "response_format" in body:
        return ScriptedTurn(fault="formatless")
    is_first = all(one["role"] != "assistant" for one in messages)
    special = SCRIPT.get(question) if is_first or question == "prose" else None
    return special or ScriptedTurn(text=json.dumps(PARIS))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def formats(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIGateway]:
    """Run the gateway."""
    data = tmp_path_factory.mktemp("formats") / "data"
    async with openai_gateway(data, geographer, max_retries=0, timeout=60) as running:
        async with aiohttp.ClientSession() as session:
            mine = ApiClient(session=session, url=running.process.url, key=running.process.key)
            sandbox = {"config": {"provider": "host", "permissionMode": "bypass"}}
            assert (await mine.call("PATCH", "/accounts/me/sandboxes/default", sandbox)).status == 200
        yield running


@pytest.mark.parametrize("question", ["plain", "fenced", "corrected", "refused", "written"])
async def test_an_answer_is_the_json_that_was_asked_for(formats: OpenAIGateway, question: str) -> None:
    """The model may do so at once, in a fence, after a correction, without support, or write files."""
    found = await formats.client.chat.completions.parse(
        model="default", messages=[{"role": "user", "content": question}], response_format=City
    )
    assert found.choices[0].message.content == json.dumps(PARIS)
    assert found.choices[0].message.parsed == City(name="Paris", people=2_100_000)


@pytest.mark.parametrize("question", ["plain", "corrected", "written"])
async def test_a_stream_has_nothing_but_the_json(formats: OpenAIGateway, question: str) -> None:
    """A streamed answer holds neither a rejected attempt nor what the model said beside its tools."""
    asked = formats.client.chat.completions.stream(
        model="default", messages=[{"role": "user", "content": question}], response_format=City
    )
    async with asked as stream:
        found = await stream.get_final_completion()
    assert found.choices[0].message.parsed == City(name="Paris", people=2_100_000)


@pytest.mark.parametrize("question", ["plain", "fenced", "written"])
async def test_a_response_is_the_json_and_repeats_its_format(formats: OpenAIGateway, question: str) -> None:
    """`/v1/responses` gives the JSON complete, streamed, and read again."""
    found = await formats.client.responses.parse(model="default", input=question, text_format=City)
    assert found.output_parsed == City(name="Paris", people=2_100_000)
    assert found.text is not None
    assert found.text.format is not None
    assert found.text.format.type == "json_schema"
    again = await formats.client.responses.retrieve(found.id)
    assert json.loads(again.output_text) == PARIS
    asked = formats.client.responses.stream(model="default", input=question, text_format=City)
    async with asked as stream:
        streamed = await stream.get_final_response()
    assert streamed.output_parsed == City(name="Paris", people=2_100_000)


async def test_files_stay_below_an_answer_without_a_format(formats: OpenAIGateway) -> None:
    """The links that an answer in a format leaves out are in the same answer without one."""
    found = await formats.client.responses.create(model="default", input="written")
    assert "a.txt" in found.output_text
    verbose: Any = {"verbosity": "low"}
    found = await formats.client.responses.create(model="default", input="plain", text=verbose)
    assert found.text is not None
    assert found.text.format is not None
    assert found.text.format.type == "text"


async def test_a_format_holds_across_the_clients_tools(formats: OpenAIGateway) -> None:
    """The turn that waited for its client's tool answers in the form of its first request."""
    said: Any = [{"role": "user", "content": "counted"}]
    first = await formats.client.chat.completions.parse(
        model="default", messages=said, tools=[TOOL], response_format=City
    )
    called = first.choices[0].message
    assert called.tool_calls
    assert not called.content
    call = called.tool_calls[0].model_dump(include={"id", "type", "function"})
    said.append({"role": "assistant", "tool_calls": [call]})
    said.append({"role": "tool", "tool_call_id": call["id"], "content": "2100000"})
    found = await formats.client.chat.completions.parse(
        model="default", messages=said, tools=[TOOL], response_format=City
    )
    assert found.choices[0].message.parsed == City(name="Paris", people=2_100_000)


MADE: Any = {"id": "toolu_1", "type": "function", "function": {"name": "census", "arguments": "{}"}}
LOOKED: list[Any] = [
    {"role": "user", "content": "which city?"},
    {"role": "assistant", "content": None, "tool_calls": [MADE]},
    {"role": "tool", "tool_call_id": "toolu_1", "content": "Paris"},
]
ANSWERED: Any = {"role": "assistant", "content": "It is Paris."}


@pytest.mark.parametrize(
    "sent", [[*LOOKED, ANSWERED], LOOKED, [{"role": "system", "content": "name a city"}]]
)
async def test_a_history_without_a_last_question_goes_on(formats: OpenAIGateway, sent: list[Any]) -> None:
    """LangGraph asks so for the structured answer of its agent; a call may be another server's."""
    found = await formats.client.chat.completions.parse(model="default", messages=sent, response_format=City)
    assert found.choices[0].message.parsed == City(name="Paris", people=2_100_000)
    roles = [role for role, _ in spoken(formats.model.bodies[-1])]
    assert roles == [*(one["role"] for one in sent if one["role"] != "system"), "user"]
    made = await formats.client.responses.create(model="default", input=[ANSWERED])
    assert spoken(formats.model.bodies[-1])[1:] == [("assistant", "It is Paris."), ("user", "(continue)")]
    with pytest.raises(openai.UnprocessableEntityError, match="the last message must be a user's"):
        await formats.client.responses.create(model="default", input=[ANSWERED], previous_response_id=made.id)


async def test_a_refusal_of_the_model_is_the_reason(formats: OpenAIGateway) -> None:
    """It is no answer in the form, and the model is not asked again; without a form it is the answer."""
    asked: Any = {"model": "default", "messages": [{"role": "user", "content": "impossible"}]}
    before = formats.model.requests
    with pytest.raises(openai.APIStatusError, match="The model refused to answer: I count no people"):
        await formats.client.chat.completions.parse(**asked, response_format=City)
    assert formats.model.requests == before + 1
    found = await formats.client.chat.completions.create(**asked)
    assert found.choices[0].message.content == "I count no people."


async def test_a_json_object_and_a_cut_answer(formats: OpenAIGateway) -> None:
    """`json_object` takes any object; a cut answer is reported by its finish reason."""
    found = await formats.client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "plain"}],
        response_format={"type": "json_object"},
    )
    assert json.loads(found.choices[0].message.content or "") == PARIS
    with pytest.raises(openai.LengthFinishReasonError):
        await formats.client.chat.completions.parse(
            model="default", messages=[{"role": "user", "content": "cut"}], response_format=City
        )


async def test_a_model_that_answers_in_prose_fails_the_request(formats: OpenAIGateway) -> None:
    """After two corrections the request fails, and the error says what was wrong with the answer."""
    before = formats.model.requests
    with pytest.raises(openai.APIStatusError, match="The answer is not JSON") as caught:
        await formats.client.chat.completions.parse(
            model="default", messages=[{"role": "user", "content": "prose"}], response_format=City
        )
    assert caught.value.status_code == 424
    assert formats.model.requests == before + 3


async def test_an_agent_without_a_language_model_has_no_formats(formats: OpenAIGateway) -> None:
    """The request fails with the name of the agent and its model."""
    async with aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=formats.process.url, key=formats.process.key)
        agent = {"name": "plain", "config": {"model": "builtin:shell"}}
        assert (await mine.call("POST", "/accounts/me/agents", agent)).status == 201
    with pytest.raises(openai.APIStatusError, match="plain answers with text only") as caught:
        await formats.client.chat.completions.parse(
            model="plain", messages=[{"role": "user", "content": "!date"}], response_format=City
        )
    assert caught.value.status_code == 424


async def test_a_client_that_stops_reading_can_cancel_the_turn(formats: OpenAIGateway) -> None:
    """Programs with a Stop button close the stream; without the option a turn goes on."""
    async with aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=formats.process.url, key=formats.process.key)
        shell = {"name": "sleeper", "config": {"model": "builtin:shell"}}
        assert (await mine.call("POST", "/accounts/me/agents", shell)).status == 201
        stream = await formats.client.chat.completions.create(
            model="sleeper",
            messages=[{"role": "user", "content": "!sleep 50"}],
            stream=True,
            extra_body={"cancel_on_disconnect": True},
        )
        first = await anext(aiter(stream))
        response = await formats.client.responses.create(
            model="sleeper", input="!sleep 50", stream=True, extra_body={"cancel_on_disconnect": True}
        )
        created = await anext(aiter(response))
        assert created.type == "response.created"
        await stream.close()
        await response.close()
        async with asyncio.timeout(30):
            for turn in (first.id, created.response.id):
                path = f"/status/{turn}"
                while (await mine.call("GET", path)).body["state"] != "cancelled":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"type": "json_schema"}, "needs a schema"),
        ({"type": "xml"}, "json_object"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, "pattern"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": "y" * 200_000}}}, "characters"),
    ],
)
async def test_a_format_that_is_wrong_is_refused(formats: OpenAIGateway, given: Any, words: str) -> None:
    """A format without a schema, of another type, with a wrong name or too long is a 422."""
    with pytest.raises(openai.UnprocessableEntityError, match=words):
        await formats.client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "plain"}], response_format=given
        )

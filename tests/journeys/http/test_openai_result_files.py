"""Results of a client's own tools can have images and files: the model sees them, also after a kill -9."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from openai_gateway import OpenAIGateway, openai_gateway
from openai_server import ScriptedTurn, ToolCall, images_of, last_text

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ADDRESS = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
NOTES = "data:text/plain;base64," + base64.b64encode(b"the lens is dirty").decode()
PARAMETERS: Any = {"type": "object", "properties": {}}
pytestmark = pytest.mark.asyncio(loop_scope="module")

Content = list[dict[str, Any]]


def photographer(body: dict[str, Any]) -> ScriptedTurn:
    """Call the client's camera when asked to, then say how many pictures there are."""
    if "take a picture" in last_text(body):
        return ScriptedTurn(calls=[ToolCall(name="camera", args={})])
    return ScriptedTurn(text=f"I see {len(images_of(body))}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def camera_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIGateway]:
    """Run the gateway."""
    async with openai_gateway(tmp_path_factory.mktemp("camera") / "data", photographer) as running:
        yield running


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of one of OpenAI's interfaces: how a picture is asked for, and how it is returned."""

    begin: Callable[[AsyncOpenAI], Any]
    text: str
    image: Callable[[str], dict[str, Any]]
    place: str


async def begin_completion(client: AsyncOpenAI) -> Callable[..., Any]:
    """Ask for a picture, and return the function that gives the result, with messages after it."""
    tool = {"type": "function", "function": {"name": "camera", "parameters": PARAMETERS}}
    create: Any = partial(client.chat.completions.create, model="default", tools=[tool])
    asked = {"role": "user", "content": "take a picture"}
    message = (await create(messages=[asked])).choices[0].message

    async def give(content: Content, *after: Mapping[str, Any]) -> str:
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": content}
        said = [asked, message.model_dump(exclude_none=True), result, *after]
        return str((await create(messages=said)).choices[0].message.content)

    return give


async def begin_response(client: AsyncOpenAI) -> Callable[..., Any]:
    """Ask for a picture, and return the function that gives the result, with messages after it."""
    tool = {"type": "function", "name": "camera", "parameters": PARAMETERS, "strict": False}
    create: Any = partial(client.responses.create, model="default", tools=[tool])
    first = await create(input="take a picture")

    async def give(content: Content, *after: Mapping[str, Any]) -> str:
        call = first.output[-1].call_id
        result = {"type": "function_call_output", "call_id": call, "output": content}
        given = await create(input=[result, *after], previous_response_id=first.id)
        return str(given.output_text)

    return give


FORMS = {
    "completions": Form(
        begin=begin_completion,
        text="text",
        image=lambda url: {"type": "image_url", "image_url": {"url": url}},
        place="messages[2].content[1]",
    ),
    "responses": Form(
        begin=begin_response,
        text="input_text",
        image=lambda url: {"type": "input_image", "image_url": url, "detail": "auto"},
        place="input[0].output[1]",
    ),
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@each_form
async def test_the_model_sees_the_image_of_a_result(camera_gateway: OpenAIGateway, form: Form) -> None:
    """It comes after the text of the result; the same request again gets the same answer."""
    give = await form.begin(camera_gateway.client)
    content = [{"type": form.text, "text": "here it is"}, form.image(ADDRESS)]
    assert await give(content) == "I see 1"
    body = camera_gateway.model.bodies[-1]
    result, shown = body["messages"][-2:]
    assert result["role"] == "tool"
    assert str(result["content"]).startswith("here it is\n[image picture-1.png of apr_")
    assert shown["role"] == "user"
    assert images_of(body) == [ADDRESS]
    asked_before = camera_gateway.model.requests
    assert await give(content) == "I see 1"
    assert camera_gateway.model.requests == asked_before
    with pytest.raises(openai.ConflictError, match="another result"):
        await give(content[:1])


@each_form
async def test_an_image_alone_is_a_result(camera_gateway: OpenAIGateway, form: Form) -> None:
    """A result needs no text."""
    give = await form.begin(camera_gateway.client)
    assert await give([form.image(ADDRESS), form.image(ADDRESS)]) == "I see 2"


@pytest.mark.parametrize(
    "point", ["approval.decide.after_commit", "step.end.after_commit", "turn.save.after_commit"]
)
async def test_the_image_outlives_kill_9(camera_gateway: OpenAIGateway, point: str) -> None:
    """The gateway dies after it stored the result, or after the call ended; the model still sees it."""
    process, form = camera_gateway.process, FORMS["responses"]
    give = await form.begin(camera_gateway.client)
    await process.kill()
    await process.start(env={"DOVECOTE_FAULT_POINT": point})
    async with asyncio.TaskGroup() as group:
        giving = group.create_task(give([form.image(ADDRESS)]))
        await process.wait_for_exit()
        await process.start()
    assert giving.result() == "I see 1"


@each_form
async def test_files_of_a_message_after_the_results_arrive_too(
    camera_gateway: OpenAIGateway, form: Form
) -> None:
    """The turn goes on with the results, the message and its image."""
    give = await form.begin(camera_gateway.client)
    after = {"role": "user", "content": [{"type": form.text, "text": "and this one"}, form.image(ADDRESS)]}
    result = [{"type": form.text, "text": "no film"}]
    assert await give(result, after) == "I see 1"
    body = camera_gateway.model.bodies[-1]
    assert "no film" in str(body["messages"])
    assert "and this one" in last_text(body)
    asked_before = camera_gateway.model.requests
    assert await give(result, after) == "I see 1"
    assert camera_gateway.model.requests == asked_before


@pytest.mark.parametrize("data", [NOTES, NOTES.rpartition(",")[2]], ids=["url", "base64"])
async def test_a_file_of_a_result_is_in_the_inbox(camera_gateway: OpenAIGateway, data: str) -> None:
    """The model gets its path, and the response lists it as an upload; base64 needs no `data:`."""
    client: Any = camera_gateway.client
    tool = {"type": "function", "name": "camera", "parameters": PARAMETERS, "strict": False}
    first = await client.responses.create(model="default", input="take a picture", tools=[tool])
    output = [{"type": "input_file", "filename": "notes.txt", "file_data": data}]
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": output}
    second = await client.responses.create(model="default", input=[result])
    assert "[attached: inbox/notes" in str(camera_gateway.model.bodies[-1]["messages"][-1])
    (item,) = (await client.responses.input_items.list(second.id)).data
    (part,) = item.output
    assert (part.type, part.filename) == ("input_file", "notes.txt")
    assert (await client.files.content(part.file_id)).content == b"the lens is dirty"


@each_form
async def test_parts_that_the_model_would_not_get_are_refused(
    camera_gateway: OpenAIGateway, form: Form
) -> None:
    """Bytes that are no image, unknown parts, uploads and addresses name their part; too much is refused."""
    give = await form.begin(camera_gateway.client)
    text = {"type": form.text, "text": "here"}
    wrong = [
        form.image("data:image/png;base64,bm8gaW1hZ2U="),
        {"type": "hologram"},
        form.image("https://example.org/cat.png"),
        {"type": "input_file", "file_id": "file-unknown"},
    ]
    for part in wrong:
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            await give([text, part])
        assert refused.value.param == form.place
    with pytest.raises(openai.UnprocessableEntityError, match="at most 20 files"):
        await give([form.image(ADDRESS)] * 21)
    large = "data:image/png;base64," + base64.b64encode(PIXEL + bytes(5_300_000)).decode()
    with pytest.raises(openai.UnprocessableEntityError, match="10485760 bytes"):
        await give([form.image(large), form.image(large)])
    assert await give([text]) == "I see 0"

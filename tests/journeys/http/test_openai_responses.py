"""OpenAI's own client asks for responses: whole, streamed, in the background, and resumed after a kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, echo, spoken


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesGateway:
    """A gateway with an agent on a loopback model (`default`) and a shell, and OpenAI's client."""

    process: GatewayProcess
    client: AsyncOpenAI
    model: OpenAIServer

    async def turns(self, text: str) -> list[dict[str, Any]]:
        """Return the turns whose input contains a text."""
        async with self.process.http() as session, session.get("/turns") as listed:
            return [turn for turn in (await listed.json())["items"] if text in turn["input"]]

    async def until(self, response: str, *states: str) -> Any:
        """Ask until a response is in one of these states."""
        async with asyncio.timeout(60):
            while (found := await self.client.responses.retrieve(response)).status not in states:  # noqa: ASYNC110 - the gateway is another process
                await asyncio.sleep(0.05)
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def responses_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ResponsesGateway]:
    """Run a gateway with both agents."""
    async with OpenAIServer(echo) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with gateway(tmp_path_factory.mktemp("responses") / "data", env=env) as process:
            client = AsyncOpenAI(base_url=f"{process.url}/v1", api_key=process.key, max_retries=5)
            async with client, process.http() as session:
                shell = {"name": "shell", "config": {"model": "builtin:shell"}}
                async with session.post("/accounts/me/agents", json=shell) as made:
                    assert made.status == 201
                yield ResponsesGateway(process=process, client=client, model=model)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_response_is_a_turn_and_the_next_one_goes_on(responses_gateway: ResponsesGateway) -> None:
    """The answer is whole, with what was used; the next response of it is in the same conversation."""
    first = await responses_gateway.client.responses.create(model="default", input="my number is 7")
    assert (first.status, first.output_text) == ("completed", "echo: my number is 7")
    assert first.usage is not None
    assert first.usage.total_tokens == 15
    second = await responses_gateway.client.responses.create(
        model="default", input="which?", previous_response_id=first.id, instructions="Be brief."
    )
    assert second.conversation == first.conversation
    asked = [
        str(one["content"]) for one in responses_gateway.model.bodies[-1]["messages"] if one["role"] == "user"
    ]
    assert asked == ["my number is 7", "which?"]
    reported = str(responses_gateway.model.bodies[-1]["messages"][0]["content"])
    assert reported.endswith("Be brief.")
    assert (second.instructions, second.previous_response_id) == ("Be brief.", first.id)
    counted = await responses_gateway.client.responses.input_tokens.count(input="one two three four")
    assert 1 <= counted.input_tokens <= 20
    assert (await responses_gateway.client.responses.retrieve(first.id)).output_text == first.output_text


async def test_a_streamed_response_can_be_read_again_from_anywhere(
    responses_gateway: ResponsesGateway,
) -> None:
    """Its events are numbered without repetition, make the whole, and come the same from every position."""
    stream = await responses_gateway.client.responses.create(
        model="default", input="one two three", stream=True
    )
    events = [event async for event in stream]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.completed"
    words = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert words == "echo: one two three"
    response: Any = events[0]
    for place in (0, 3, len(events) - 2):
        again = await responses_gateway.client.responses.retrieve(
            response.response.id, stream=True, starting_after=numbers[place]
        )
        rest = [(event.sequence_number, event.type) async for event in again]
        assert rest == list(zip(numbers, kinds, strict=True))[place + 1 :]


async def test_a_response_in_the_background_survives_kill_9(responses_gateway: ResponsesGateway) -> None:
    """It is there under its id after the gateway died, and its stream goes on to its end."""
    queued = await responses_gateway.client.responses.create(
        model="shell", input="!sleep 1; echo home", background=True
    )
    assert (queued.status in {"queued", "in_progress"}, queued.background) == (True, True)
    await responses_gateway.process.kill()
    await responses_gateway.process.start()
    done = await responses_gateway.until(queued.id, "completed")
    stream = await responses_gateway.client.responses.retrieve(queued.id, stream=True)
    events = [event async for event in stream]
    last: Any = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == done.output_text


async def test_a_response_is_cancelled(responses_gateway: ResponsesGateway) -> None:
    """The running command ends; the response is cancelled and not failed, and so is its stream."""
    queued = await responses_gateway.client.responses.create(
        model="shell", input="!sleep 300", background=True
    )
    await responses_gateway.until(queued.id, "in_progress")
    cancelled = await responses_gateway.client.responses.cancel(queued.id)
    assert (cancelled.status, cancelled.error) == ("cancelled", None)
    assert (await responses_gateway.client.responses.cancel(queued.id)).status == "cancelled"
    stream = await responses_gateway.client.responses.retrieve(queued.id, stream=True)
    last: Any = [event async for event in stream][-1]
    assert (last.type, last.response.status, last.response.error) == (
        "response.incomplete",
        "cancelled",
        None,
    )


async def test_an_sdk_that_repeats_a_request_after_a_crash_joins_its_turn(
    responses_gateway: ResponsesGateway,
) -> None:
    """The gateway dies in mid-request: the stock client's own retry gets the answer of the same turn."""
    client = responses_gateway.client.with_options(max_retries=30)
    asking = asyncio.create_task(
        client.responses.create(model="shell", input="!sleep 2; echo survived", conversation="crash")
    )
    async with asyncio.timeout(60):
        while [turn["state"] for turn in await responses_gateway.turns("survived")] != ["running"]:  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.02)
    await responses_gateway.process.kill()
    await responses_gateway.process.start()
    answered = await asking
    (turn,) = await responses_gateway.turns("survived")
    assert answered.id == f"resp_{turn['id'].removeprefix('trn_')}"


async def test_a_deleted_response_is_gone(responses_gateway: ResponsesGateway) -> None:
    """The stock client deletes it; afterwards it is unknown, and so is its conversation of its own."""
    client = responses_gateway.client
    made = await client.responses.create(model="default", input="forget me")
    kept = await client.responses.create(model="default", input="first", conversation="named")
    for response in (made, kept):
        await client.responses.delete(response.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(response.id)
    assert await responses_gateway.turns("forget me") == []
    assert made.conversation is not None
    async with responses_gateway.process.http() as session:
        assert (await session.get(f"/conversations/{made.conversation.id}")).status == 404
        assert (await session.get("/conversations/named")).status == 200


async def test_a_conversation_has_metadata_and_items(responses_gateway: ResponsesGateway) -> None:
    """The stock client creates it with items that the agent gets, lists its items, and deletes it."""
    conversations: Any = responses_gateway.client.conversations
    first: Any = {"type": "message", "role": "user", "content": "my colour is green"}
    made = await conversations.create(items=[first], metadata={"topic": "demo"})
    assert made.id.startswith("conv_")
    assert (await conversations.retrieve(made.id)).metadata == {"topic": "demo"}
    assert (await conversations.update(made.id, metadata={"topic": "new"})).metadata == {"topic": "new"}
    second: Any = {"type": "message", "role": "assistant", "content": "noted"}
    added = await conversations.items.create(made.id, items=[second])
    assert [item.content[0].text for item in added.data] == ["noted"]
    answer = await responses_gateway.client.responses.create(
        model="default", input="which colour?", conversation=made.id
    )
    assert answer.conversation is not None
    assert answer.conversation.id == made.id
    begun = [("user", "my colour is green"), ("assistant", "noted")]
    assert spoken(responses_gateway.model.bodies[-1]) == [*begun, ("user", "which colour?")]
    listed = [item async for item in conversations.items.list(made.id, order="asc", limit=2)]
    assert [item.content[0].text for item in listed][:3] == ["my colour is green", "noted", "which colour?"]
    assert [item.role for item in listed] == ["user", "assistant", "user", "assistant"]
    await conversations.items.create(made.id, items=[first])
    await responses_gateway.client.responses.create(model="default", input="and?", conversation=made.id)
    later = spoken(responses_gateway.model.bodies[-1])
    assert (later[:2], later[-2:]) == (begun, [begun[0], ("user", "and?")])
    assert (await conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match="no agent"):
        await conversations.create(extra_body={"agent": "nobody"})


async def test_images_and_files_of_earlier_messages_leave_a_line(
    responses_gateway: ResponsesGateway,
) -> None:
    """It is in added items and in histories, so that messages without a text are not lost."""
    parts: list[Any] = [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "input_file", "filename": "plan.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
    ]
    earlier: list[Any] = [
        {"role": "user", "content": parts[:1]},
        {"role": "user", "content": [{"type": "input_text", "text": "and this"}, *parts[1:]]},
        {"role": "assistant", "content": "seen"},
    ]
    client, model = responses_gateway.client, responses_gateway.model
    made = await client.conversations.create()
    added: Any = await client.conversations.items.create(made.id, items=earlier)
    lines = ["(an image)", "and this\n(a file: plan.pdf)", "seen"]
    assert [item.content[0].text for item in added.data] == lines
    await client.responses.create(model="default", input="well?", conversation=made.id)
    await client.responses.create(model="default", input=[*earlier, {"role": "user", "content": "well?"}])
    asked = [("user", "\n\n".join(lines[:2])), ("assistant", "seen"), ("user", "well?")]
    assert [spoken(body) for body in model.bodies[-2:]] == [asked, asked]


async def test_single_items_are_shown_and_deleted_until_a_turn_has_them(
    responses_gateway: ResponsesGateway,
) -> None:
    """The agent does not get a deleted item; what it has had stays, and the error says so."""
    conversations: Any = responses_gateway.client.conversations
    items = conversations.items
    given = [{"type": "message", "role": "user", "content": text} for text in ("a secret", "a rhyme")]
    made = await conversations.create(items=given, metadata={"topic": "items"})
    secret, rhyme = [item async for item in items.list(made.id, order="asc")]
    assert await items.retrieve(secret.id, conversation_id=made.id) == secret
    left = await items.delete(secret.id, conversation_id=made.id)
    assert (left.id, left.metadata) == (made.id, {"topic": "items"})
    with pytest.raises(openai.NotFoundError, match="no such item"):
        await items.retrieve(secret.id, conversation_id=made.id)
    await responses_gateway.client.responses.create(model="default", input="go on", conversation=made.id)
    assert spoken(responses_gateway.model.bodies[-1]) == [("user", "a rhyme"), ("user", "go on")]
    for item in [one async for one in items.list(made.id)]:
        assert (await items.retrieve(item.id, conversation_id=made.id)).id == item.id
        with pytest.raises(openai.ConflictError, match="the agent has had this item") as refused:
            await items.delete(item.id, conversation_id=made.id)
        assert refused.value.response.request.headers["x-stainless-retry-count"] == "0"
    other = await conversations.create()
    with pytest.raises(openai.NotFoundError):
        await items.retrieve(rhyme.id, conversation_id=other.id)


async def test_a_file_is_uploaded_and_sent_by_its_id(responses_gateway: ResponsesGateway) -> None:
    """The stock client uploads, lists, reads, sends and deletes a file; the same key is the same upload."""
    files = responses_gateway.client.files
    upload = ("notes.txt", b"seven swans")
    key = {"Idempotency-Key": "upload-1"}
    made, again = [await files.create(file=upload, purpose="user_data", extra_headers=key) for _ in range(2)]
    assert (made.id, made.filename, made.bytes, made.purpose) == (again.id, "notes.txt", 11, "user_data")
    assert [one.id async for one in files.list() if one.filename == "notes.txt"] == [made.id]
    assert (await files.retrieve(made.id)).filename == "notes.txt"
    assert (await files.content(made.id)).content == b"seven swans"
    part = {"type": "input_file", "file_id": made.id}
    inline = {"type": "input_file", "filename": "two.txt", "file_data": "data:text/plain;base64,dHdv"}
    message: Any = {"role": "user", "content": [{"type": "input_text", "text": "read"}, part, inline]}
    response = await responses_gateway.client.responses.create(model="default", input=[message])
    assert "notes.txt" in response.output_text
    assert "two.txt" in response.output_text
    assert (await files.delete(made.id)).deleted
    for asking in (files.retrieve(made.id), files.content(made.id), files.delete(made.id)):
        with pytest.raises(openai.NotFoundError):
            await asking


async def test_the_same_file_can_be_sent_again(responses_gateway: ResponsesGateway) -> None:
    """Twice in one message, and in two messages of a conversation; an upload by its id too."""
    upload = await responses_gateway.client.files.create(file=("a.txt", b"geese"), purpose="user_data")
    part = {"type": "input_file", "filename": "b.txt", "file_data": "data:text/plain;base64,Z2Vlc2U="}
    message: Any = {"role": "user", "content": [part, part, {"type": "input_file", "file_id": upload.id}]}
    for _ in range(2):
        response = await responses_gateway.client.responses.create(
            model="default", input=[message], conversation="geese"
        )
        assert response.output_text.count("[attached: ") == 3


async def test_a_form_of_many_fields_is_refused(responses_gateway: ResponsesGateway) -> None:
    """Fields without use cannot fill the memory."""
    form = aiohttp.FormData({f"field-{place}": "x" for place in range(100)})
    form.add_field("file", b"seven swans", filename="notes.txt")
    async with responses_gateway.process.http() as session, session.post("/v1/files", data=form) as answer:
        assert answer.status == 413, await answer.text()


async def test_a_message_that_is_given_by_its_id_is_in_the_history(
    responses_gateway: ResponsesGateway,
) -> None:
    """The AI SDK gives earlier answers as references; unknown ones are ignored."""
    create: Any = responses_gateway.client.responses.create
    first = await create(model="default", input="hello")
    again = [
        {"role": "user", "content": "hello"},
        {"type": "item_reference", "id": first.output[0].id},
        {"type": "item_reference", "id": "msg_none"},
        {"role": "user", "content": "and now?"},
    ]
    await create(model="default", input=again)
    sent = spoken(responses_gateway.model.bodies[-1])
    assert sent == [("user", "hello"), ("assistant", "echo: hello"), ("user", "and now?")]


async def test_what_cannot_be_is_refused(responses_gateway: ResponsesGateway) -> None:
    """Unknown responses are 404 on every path; two places, unknown calls and no words are 422."""
    responses: Any = responses_gateway.client.responses
    for asking in (responses.retrieve("trn_none"), responses.cancel("trn_none")):
        with pytest.raises(openai.NotFoundError):
            await asking
    with pytest.raises(openai.NotFoundError):
        await responses.create(model="default", input="x", previous_response_id="trn_none")
    refused: list[dict[str, Any]] = [
        {"input": "x", "conversation": "a", "previous_response_id": "trn_none"},
        {"input": ""},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
    ]
    for wrong in refused:
        with pytest.raises(openai.UnprocessableEntityError):
            await responses.create(model="default", **wrong)


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("completions", {"logprobs": True}),
        ("completions", {"top_logprobs": 3}),
        ("completions", {"modalities": ["text", "audio"]}),
        ("completions", {"audio": {"voice": "alloy", "format": "wav"}}),
        ("completions", {"web_search_options": {}}),
        ("responses", {"prompt": {"id": "pmpt_1"}}),
        ("responses", {"max_tool_calls": 1}),
        ("responses", {"top_logprobs": 1}),
        ("responses", {"include": ["message.output_text.logprobs"]}),
    ],
)
async def test_an_answer_that_would_lack_what_is_asked_is_refused(
    responses_gateway: ResponsesGateway, form: str, wanted: dict[str, Any]
) -> None:
    """The error names the field."""
    client = responses_gateway.client
    chat: Any = partial(client.chat.completions.create, messages=[{"role": "user", "content": "x"}])
    create: Any = chat if form == "completions" else partial(client.responses.create, input="x")
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await create(model="default", **wanted)
    assert refused.value.param == next(iter(wanted))


async def test_a_field_that_asks_for_nothing_is_accepted(responses_gateway: ResponsesGateway) -> None:
    """Clients send such values by themselves."""
    create: Any = responses_gateway.client.chat.completions.create
    harmless = {"logprobs": False, "top_logprobs": 0, "modalities": ["text"], "audio": None, "functions": []}
    said = [{"role": "user", "content": "x"}]
    assert (await create(model="default", messages=said, **harmless)).choices[0].message.content
    respond: Any = responses_gateway.client.responses.create
    included = ["reasoning.encrypted_content"]
    assert (await respond(model="default", input="x", include=included, max_tool_calls=None)).output_text


async def test_a_client_learns_that_it_need_not_compact(responses_gateway: ResponsesGateway) -> None:
    """The answer is no method error of the path of one response, and says what to do instead."""
    with pytest.raises(openai.NotFoundError, match="continue with previous_response_id"):
        await responses_gateway.client.responses.compact(model="default", input="x")


async def test_a_path_that_is_not_here_says_where_agents_answer(responses_gateway: ResponsesGateway) -> None:
    """So do paths of clients for other uses, and those of a base URL without `/v1`."""
    client = responses_gateway.client
    with pytest.raises(openai.NotFoundError, match=r"agents answer POST /v1/chat/completions"):
        await client.completions.create(model="default", prompt="x")
    with pytest.raises(openai.NotFoundError, match=r"POST /v1/embeddings is not supported"):
        await client.embeddings.create(model="default", input="x")
    bare = client.with_options(base_url=responses_gateway.process.url)
    with pytest.raises(openai.NotFoundError, match="end the base URL of the client with /v1"):
        await bare.responses.create(model="default", input="x")

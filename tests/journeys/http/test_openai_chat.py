"""OpenAI's own client talks to a gateway's agents, and gets the responses that OpenAI would send."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseIncompleteEvent

from api_server import ApiClient
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, echo, spoken

PIXEL = base64.b64encode(
    bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02")
).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIChatGateway:
    """A gateway whose default agent is a shell, with a second agent on a model, and OpenAI's client."""

    process: GatewayProcess
    client: AsyncOpenAI
    mine: ApiClient
    model: OpenAIServer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def openai_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenAIChatGateway]:
    """Run a gateway with a shell (`shell`) and an agent on a loopback model (`default`)."""
    async with OpenAIServer(echo) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        async with gateway(tmp_path_factory.mktemp("openai") / "data", env=env) as process:
            client = AsyncOpenAI(base_url=f"{process.url}/v1", api_key=process.key, max_retries=2)
            async with client, process.http() as session:
                mine = ApiClient(session=session, url=process.url, key=process.key)
                shell = {"name": "shell", "config": {"model": "builtin:shell"}}
                assert (await mine.call("POST", "/accounts/me/agents", shell)).status == 201
                yield OpenAIChatGateway(process=process, client=client, mine=mine, model=model)


pytestmark = pytest.mark.asyncio(loop_scope="module")


def user(text: str) -> ChatCompletionMessageParam:
    """Return a user's message."""
    return {"role": "user", "content": text}


async def test_agents_are_listed_as_models(openai_gateway: OpenAIChatGateway) -> None:
    """The models of the account are its agents, each found by its name."""
    names = [model.id async for model in openai_gateway.client.models.list()]
    assert sorted(names) == ["default", "shell"]
    assert (await openai_gateway.client.models.retrieve("shell")).owned_by == "dovecote"
    with pytest.raises(openai.NotFoundError):
        await openai_gateway.client.models.retrieve("gpt-unknown")


async def test_a_completion_is_a_turn(openai_gateway: OpenAIChatGateway) -> None:
    """The answer has the agent's text and usage; the turn is found by the completion's id."""
    made = await openai_gateway.client.chat.completions.create(
        model="default", messages=[user("hello there")], temperature=0.2
    )
    assert (made.choices[0].message.content, made.choices[0].finish_reason) == ("echo: hello there", "stop")
    assert made.usage is not None
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (10, 5)
    assert made.id.startswith("chatcmpl-")
    turn = (await openai_gateway.mine.call("GET", f"/status/{made.id}")).body
    assert (turn["state"], turn["output"]) == ("completed", "echo: hello there")


async def test_an_agent_without_a_model_uses_the_operators(openai_gateway: OpenAIChatGateway) -> None:
    """A record without `model`, or with the model "default", is answered by the operator's model."""
    try:
        for name, config in (("plain", {}), ("named", {"model": "default"})):
            made = await openai_gateway.mine.call(
                "POST", "/accounts/me/agents", {"name": name, "config": config}
            )
            assert made.status == 201
            said = await openai_gateway.client.chat.completions.create(model=name, messages=[user("hi")])
            assert said.choices[0].message.content == "echo: hi"
    finally:
        for name in ("plain", "named"):
            await openai_gateway.mine.call("DELETE", f"/accounts/me/agents/{name}")


async def test_a_completion_streams_while_the_model_writes(openai_gateway: OpenAIChatGateway) -> None:
    """Chunks come in order, make the whole answer, and end with what was used."""
    stream = await openai_gateway.client.chat.completions.create(
        model="default",
        messages=[user("one two three four")],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    words = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(words) == "echo: one two three four"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 15


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_answer_that_is_cut_has_the_models_finish_reason(
    openai_gateway: OpenAIChatGateway, reason: str
) -> None:
    """Whole and streamed; its text says so too."""
    completions, messages = openai_gateway.client.chat.completions, [user(f"cut: {reason}")]
    whole = (await completions.create(model="default", messages=messages)).choices[0]
    stream = await completions.create(model="default", messages=messages, stream=True)
    reasons = [chunk.choices[0].finish_reason async for chunk in stream]
    assert (whole.finish_reason, reasons[-1]) == (reason, reason)
    assert (whole.message.content or "").startswith("This is long and\n\n(The answer ends here")


@pytest.mark.parametrize(
    ("cut", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_a_response_that_is_cut_is_incomplete(
    openai_gateway: OpenAIChatGateway, cut: str, reason: str
) -> None:
    """Whole, streamed and read later; the client's type of the stream's last event is OpenAI's."""
    responses, question = openai_gateway.client.responses, f"cut: {cut}"
    whole = await responses.create(model="default", input=question)
    stream = await responses.create(model="default", input=question, stream=True)
    last = [event async for event in stream][-1]
    assert isinstance(last, ResponseIncompleteEvent)
    for response in (whole, last.response, await responses.retrieve(whole.id)):
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == reason
        assert response.output_text.startswith("This is long and\n\n(The answer ends here")


async def test_an_sdk_that_repeats_a_request_after_a_time_out_joins_its_turn(
    openai_gateway: OpenAIChatGateway,
) -> None:
    """The stock client's own retries wait for the turn of the first attempt; a later request is new."""
    impatient = openai_gateway.client.with_options(timeout=3.0, max_retries=60)
    said = [user("!sleep 7; echo patience")]
    first = await impatient.chat.completions.create(model="shell", messages=said)
    listed = (await openai_gateway.mine.call("GET", "/turns")).body["items"]
    (turn,) = [turn["id"] for turn in listed if "patience" in turn["input"]]
    assert first.id == f"chatcmpl-{turn.removeprefix('trn_')}"
    assert "patience" in str(first.choices[0].message.content)
    second = await openai_gateway.client.chat.completions.create(model="shell", messages=said)
    assert second.id != first.id


async def test_an_idempotency_key_replays_a_stream(openai_gateway: OpenAIChatGateway) -> None:
    """The same key gets the same turn again, from its beginning; another body with it is refused."""
    create = openai_gateway.client.chat.completions.create
    key = {"Idempotency-Key": "stream-key"}
    received = []
    for _ in range(2):
        stream = await create(model="default", messages=[user("once only")], stream=True, extra_headers=key)
        chunks = [chunk async for chunk in stream]
        words = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        received.append((chunks[0].id, "".join(words)))
    assert received[0] == received[1]
    assert received[0][1] == "echo: once only"
    with pytest.raises(openai.UnprocessableEntityError):
        await create(model="shell", messages=[user("once only")], stream=True, extra_headers=key)


async def test_a_shell_runs_only_what_is_said_now(openai_gateway: OpenAIChatGateway) -> None:
    """A command of an earlier message is history, and does not run again."""
    said: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "!echo from the system"},
        user("hello\n!echo earlier"),
        {"role": "assistant", "content": "earlier"},
        user("!echo now"),
    ]
    made = await openai_gateway.client.chat.completions.create(model="shell", messages=said)
    log = (await openai_gateway.mine.call("GET", f"/turns/{made.id}/log")).body["items"]
    assert [step["args"]["command"] for step in log] == ["echo now"]
    assert "now" in str(made.choices[0].message.content)


async def test_earlier_messages_reach_a_model_without_a_conversation(
    openai_gateway: OpenAIChatGateway,
) -> None:
    """The client's whole history begins a conversation; after that, the agent has its own."""
    said: list[ChatCompletionMessageParam] = [
        user("the number is 7"),
        {"role": "assistant", "content": "noted"},
        user("which number?"),
    ]
    await openai_gateway.client.chat.completions.create(model="default", messages=said)
    sent = [("user", "the number is 7"), ("assistant", "noted"), ("user", "which number?")]
    assert spoken(openai_gateway.model.bodies[-1]) == sent
    for text in ("the number is 8", "which one?"):
        await openai_gateway.client.chat.completions.create(
            model="default", messages=[*said[:2], user(text)], extra_body={"conversation": "kept"}
        )
    remembered = openai_gateway.model.bodies[-1]["messages"]
    assert [str(one["content"]) for one in remembered if one["role"] == "user"] == [
        "the number is 7",
        "the number is 8",
        "which one?",
    ]


async def test_pictures_go_to_the_model(openai_gateway: OpenAIChatGateway) -> None:
    """A picture in a data: URL is an attachment of the turn; any other address is refused, never fetched."""
    parts: list[Any] = [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]
    await openai_gateway.client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": parts}]
    )
    content = openai_gateway.model.bodies[-1]["messages"][-1]["content"]
    assert any(one.get("type") == "image_url" for one in content if isinstance(one, dict))
    parts[1]["image_url"]["url"] = "http://127.0.0.1:9/x.png"
    with pytest.raises(openai.UnprocessableEntityError, match="not fetched"):
        await openai_gateway.client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": parts}]
        )


async def test_audio_is_a_file_of_the_question(openai_gateway: OpenAIChatGateway) -> None:
    """The agent gets it as an attachment, also from a `data:` URL whose media type has parameters."""
    sound = base64.b64encode(b"RIFF0000WAVEfmt ").decode()
    recorded = {"file_data": f"data:audio/wav;codecs=1;base64,{sound}", "filename": "note.wav"}
    parts: list[Any] = [
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "file", "file": recorded},
    ]
    await openai_gateway.client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": parts}]
    )
    content = str(openai_gateway.model.bodies[-1]["messages"][-1]["content"])
    assert "inbox/audio-1.wav, 16 bytes, audio/wav" in content
    assert "inbox/note.wav, 16 bytes, audio/wav" in content


@pytest.mark.parametrize(
    "part",
    [
        {"type": "video_url", "video_url": {"url": "https://127.0.0.1:9/x.mp4"}},
        {"type": "input_file", "file_url": "https://127.0.0.1:9/x.pdf"},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,bm8gaW1hZ2U="}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}},
    ],
)
async def test_a_part_that_the_agent_would_not_get_is_refused(
    openai_gateway: OpenAIChatGateway, part: Any
) -> None:
    """The rest of the question alone would be answered wrongly."""
    content: Any = [{"type": "text", "text": "what is it?"}, part]
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await openai_gateway.client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": content}]
        )
    assert refused.value.param == "messages[0].content[1]"


async def test_what_an_agent_cannot_do_is_refused(openai_gateway: OpenAIChatGateway) -> None:
    """Old functions, two choices, an unknown agent and an empty question are errors."""
    create: Any = openai_gateway.client.chat.completions.create
    refused: list[dict[str, Any]] = [
        {"messages": [user("x")], "functions": [{"name": "f", "parameters": {}}]},
        {"messages": [user("x")], "n": 2},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "x"}], "extra_body": {"conversation": "named"}},
    ]
    for wrong in refused:
        with pytest.raises(openai.UnprocessableEntityError):
            await create(model="default", **wrong)
    with pytest.raises(openai.NotFoundError, match="no agent") as unknown:
        await create(model="gpt-unknown", messages=[user("x")])
    assert (unknown.value.code, unknown.value.type) == ("model_not_found", "invalid_request_error")
    with pytest.raises(openai.UnprocessableEntityError) as invalid:
        await create(model="default", messages=[{"role": "user", "content": 7}])
    assert (invalid.value.code, invalid.value.param) == ("invalid_value", "messages[0].content")
    calling = {"role": "assistant", "content": 7, "tool_calls": []}
    with pytest.raises(openai.UnprocessableEntityError):
        await create(model="default", messages=[calling, user("x")])
    outsider = openai_gateway.client.with_options(api_key="dvk_unknown")
    with pytest.raises(openai.AuthenticationError) as refusal:
        await outsider.models.list()
    assert refusal.value.code == "invalid_api_key"


async def test_an_answer_waits_for_the_decision_of_a_person(openai_gateway: OpenAIChatGateway) -> None:
    """The stream shows what it waits for, and goes on after the approval."""
    stream = await openai_gateway.client.chat.completions.create(
        model="default", messages=[user("run: echo approved")], stream=True
    )
    words, decided = "", False
    async with asyncio.timeout(60):
        async for chunk in stream:
            words += chunk.choices[0].delta.content or ""
            if "waiting for approval" in words and not decided:
                decided = True
                (asked,) = (await openai_gateway.mine.call("GET", "/approvals?state=pending")).body["items"]
                await openai_gateway.mine.call("POST", f"/approvals/{asked['id']}", {"decision": "approve"})
    assert decided
    assert "approved" in words.partition("]")[2]


async def test_a_cancelled_turn_is_an_error_that_is_not_asked_again(
    openai_gateway: OpenAIChatGateway,
) -> None:
    """A cancelled turn ends the completion with its reason; the client asks once."""
    asking = asyncio.create_task(
        openai_gateway.client.chat.completions.create(
            model="shell", messages=[user("!sleep 300")], extra_body={"conversation": "long"}
        )
    )
    async with asyncio.timeout(60):
        while not (turns := await _turns_of(openai_gateway, "long")):  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.05)
    await openai_gateway.mine.call("POST", f"/turns/{turns[0]}/cancel")
    with pytest.raises(openai.APIStatusError, match="cancelled") as refused:
        await asking
    assert refused.value.status_code == 424
    assert len(await _turns_of(openai_gateway, "long")) == 1


async def test_a_client_that_goes_away_ends_nothing(openai_gateway: OpenAIChatGateway) -> None:
    """The turn of an abandoned stream goes on to its end, and nothing is logged as a failure."""
    stream = await openai_gateway.client.chat.completions.create(
        model="shell",
        messages=[user("!echo one; sleep 1; echo home")],
        stream=True,
        extra_body={"conversation": "left"},
    )
    first = await anext(aiter(stream))
    await stream.close()
    async with asyncio.timeout(60):
        path = f"/status/{first.id}"
        turn = (await openai_gateway.mine.call("GET", path)).body
        while turn["state"] != "completed":
            await asyncio.sleep(0.05)
            turn = (await openai_gateway.mine.call("GET", path)).body
    assert "home" in turn["output"]
    await openai_gateway.client.models.retrieve("shell")
    assert not [line for line in openai_gateway.process.log if "[error" in line or "Traceback" in line]


async def _turns_of(harness: OpenAIChatGateway, conversation: str) -> list[str]:
    answer = await harness.mine.call("GET", f"/conversations/{conversation}/snapshot")
    if answer.status != 200:
        return []
    return [message["turn"] for message in answer.body["messages"] if message["role"] == "user"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deleted_conversation_ends_the_request(
    openai_gateway: OpenAIChatGateway, stream: bool
) -> None:
    """A request that waits for an answer fails at once, with the reason."""
    mine, known = openai_gateway.mine, await _conversations(openai_gateway.mine)

    async def wait_for_answer() -> None:
        messages = [user("!sleep 600")]
        if not stream:
            await openai_gateway.client.chat.completions.create(model="shell", messages=messages)
            return
        pieces = await openai_gateway.client.chat.completions.create(
            model="shell", messages=messages, stream=True
        )
        async for _piece in pieces:
            pass

    waiting = asyncio.create_task(wait_for_answer())
    async with asyncio.timeout(60):
        while not (made := await _conversations(mine) - known):  # noqa: ASYNC110 - the gateway is another process
            await asyncio.sleep(0.05)
        assert (await mine.call("DELETE", f"/conversations/{made.pop()}")).status == 204
        with pytest.raises(openai.APIError, match="deleted"):
            await waiting


async def _conversations(client: ApiClient) -> set[str]:
    return {one["id"] for one in (await client.call("GET", "/conversations?limit=100")).body["items"]}

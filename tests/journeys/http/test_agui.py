"""A user interface that speaks AG-UI 1.0 runs agents; AG-UI's own models check every event."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from ag_ui.core import Event, RunAgentInput
from pydantic import TypeAdapter

from api_server import ApiClient
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, echo, last_text, spoken

EVENT: TypeAdapter[Any] = TypeAdapter(Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class AguiGateway:
    """A gateway with an agent on a loopback model (`default`), and a shell."""

    process: GatewayProcess
    mine: ApiClient
    model: OpenAIServer

    async def run(
        self, thread: str, *messages: dict[str, Any], agent: str | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        """Run an agent, and return the run's events, each one valid and all in order."""
        given = {"threadId": thread, "runId": "run-1", "messages": list(messages), "state": {}, "tools": []}
        asked = RunAgentInput.model_validate(given | {"context": [], "forwardedProps": {}} | more)
        path = "/agui" if agent is None else f"/agui?agent={agent}"
        answer = await self.mine.call("POST", path, asked.model_dump(by_alias=True, mode="json"))
        assert answer.status == 200, answer.body
        return checked(answer.body.decode())


def checked(stream: str) -> list[dict[str, Any]]:
    """Return a stream's events; what is opened is closed, and the run is opened first and closed last."""
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line[:5] == "data:"]
    opened: list[str] = []
    for event in events:
        EVENT.validate_python(event)
        kind, named = event["type"], event.get("messageId") or event.get("toolCallId") or ""
        if kind.endswith("_START"):
            opened.append(named)
        elif kind in {"TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS"}:
            assert opened[-1] == named
        elif kind.endswith("_END"):
            assert opened.pop() == named
    assert not opened
    assert events[0]["type"] == "RUN_STARTED"
    assert [event["type"] for event in events if event["type"] in {"RUN_FINISHED", "RUN_ERROR"}] == [
        events[-1]["type"]
    ]
    return events


def text_of(events: list[dict[str, Any]]) -> str:
    """Return the text of a run."""
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


def user(text: Any) -> dict[str, Any]:
    """Return a user's message."""
    return {"id": "m", "role": "user", "content": text}


def waiter(body: dict[str, Any]) -> ScriptedTurn:
    """Ask what to bring for `order`; echo anything else."""
    if last_text(body) == "order" and body["messages"][-1]["role"] == "user":
        args = {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]}
        return ScriptedTurn(calls=[ToolCall(name="ask_person", args=args)])
    return echo(body)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agui(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AguiGateway]:
    """Run a gateway with both agents."""
    async with OpenAIServer(waiter) as model:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": model.base_url}
        data = tmp_path_factory.mktemp("agui") / "data"
        async with gateway(data, env=env) as process, process.http() as session:
            mine = ApiClient(session=session, url=process.url, key=process.key)
            assert (await mine.call("POST", "/accounts/me/workspaces", {"name": "files"})).status == 201
            places = [{"name": "files", "workspaceId": "files"}]
            shell_config = {"model": "builtin:shell", "workspaces": places, "sandbox": "default"}
            shell = {"name": "shell", "config": shell_config}
            assert (await mine.call("POST", "/accounts/me/agents", shell)).status == 201
            yield AguiGateway(process=process, mine=mine, model=model)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_run_is_a_turn_of_its_threads_conversation(agui: AguiGateway) -> None:
    """The answer comes as a message with its usage; the next run of the thread remembers it."""
    events = await agui.run("talk", user("my number is 7"))
    assert text_of(events) == "echo: my number is 7"
    assert events[-1]["outcome"] == {"type": "success"}
    assert events[-1]["usage"][0]["totalTokens"] == 15
    turn = events[0]["metadata"]["dovecote"]["turnId"]
    assert (await agui.mine.call("GET", f"/status/{turn}")).body["state"] == "completed"
    answered = {"id": "a", "role": "assistant", "content": text_of(events)}
    await agui.run("talk", user("my number is 7"), answered, user("which?"))
    asked = [str(one["content"]) for one in agui.model.bodies[-1]["messages"] if one["role"] == "user"]
    assert asked == ["my number is 7", "which?"]


async def test_a_thread_of_another_store_goes_on(agui: AguiGateway) -> None:
    """The earlier messages of a new thread are the agent's history, with calls and results."""
    made = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    calling = {"id": "a", "role": "assistant", "toolCalls": [made]}
    found = {"id": "b", "role": "tool", "toolCallId": "c", "content": "found"}
    answered = {"id": "d", "role": "assistant", "content": "it is there"}
    await agui.run("restored", user("look"), calling, found, answered, user("where?"))
    assert spoken(agui.model.bodies[-1]) == [
        ("user", "look"),
        ("assistant", ["{}"]),
        ("tool", "found"),
        ("assistant", "it is there"),
        ("user", "where?"),
    ]


async def test_tool_calls_are_streamed_with_their_results(agui: AguiGateway) -> None:
    """A shell's command is a call with its arguments and its output."""
    events = await agui.run("shell", user("!echo called"), agent="shell")
    calls = {event["type"]: event for event in events if event["type"].startswith("TOOL_CALL")}
    assert list(calls) == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    assert json.loads(calls["TOOL_CALL_ARGS"]["delta"]) == {"command": "echo called"}
    assert "called" in calls["TOOL_CALL_RESULT"]["content"]


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_interrupts_a_run_and_the_next_one_goes_on(
    agui: AguiGateway, *, approved: bool
) -> None:
    """The run ends with the question; its answer begins a run with only the later events."""
    thread = f"careful-{approved}"
    events = await agui.run(thread, user("run: echo done-by-hand"))
    assert events[-1]["outcome"]["type"] == "interrupt"
    (asked,) = events[-1]["outcome"]["interrupts"]
    assert "echo done-by-hand" in asked["message"]
    answer = {"interruptId": asked["id"], "status": "resolved", "payload": {"approved": approved}}
    more = await agui.run(thread, user("run: echo done-by-hand"), resume=[answer])
    assert more[-1]["outcome"] == {"type": "success"}
    ran = [event for event in more if event["type"] == "TOOL_CALL_RESULT"]
    assert bool(ran) is approved
    assert "result:" in text_of(more)


async def test_an_abandoned_interrupt_denies(agui: AguiGateway) -> None:
    """A cancelled interrupt, and anything less than a clear yes, runs nothing."""
    (asked,) = (await agui.run("left", user("run: echo x")))[-1]["outcome"]["interrupts"]
    answer = {"interruptId": asked["id"], "status": "cancelled", "payload": {"approved": True}}
    await agui.run("left", resume=[answer])
    shown = (await agui.mine.call("GET", f"/approvals/{asked['id']}")).body
    assert shown["state"] == "denied"


async def test_a_question_interrupts_a_run_and_its_answer_continues_it(agui: AguiGateway) -> None:
    """The interrupt has the choices; an approval in place of an answer is refused and decides nothing."""
    (asked,) = (await agui.run("order", user("order")))[-1]["outcome"]["interrupts"]
    assert (asked["reason"], asked["message"]) == ("question", "Tea or coffee?")
    assert asked["responseSchema"]["properties"]["answer"]["enum"] == ["Tea", "Coffee"]
    given = {"threadId": "order", "runId": "run-2", "messages": []}
    for payload in ({"approved": True}, {"answer": "Water"}):
        answer = {"interruptId": asked["id"], "status": "resolved", "payload": payload}
        refused = await agui.mine.call("POST", "/agui", {**given, "resume": [answer]})
        assert (refused.status, refused.body["errors"][0]["pointer"]) == (422, "/resume/0/payload")
    answer = {"interruptId": asked["id"], "status": "resolved", "payload": {"answer": "coffee"}}
    more = await agui.run("order", resume=[answer])
    assert more[-1]["outcome"] == {"type": "success"}
    assert "Coffee" in text_of(more)


async def test_files_of_a_person_lie_in_the_workspace(agui: AguiGateway) -> None:
    """A part that holds bytes is an attachment, also with no words beside it."""
    source = {"type": "data", "value": base64.b64encode(b"a,b\n").decode(), "mimeType": "text/csv"}
    await agui.run("files", user([{"type": "document", "source": source}]), agent="shell")
    events = await agui.run("files", user("!cat inbox/document-1.csv"), agent="shell")
    assert "a,b" in text_of(events)


async def test_files_in_the_form_of_earlier_versions_are_read(agui: AguiGateway) -> None:
    """Clients before version 1.0 of the protocol send `binary` parts; one without bytes is refused."""
    content = base64.b64encode(b"c,d\n").decode()
    part = {"type": "binary", "mimeType": "text/csv", "data": content}
    body = {"threadId": "earlier", "runId": "first", "messages": [user([part])]}
    headers = {"Authorization": f"Bearer {agui.mine.key}"}
    async with agui.mine.session.post("/agui?agent=shell", json=body, headers=headers) as answer:
        assert "RUN_FINISHED" in await answer.text()
    events = await agui.run("earlier", user("!cat inbox/*.csv"), agent="shell")
    assert "c,d" in text_of(events)
    words = {"type": "text", "text": "see"}
    for wrong in ({"type": "binary", "mimeType": "text/csv", "id": "f1"}, {"type": "image"}):
        body = {"threadId": "t", "runId": "r", "messages": [user([words, wrong])]}
        refused = await agui.mine.call("POST", "/agui", body)
        assert (refused.status, wrong["type"] in str(refused.body)) == (422, True), refused.body


async def test_the_agent_gets_the_context_of_the_application(agui: AguiGateway) -> None:
    """It is a part of the turn's instructions, and of no later turn's."""
    page = {"description": "the open page", "value": "/orders/7"}
    system = {"id": "s", "role": "system", "content": "Be brief."}
    await agui.run("page", system, user("hi"), context=[page])
    instructions = str(agui.model.bodies[-1]["messages"][0]["content"])
    assert "the open page: /orders/7\n\nBe brief." in instructions
    await agui.run("page", user("again"), runId="run-2")
    assert "the open page" not in str(agui.model.bodies[-1]["messages"][0]["content"])


async def test_a_cancelled_turn_ends_its_run(agui: AguiGateway) -> None:
    """The run is reported as cancelled: neither failed nor finished."""
    body = {"threadId": "long", "runId": "r", "messages": [user("!sleep 300")]}
    headers = {"Authorization": f"Bearer {agui.mine.key}"}
    async with agui.mine.session.post("/agui?agent=shell", json=body, headers=headers) as answer:
        first = await answer.content.readline()
        turn = json.loads(first.removeprefix(b"data: "))["metadata"]["dovecote"]["turnId"]
        await agui.mine.call("POST", f"/turns/{turn}/cancel")
        events = checked((first + await answer.read()).decode())
    assert events[-1]["outcome"] == {"type": "cancelled"}


async def test_what_cannot_be_run_is_refused(agui: AguiGateway) -> None:
    """No question, two tools with one name, unknown agents and interrupts are problems, not runs."""
    body: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": [user("x")]}
    tool = {"name": "bash", "description": "", "parameters": {}}
    answer = {"interruptId": "apr_none", "status": "resolved", "payload": True}
    text = base64.b64encode(b"no image").decode()
    image = {"type": "image", "source": {"type": "data", "value": text, "mimeType": "image/png"}}
    for path, more, status in (
        ("/agui", {"messages": []}, 422),
        ("/agui", {"messages": [user([image])]}, 422),
        ("/agui", {"messages": [{"id": "a", "role": "activity", "content": {"any": 1}}]}, 422),
        ("/agui", {"tools": [tool, tool]}, 422),
        ("/agui?agent=nobody", {}, 404),
        ("/agui", {"resume": [answer]}, 404),
        ("/agui", {"threadId": "cnv_none"}, 404),
    ):
        reported = await agui.mine.call("POST", path, body | more)
        assert reported.status == status, (path, more, reported.body)


async def test_the_same_run_is_the_same_turn(agui: AguiGateway) -> None:
    """A run that is repeated, with or without a key, is replayed; with another message it is a new one."""
    body: dict[str, Any] = {"threadId": "again", "runId": "one", "messages": [user("hello")]}
    reported = []
    for key in ({}, {}, {"Idempotency-Key": "run-key"}, {"Idempotency-Key": "run-key"}):
        headers = {"Authorization": f"Bearer {agui.mine.key}"} | key
        async with agui.mine.session.post("/agui", json=body, headers=headers) as answer:
            events = checked(await answer.text())
        reported.append((events[0]["metadata"]["dovecote"]["turnId"], text_of(events)))
    assert set(reported) == {(reported[0][0], "echo: hello")}
    other = await agui.run("again", user("bye"))
    assert other[0]["metadata"]["dovecote"]["turnId"] != reported[0][0]

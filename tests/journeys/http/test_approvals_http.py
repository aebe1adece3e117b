"""A model's command waits for an approval over HTTP, through SIGKILL, and runs once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, Script, ScriptedTurn, ToolCall, echo, last_text


@asynccontextmanager
async def model_gateway(data: Path, script: Script) -> AsyncIterator[tuple[GatewayProcess, OpenAIServer]]:
    """Run a gateway whose default agent asks a loopback model."""
    async with OpenAIServer(script) as server:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": server.base_url}
        async with gateway(data, env=env) as process:
            yield process, server


async def call(process: GatewayProcess, method: str, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """Make one request as the default account."""
    async with process.http() as session, session.request(method, path, json=body or None) as answer:
        return answer.status, dict(await answer.json())


async def start_turn(process: GatewayProcess, text: str) -> dict[str, Any]:
    """Queue a turn for the default agent."""
    status, queued = await call(
        process, "POST", "/agents/default/turns", input=text, conversation="approvals"
    )
    assert status == 202, queued
    return queued


async def events_until(
    process: GatewayProcess, conversation: str, kind: str, count: int = 1
) -> list[dict[str, Any]]:
    """Follow a conversation until `count` events of a kind have come; return all events up to there."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(30), process.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": conversation, "after": 0})
        async for frame in socket:
            events.append(frame.json())
            if sum(event["type"] == kind for event in events) == count:
                return events
    raise AssertionError(f"no {kind} among {[event['type'] for event in events]}")


def of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the data of the events of one kind."""
    return [event["data"] for event in events if event["type"] == kind]


async def test_an_approved_command_runs_once_through_kill_9(tmp_path: Path) -> None:
    """Asked, killed, started and approved twice, the command runs once and the model reports its result."""
    async with model_gateway(tmp_path / "data", echo) as (process, server):
        queued = await start_turn(process, "run: echo pigeon >> ran.txt; cat ran.txt")
        conversation = queued["conversationId"]
        events = await events_until(process, conversation, "approval.requested")
        (asked,) = of_kind(events, "approval.requested")
        assert asked["command"] == "echo pigeon >> ran.txt; cat ran.txt"
        await process.kill()
        await process.start()
        _, status = await call(process, "GET", f"/status/{queued['turnId']}")
        assert status["state"] == "waiting"
        approval = f"/approvals/{asked['approval']}"
        assert (await call(process, "POST", approval, decision="approve"))[0] == 200
        assert (await call(process, "POST", approval, decision="approve"))[0] == 200
        refused, problem = await call(process, "POST", approval, decision="deny")
        assert (refused, problem["winner"]["state"]) == (409, "approved")
        assert problem["winner"]["decided_name"] == 'key "default"'
        events = await events_until(process, conversation, "turn.completed")
    (ran,) = of_kind(events, "tool.completed")
    assert ran["output"].count("pigeon") == 1
    (answer,) = (one for one in of_kind(events, "message.completed") if one["role"] == "assistant")
    assert "pigeon" in answer["text"]
    assert server.requests == 2


async def test_a_denied_command_never_runs_and_the_comment_reaches_the_model(tmp_path: Path) -> None:
    """A denial ends in the model's own words about it, with no tool called."""
    async with model_gateway(tmp_path / "data", echo) as (process, server):
        queued = await start_turn(process, "run: rm -r everything")
        events = await events_until(process, queued["conversationId"], "approval.requested")
        (asked,) = of_kind(events, "approval.requested")
        await call(
            process, "POST", f"/approvals/{asked['approval']}", decision="deny", comment="not on a Friday"
        )
        events = await events_until(process, queued["conversationId"], "turn.completed")
    assert of_kind(events, "tool.called") == []
    assert "not on a Friday" in last_text(server.bodies[1])


async def test_a_waiting_turn_can_be_cancelled(tmp_path: Path) -> None:
    """Cancelling a turn that waits for an approval settles it; the approval can no longer be given."""
    async with model_gateway(tmp_path / "data", echo) as (process, server):
        queued = await start_turn(process, "run: sleep 1")
        events = await events_until(process, queued["conversationId"], "approval.requested")
        (asked,) = of_kind(events, "approval.requested")
        await call(process, "POST", f"/turns/{queued['turnId']}/cancel")
        await events_until(process, queued["conversationId"], "turn.cancelled")
        status, _ = await call(process, "POST", f"/approvals/{asked['approval']}", decision="approve")
        assert status == 409
    assert server.requests == 1


async def test_cancelling_a_streaming_turn_cuts_the_model_off(tmp_path: Path) -> None:
    """The model's server sees the connection go when a person stops the turn."""
    script = [ScriptedTurn(text="a long story", fault="stall")]
    async with model_gateway(tmp_path / "data", script) as (process, server):
        queued = await start_turn(process, "tell me")
        async with asyncio.timeout(20):
            await server.streaming.wait()
            await call(process, "POST", f"/turns/{queued['turnId']}/cancel")
            await server.left.wait()
        await events_until(process, queued["conversationId"], "turn.cancelled")
    assert server.disconnects == 1


async def test_a_jobs_result_is_reported_by_the_model(tmp_path: Path) -> None:
    """The result of a model's background job is a follow-up turn, marked as untrusted."""

    def script(body: dict[str, Any]) -> ScriptedTurn:
        text = last_text(body)
        if body["messages"][-1]["role"] == "tool":
            return ScriptedTurn(text="Started.")
        if "job-result-" in text:
            return ScriptedTurn(text="The job said pigeon." if "pigeon" in text else "The job said nothing.")
        job = {"command": "echo pigeon", "background": True}
        return ScriptedTurn(calls=[ToolCall(name="bash", args=job)])

    async with model_gateway(tmp_path / "data", script) as (process, server):
        queued = await start_turn(process, "start it")
        conversation = queued["conversationId"]
        (asked,) = of_kind(
            await events_until(process, conversation, "approval.requested"), "approval.requested"
        )
        await call(process, "POST", f"/approvals/{asked['approval']}", decision="approve")
        events = await events_until(process, conversation, "turn.completed", 2)
    texts = [one["text"] for one in of_kind(events, "message.completed") if one["role"] == "assistant"]
    assert texts == ["Started.", "The job said pigeon."]
    assert "untrusted" in last_text(server.bodies[-1])


def change_files(body: dict[str, Any]) -> ScriptedTurn:
    """Ask for a change of one file and the replacement of another, once."""
    if body["messages"][-1]["role"] == "tool":
        return ScriptedTurn(text="done")
    edited = {"path": "notes.txt", "old_text": "two\n", "new_text": "TWO\n"}
    calls = (
        ToolCall(name="edit", args=edited),
        ToolCall(name="write", args={"path": "notes.txt", "content": "zero\none\ntwo\nthree\n"}),
        ToolCall(name="write", args={"path": "new.txt", "content": "fresh\n"}),
    )
    return ScriptedTurn(calls=calls)


NOTES = "/accounts/me/workspaces/default/files/notes.txt"


async def _put_notes(process: GatewayProcess, text: str) -> None:
    async with process.http() as session, session.put(NOTES, data=text.encode()) as stored:
        assert stored.status < 300


async def test_a_change_of_a_file_is_asked_as_a_diff(tmp_path: Path) -> None:
    """The question has the changed lines of the present file; a new file is shown as a whole.

    A file that changes before the decisions is asked about again, with what the call would change now.
    """
    async with model_gateway(tmp_path / "data", change_files) as (process, _server):
        await _put_notes(process, "one\ntwo\nthree\n")
        queued = await start_turn(process, "change the notes")
        events = await events_until(process, queued["conversationId"], "approval.requested", 3)
        edit, write, new = (asked["question"] for asked in of_kind(events, "approval.requested"))
        assert "    @@ -1,3 +1,3 @@\n     one\n    -two\n    +TWO\n     three\n" in edit
        assert "    @@ -1,3 +1,4 @@\n    +zero\n     one\n" in write
        assert "    -TWO\n    +two\n" in write, "the second call finds what the first one wrote"
        assert "changes to the present file" not in new
        assert "    fresh" in new
        await _put_notes(process, "one\ntwo\nfour\n")
        for one in of_kind(events, "approval.requested"):
            await call(process, "POST", f"/approvals/{one['approval']}", decision="approve")
        conversation = queued["conversationId"]
        events = await events_until(process, conversation, "approval.requested", 5)
        edit, write = of_kind(events, "approval.requested")[3:]
        assert "     one\n    -two\n    +TWO\n     four\n" in edit["question"]
        assert "the file or the sandbox was changed" in edit["reason"]
        assert "    -four\n    +two\n    +three\n" in write["question"]
        for one in (edit, write):
            await call(process, "POST", f"/approvals/{one['approval']}", decision="approve")
        await events_until(process, conversation, "turn.completed")
        async with process.http() as session, session.get(NOTES) as stored:
            assert await stored.text() == "zero\none\ntwo\nthree\n"


def ask_who_wants_what(body: dict[str, Any]) -> ScriptedTurn:
    """Play a model that asks a question, and repeats the answer."""
    if body["messages"][-1]["role"] == "tool":
        return ScriptedTurn(text=f"result: {last_text(body)}", pieces=1)
    if last_text(body) == "order":
        args = {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]}
        return ScriptedTurn(calls=[ToolCall(name="ask_person", args=args)])
    return ScriptedTurn(text=f"heard: {last_text(body)}", pieces=1)


async def test_a_question_is_answered_after_kill_9_and_a_person_takes_over(tmp_path: Path) -> None:
    """The question is listed with its kind and has one winner; then an operator speaks for the agent."""
    async with model_gateway(tmp_path / "data", ask_who_wants_what) as (process, server):
        queued = await start_turn(process, "order")
        (asked,) = of_kind(
            await events_until(process, queued["conversationId"], "question.requested"), "question.requested"
        )
        assert asked["choices"] == ["Tea", "Coffee"]
        await process.kill()
        await process.start()
        await _answer_question(process, asked["approval"], queued)
        await _take_over(process, queued["conversationId"])
        assert server.requests == 3


async def _answer_question(process: GatewayProcess, question: str, queued: dict[str, Any]) -> None:
    _, listed = await call(process, "GET", "/approvals?state=pending")
    (item,) = listed["items"]
    assert (item["kind"], item["question"], item["choices"]) == (
        "question",
        "Tea or coffee?",
        ["Tea", "Coffee"],
    )
    path = f"/approvals/{question}"
    assert (await call(process, "POST", path, answer="milk"))[0] == 422
    assert (await call(process, "POST", path, decision="approve"))[0] == 422
    assert (await call(process, "POST", path, comment="hm"))[0] == 422
    status, answered = await call(process, "POST", path, answer="2")
    assert (status, answered["state"], answered["answer"]) == (200, "answered", "Coffee")
    status, refused = await call(process, "POST", path, answer="Tea")
    assert (status, refused["winner"]["answer"]) == (409, "Coffee")
    events = await events_until(process, queued["conversationId"], "agent.finished")
    assert of_kind(events, "agent.finished")[0]["output"] == "result: Coffee"
    (reported,) = of_kind(events, "question.answered")
    assert reported["answer"] == "Coffee"


async def _take_over(process: GatewayProcess, conversation: str) -> None:
    one = f"/conversations/{conversation}"
    said = {"text": "I am Olga.", "as": "operator"}
    assert (await call(process, "POST", f"{one}/messages", **said))[0] == 409
    for _ in range(2):
        status, taken = await call(process, "POST", f"{one}/handover", state="human")
        assert (status, taken["state"]) == (200, "human")
    await call(process, "POST", f"{one}/messages", text="is anybody there?")
    events = await events_until(process, conversation, "turn.cancelled")
    assert len(of_kind(events, "handover.started")) == 1
    status, sent = await call(process, "POST", f"{one}/messages", **said)
    assert (status, sent["conversationId"]) == (202, conversation)
    assert (await call(process, "POST", f"{one}/handover", state="agent"))[1]["state"] == "agent"
    await call(process, "POST", f"{one}/messages", text="thanks")
    events = await events_until(process, conversation, "agent.finished", count=3)
    output = of_kind(events, "agent.finished")[-1]["output"]
    assert "is anybody there?" in output
    assert "I am Olga." in output
    operators = [one for one in of_kind(events, "message.completed") if one["role"] == "operator"]
    assert [one["text"] for one in operators] == ["I am Olga."]


async def test_turns_behind_one_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    """They end at once and never run, first and last in line; the rest runs after the approval."""
    async with model_gateway(tmp_path / "data", echo) as (process, server):
        queued = await start_turn(process, "run: echo pigeon")
        conversation = queued["conversationId"]
        events = await events_until(process, conversation, "approval.requested")
        (asked,) = of_kind(events, "approval.requested")
        first, second, last = [(await start_turn(process, text))["turnId"] for text in ("1", "2", "3")]
        for number, turn in enumerate((last, first), 1):
            await call(process, "POST", f"/turns/{turn}/cancel")
            await events_until(process, conversation, "turn.cancelled", number)
            _, status = await call(process, "GET", f"/status/{turn}")
            assert status["state"] == "cancelled"
        _, status = await call(process, "GET", f"/status/{queued['turnId']}")
        assert status["state"] == "waiting"
        await call(process, "POST", f"/approvals/{asked['approval']}", decision="approve")
        events = await events_until(process, conversation, "turn.completed", 2)
    started = {event["turn"] for event in events if event["type"] == "turn.started"}
    assert (started, server.requests) == ({queued["turnId"], second}, 3)

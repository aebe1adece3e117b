"""A2A's own client sends messages, follows tasks and cancels them, in both versions, through a kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import pytest_asyncio
from a2a.client import A2ACardResolver, A2AClientError, Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError

from api_server import ApiClient
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, echo, last_text

ADMIN_KEY = "an-admin-key-of-the-operator-in-tests"
VERSIONS = pytest.mark.parametrize("version", ["1.0", "0.3"])
DONE, WAITS = TaskState.TASK_STATE_COMPLETED, TaskState.TASK_STATE_INPUT_REQUIRED
pytestmark = pytest.mark.asyncio(loop_scope="module")


class SlowModel:
    """Asks what to bring for `order`, and answers the second `slow` once it is followed; echoes the rest."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.followed = asyncio.Event()

    def __call__(self, body: dict[str, Any]) -> ScriptedTurn:
        """Return the turn for a request."""
        text = last_text(body)
        if text == "order" and body["messages"][-1]["role"] == "user":
            args = {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]}
            return ScriptedTurn(calls=[ToolCall(name="ask_person", args=args)])
        if text == "slow" and not self.began.is_set():
            self.began.set()
            return ScriptedTurn(text="never", delay=600)
        return replace(echo(body), release=self.followed) if text == "slow" else echo(body)


@dataclass(frozen=True, slots=True, kw_only=True)
class A2aGateway:
    """A gateway with an agent on a loopback model."""

    process: GatewayProcess
    mine: ApiClient
    model: SlowModel

    @asynccontextmanager
    async def client(
        self, version: str = "1.0", *, key: str | None = None, streaming: bool = True
    ) -> AsyncIterator[Client]:
        """Connect the official client through the gateway's card, with a version of the protocol."""
        headers = {"Authorization": f"Bearer {key or self.mine.key}", "A2A-Version": version}
        async with httpx.AsyncClient(headers=headers, timeout=120) as http:
            card = await A2ACardResolver(http, self.process.url).get_agent_card()
            chosen = [one for one in card.supported_interfaces if one.protocol_version == version]
            del card.supported_interfaces[:]
            card.supported_interfaces.extend(chosen)
            config = ClientConfig(httpx_client=http, streaming=streaming)
            yield ClientFactory(config).create(card)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def a2a(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[A2aGateway]:
    """Run the gateway."""
    model = SlowModel()
    async with OpenAIServer(model) as server:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": server.base_url,
            "DOVECOTE_ADMIN_KEY": ADMIN_KEY,
        }
        data = tmp_path_factory.mktemp("a2a") / "data"
        async with gateway(data, env=env) as process, process.http() as session:
            mine = ApiClient(session=session, url=process.url, key=process.key)
            yield A2aGateway(process=process, mine=mine, model=model)


def message(text: str, number: str, **more: Any) -> SendMessageRequest:
    """Return a request with a message."""
    given = Message(message_id=number, role=Role.ROLE_USER, parts=[Part(text=text)], **more)
    return SendMessageRequest(message=given)


def text_of(task: Task) -> str:
    """Return the text of a task's artifacts."""
    return "".join(part.text for artifact in task.artifacts for part in artifact.parts)


def streamed_text(events: list[StreamResponse]) -> str:
    """Return the text of a stream's artifacts; a new artifact is no continuation."""
    texts: dict[str, str] = {}
    for event in events:
        if event.HasField("artifact_update"):
            update = event.artifact_update
            said = "".join(part.text for part in update.artifact.parts)
            before = texts.get(update.artifact.artifact_id, "") if update.append else ""
            texts[update.artifact.artifact_id] = before + said
    return "".join(texts.values())


def states_of(events: list[StreamResponse]) -> list[int]:
    """Return the states that a stream named, in order."""
    updates = [one.status_update.status.state for one in events if one.HasField("status_update")]
    return [events[0].task.status.state, *updates]


async def test_the_card_names_both_versions_and_a_key_sees_the_agents(a2a: A2aGateway) -> None:
    """The card is public; the extended one lists the account's agents as skills."""
    anonymous = ApiClient(session=a2a.mine.session, url=a2a.process.url, key="")
    card = (await anonymous.call("GET", "/.well-known/agent-card.json")).body
    assert [one["protocolVersion"] for one in card["supportedInterfaces"]] == ["1.0", "0.3"]
    assert card["url"] == f"{a2a.process.url}/a2a"
    async with a2a.client() as client:
        extended: AgentCard = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
    assert {"conversation", "default"} <= {skill.id for skill in extended.skills}


@VERSIONS
async def test_a_message_is_a_task_of_its_context(a2a: A2aGateway, version: str) -> None:
    """The task has the answer and the question; the same message again is the same task."""
    first = message("my number is 7", "m-1", context_id=f"talk {version}")
    async with a2a.client(version, streaming=False) as client:
        (reported,) = [one async for one in client.send_message(first)]
        assert (reported.task.status.state, text_of(reported.task)) == (DONE, "echo: my number is 7")
        assert reported.task.context_id == f"talk {version}"
        assert [part.text for said in reported.task.history for part in said.parts] == ["my number is 7"]
        (again,) = [one async for one in client.send_message(first)]
        assert again.task.id == reported.task.id
        second = message("and mine", "m-2", context_id=reported.task.context_id)
        (other,) = [one async for one in client.send_message(second)]
    assert (other.task.id != reported.task.id, other.task.context_id) == (True, reported.task.context_id)
    turns = [(await a2a.mine.call("GET", f"/status/{one.id}")).body for one in (reported.task, other.task)]
    assert len({turn["conversationId"] for turn in turns}) == 1


@VERSIONS
async def test_a_stream_has_the_task_its_artifacts_and_its_end(a2a: A2aGateway, version: str) -> None:
    """The streamed pieces are the text that the task has in the end."""
    async with a2a.client(version) as client:
        events = [one async for one in client.send_message(message(f"hello {version}", "s-1"))]
        task = await client.get_task(GetTaskRequest(id=events[0].task.id))
    assert states_of(events)[-2:] == [TaskState.TASK_STATE_WORKING, DONE]
    assert streamed_text(events) == text_of(task) == f"echo: hello {version}"


@VERSIONS
async def test_a_task_waits_for_input_and_goes_on(a2a: A2aGateway, version: str) -> None:
    """A question is answered, and a tool call approved, with a message that names the task."""
    async with a2a.client(version) as client:
        events = [one async for one in client.send_message(message("order", f"q-1 {version}"))]
        assert states_of(events)[-1] == WAITS
        question = events[-1].status_update.status.message
        assert "Tea or coffee?" in question.parts[0].text
        task = events[0].task.id
        asked = (await client.get_task(GetTaskRequest(id=task))).status.timestamp
        assert asked == events[-1].status_update.status.timestamp, "the status has not changed since"
        with pytest.raises(InvalidParamsError, match=r"[Tt]ea"):
            _ = [one async for one in client.send_message(message("water", f"q-2 {version}", task_id=task))]
        events = [one async for one in client.send_message(message("tea", f"q-3 {version}", task_id=task))]
        assert (states_of(events)[-1], "Tea" in streamed_text(events)) == (DONE, True)
        events = [one async for one in client.send_message(message("run: echo by-hand", f"q-4 {version}"))]
        assert states_of(events)[-1] == WAITS
        approved = message("approve", f"q-5 {version}", task_id=events[0].task.id)
        events = [one async for one in client.send_message(approved)]
    assert (states_of(events)[-1], "by-hand" in streamed_text(events)) == (DONE, True)


async def test_a_task_outlives_kill_9_and_is_followed_again(a2a: A2aGateway) -> None:
    """The stream breaks off; after the restart the task is followed to its end, and not twice."""
    a2a.model.began.clear()
    sent = message("slow", "k-1", context_id="killed")
    async with a2a.client() as client:
        answering = client.send_message(sent)
        task = (await anext(aiter(answering))).task.id
        await a2a.model.began.wait()
        await a2a.process.kill()
        with pytest.raises(A2AClientError):
            _ = [event async for event in answering]
        await a2a.process.start()
        events = []
        async for event in client.subscribe(SubscribeToTaskRequest(id=task)):
            events.append(event)
            a2a.model.followed.set()
        assert (states_of(events)[-1], streamed_text(events)) == (DONE, "echo: slow")
        again = [one async for one in client.send_message(sent)]
        assert (again[0].task.id, streamed_text(again)) == (task, "echo: slow")


async def test_a_task_is_cancelled_once(a2a: A2aGateway) -> None:
    """A waiting task ends as cancelled; an ended one cannot be cancelled."""
    async with a2a.client() as client:
        events = [one async for one in client.send_message(message("order", "c-1"))]
        cancelled = await client.cancel_task(CancelTaskRequest(id=events[0].task.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=events[0].task.id))


async def test_tasks_are_listed_by_their_last_update(a2a: A2aGateway) -> None:
    """Pages have each task once, the last updated first; filters and other accounts' keys leave tasks out."""
    operator = ApiClient(session=a2a.mine.session, url=a2a.process.url, key=ADMIN_KEY)
    other = (await operator.call("POST", "/accounts", {"name": "lists"})).body["key"]
    async with a2a.client() as client, a2a.client(key=other) as foreign:
        ids = []
        for number, text in enumerate(("one", "two", "order", "three")):
            sent = message(text, f"l-{number}", context_id="l-waits" if text == "order" else "l-talk")
            events = [one async for one in client.send_message(sent)]
            ids.append(events[0].task.id)
        talk: Any = {"context_id": "l-talk"}
        first = await client.list_tasks(ListTasksRequest(page_size=2, **talk))
        assert [one.id for one in first.tasks] == [ids[3], ids[1]]
        assert (first.total_size, first.page_size) == (3, 2)
        assert not [one for task in first.tasks for one in task.artifacts]
        rest = ListTasksRequest(page_token=first.next_page_token, include_artifacts=True, **talk)
        second = await client.list_tasks(rest)
        assert [(one.id, text_of(one)) for one in second.tasks] == [(ids[0], "echo: one")]
        assert (second.next_page_token, second.page_size) == ("", 50)
        waiting = await client.list_tasks(ListTasksRequest(status=WAITS, history_length=0))
        assert [one.id for one in waiting.tasks if one.context_id == "l-waits"] == [ids[2]]
        (asked,) = (one for one in waiting.tasks if one.id == ids[2])
        assert (asked.status.message.parts[0].text[:4], list(asked.history)) == ("Tea ", [])
        since = ListTasksRequest(status_timestamp_after=first.tasks[0].status.timestamp, **talk)
        assert [one.id for one in (await client.list_tasks(since)).tasks] == [ids[3]]
        newest = (await client.list_tasks(ListTasksRequest(page_size=1))).tasks
        assert [one.id for one in newest] == [ids[2]], "it may still change"
        assert list((await foreign.list_tasks(ListTasksRequest())).tasks) == []
        for wrong in (ListTasksRequest(page_token="x"), ListTasksRequest(page_size=101)):
            with pytest.raises(InvalidParamsError):
                await client.list_tasks(wrong)
        await client.cancel_task(CancelTaskRequest(id=ids[2]))
    call = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {"contextId": "l-waits"}}
    (legacy,) = (await a2a.mine.call("POST", "/a2a", call)).body["result"]["tasks"]
    assert (legacy["kind"], legacy["status"]["state"]) == ("task", "canceled")
    none = {**call, "params": {"contextId": "l-none"}}
    assert (await a2a.mine.call("POST", "/a2a", none)).body["result"]["totalSize"] == 0


async def test_tasks_belong_to_their_account_and_keys_have_scopes(a2a: A2aGateway) -> None:
    """Another account finds nothing; a key that may only read cannot send; methods must exist."""
    operator = ApiClient(session=a2a.mine.session, url=a2a.process.url, key=ADMIN_KEY)
    other = (await operator.call("POST", "/accounts", {"name": "other"})).body["key"]
    async with a2a.client() as client:
        events = [one async for one in client.send_message(message("mine", "o-1"))]
    task = events[0].task.id
    async with a2a.client(key=other) as client:
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id=task))
        with pytest.raises(TaskNotFoundError):
            await client.cancel_task(CancelTaskRequest(id=task))
        with pytest.raises(TaskNotFoundError):
            _ = [one async for one in client.subscribe(SubscribeToTaskRequest(id=task))]
        with pytest.raises(TaskNotFoundError):
            _ = [one async for one in client.send_message(message("hi", "o-2", task_id=task))]
    made = await a2a.mine.call("POST", "/accounts/me/keys", {"name": "r", "scopes": ["read"]})
    reader = ApiClient(session=a2a.mine.session, url=a2a.process.url, key=made.body["key"])
    said = {"messageId": "o-3", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}}
    assert (await reader.call("POST", "/a2a", call)).status == 403
    assert (await reader.call("POST", "/a2a", {**call, "method": "Burn"})).body["error"]["code"] == -32601
    found = {**call, "method": "GetTask", "params": {"id": task}}
    assert (await reader.call("POST", "/a2a", found)).body["result"]["status"]["state"].endswith("COMPLETED")
    wrong = {**call, "params": {"message": {**said, "parts": []}}}
    refused = (await a2a.mine.call("POST", "/a2a", wrong)).body["error"]
    assert (refused["code"], "/params/message/parts" in refused["message"]) == (-32602, True)
    assert (await a2a.mine.call("POST", "/a2a", found, A2A_Version="7.0")).body["error"]["code"] == -32009

"""An editor's own client library speaks ACP with `dovecote acp`: prompts, decisions, history, a kill -9."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from acp import (
    PROTOCOL_VERSION,
    Client,
    RequestError,
    connect_to_agent,
    embedded_blob_resource,
    image_block,
    resource_block,
    text_block,
)
from acp.connection import StreamEvent
from acp.interfaces import Agent
from acp.schema import AllowedOutcome, RequestPermissionResponse

from commands import PIPE, gateway_command
from gateway.config.load import environment_without_ours
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, echo, last_text

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Model:
    """Asks a question for `order` and `name`, and answers `slow` only when it is asked again; echoes."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    def __call__(self, body: dict[str, Any]) -> ScriptedTurn:
        """Return the turn for a request."""
        text = last_text(body)
        questions: dict[str, dict[str, Any]] = {
            "order": {"question": "Tea or coffee?", "choices": ["Tea", "Coffee"]},
            "name": {"question": "What is your name?"},
        }
        if body["messages"][-1]["role"] == "user" and text in questions:
            return ScriptedTurn(calls=[ToolCall(name="ask_person", args=questions[text])])
        if text == "slow" and not self.began.is_set():
            self.began.set()
            return ScriptedTurn(text="never", delay=600)
        return echo(body)


@dataclass(kw_only=True)
class Editor:
    """The editor's side: notes the updates, and chooses an option by its name, or nothing with None."""

    choose: str | None = "Allow"
    updates: list[Any] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    commands: dict[str, bool] = field(default_factory=dict)
    messages: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)

    def on_connect(self, _agent: Agent) -> None:
        """Do nothing: the test has the connection."""

    async def session_update(self, session_id: str, update: Any, **_more: Any) -> None:
        """Note an update; of the commands, which of them take words."""
        del session_id
        if update.session_update == "available_commands_update":
            self.commands = {one.name: one.input is not None for one in update.available_commands}
        else:
            self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_more: Any
    ) -> RequestPermissionResponse:
        """Choose."""
        del session_id
        self.asked.append(tool_call)
        if self.choose is None:
            await asyncio.get_running_loop().create_future()
        (option,) = [one.option_id for one in options if one.name == self.choose]
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option))

    def note(self, event: StreamEvent) -> None:
        """Note a message of the connection."""
        self.messages.put_nowait(event.message)

    async def message(self, method: str) -> dict[str, Any]:
        """Return the next message with a method, in either direction."""
        async with asyncio.timeout(60):
            while (given := await self.messages.get()).get("method") != method:
                pass
        return given

    def text(self, kind: str = "agent_message_chunk") -> str:
        """Return the text of the updates of a kind, and forget nothing."""
        return "".join(one.content.text for one in self.updates if one.session_update == kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcpGateway:
    """A gateway with an agent on a loopback model."""

    process: GatewayProcess
    model: Model
    directory: Path

    @asynccontextmanager
    async def editor(self, editor: Editor) -> AsyncIterator[Agent]:
        """Start `dovecote acp` as an editor does."""
        place = ("--url", self.process.url, "--key", self.process.key)
        child = await gateway_command(
            *("acp", *place),
            env=environment_without_ours(),
            cwd=self.directory,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        assert child.stdin is not None
        connection = connect_to_agent(
            cast("Client", editor), child.stdin, child.stdout, observers=[editor.note]
        )
        try:
            made = await connection.initialize(protocol_version=PROTOCOL_VERSION)
            assert made.protocol_version == PROTOCOL_VERSION
            assert made.agent_info is not None
            assert made.agent_info.version == version("dovecote")
            yield connection
        finally:
            await connection.close()
            child.stdin.close()
            async with asyncio.timeout(60):
                assert await child.wait() == 0

    async def session(self, agent: Agent) -> str:
        """Begin a session."""
        return (await agent.new_session(cwd=str(self.directory), mcp_servers=[])).session_id


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def acp_gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AcpGateway]:
    """Run the gateway."""
    model = Model()
    async with OpenAIServer(model) as server:
        env = {"DOVECOTE_AGENT__MODEL": "openai:loopback", "DOVECOTE_AGENT__BASE_URL": server.base_url}
        directory = tmp_path_factory.mktemp("acp")
        async with gateway(directory / "data", env=env) as process:
            yield AcpGateway(process=process, model=model, directory=directory)


async def send_notification(agent: Agent, method: str, params: dict[str, Any]) -> None:
    """Send a notification that the client library has no method for."""
    await cast("Any", agent)._conn.send_notification(method, params)


async def say(agent: Agent, session: str, text: str) -> str:
    """Send a prompt; returns how its turn stopped."""
    return await show(agent, session, text_block(text))


async def show(agent: Agent, session: str, *blocks: Any) -> str:
    """Send a prompt of several blocks; returns how its turn stopped."""
    async with asyncio.timeout(60):
        return (await agent.prompt(session_id=session, prompt=[*blocks])).stop_reason


async def test_a_prompt_is_a_turn_and_a_session_is_loaded_again(acp_gateway: AcpGateway) -> None:
    """The answer comes in pieces; a later process shows the whole conversation and goes on with it."""
    first, later = Editor(), Editor()
    async with acp_gateway.editor(first) as agent:
        session = await acp_gateway.session(agent)
        assert await say(agent, session, "my number is 7") == "end_turn"
        assert first.text() == "echo: my number is 7"
        assert first.text("user_message_chunk") == ""
        assert (first.commands["stop"], first.commands["queue"]) == (False, True)
        with pytest.raises(RequestError, match="no session"):
            await agent.load_session(cwd="/", session_id="acp-unknown", mcp_servers=[])
    async with acp_gateway.editor(later) as agent:
        await agent.load_session(cwd="/", session_id=session, mcp_servers=[])
        assert (later.text("user_message_chunk"), later.text()) == ("my number is 7", "echo: my number is 7")
        assert await say(agent, session, "/title Numbers") == "end_turn"
        assert later.commands == first.commands
        assert await say(agent, session, "and mine") == "end_turn"
        assert later.text().endswith("echo: and mine")


async def listed(agent: Agent, cwd: str = "/src") -> list[tuple[str, str | None, str]]:
    """Return the sessions as an editor lists them: id, title, directory."""
    found = await agent.list_sessions(cwd=cwd)
    return [(one.session_id, one.title, one.cwd) for one in found.sessions]


async def delete_session(agent: Agent, session: str) -> None:
    """Delete a session; version 0.12 of the library has no method for it."""
    await cast("Any", agent)._conn.send_request("session/delete", {"sessionId": session})


async def test_sessions_are_listed_resumed_closed_and_deleted(acp_gateway: AcpGateway) -> None:
    """The last active session is the first; a resumed one shows no history; a deleted one is gone."""
    async with acp_gateway.editor(Editor()) as agent:
        first, second = await acp_gateway.session(agent), await acp_gateway.session(agent)
        assert await say(agent, first, "of pigeons") == "end_turn"
        assert await say(agent, second, "of doves") == "end_turn"
        assert (await listed(agent))[:2] == [(second, "of doves", "/src"), (first, "of pigeons", "/src")]
    later = Editor()
    async with acp_gateway.editor(later) as agent:
        for _ in range(2):
            await agent.resume_session(cwd="/src", session_id=first, mcp_servers=[])
        assert later.updates == []
        assert await say(agent, first, "again") == "end_turn"
        assert later.text() == "echo: again"
        with pytest.raises(RequestError, match="no session"):
            await agent.resume_session(cwd="/src", session_id="acp-unknown", mcp_servers=[])
        for _ in range(2):
            await delete_session(agent, second)
        assert (await listed(agent))[0][0] == first
        assert second not in [one[0] for one in await listed(agent)]


async def test_a_closed_session_cancels_its_prompt(acp_gateway: AcpGateway) -> None:
    """The prompt stops; the session needs to be loaded before its next prompt."""
    acp_gateway.model.began.clear()
    async with acp_gateway.editor(Editor()) as agent:
        session = await acp_gateway.session(agent)
        async with asyncio.TaskGroup() as group:
            saying = group.create_task(say(agent, session, "slow"))
            await acp_gateway.model.began.wait()
            await agent.close_session(session_id=session)
        assert saying.result() == "cancelled"
        with pytest.raises(RequestError, match="create or load it"):
            await say(agent, session, "hello")


async def test_images_and_files_of_a_prompt_are_attached(acp_gateway: AcpGateway) -> None:
    """The agent finds them in its workspace; a prompt may consist of an image alone."""
    editor, image = Editor(), base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(3_000_000)).decode()
    log = resource_block(embedded_blob_resource("file:///src/core%20dump.bin", "AAEC"))
    async with acp_gateway.editor(editor) as agent:
        session = await acp_gateway.session(agent)
        blocks = text_block("see"), image_block(image, "image/png"), log
        assert await show(agent, session, *blocks) == "end_turn"
        assert "inbox/image-2.png, 3.0 MB, image/png" in editor.text()
        assert "inbox/core dump.bin, 3 bytes" in editor.text()
        alone = image_block("AAEC", "image/png", uri="file:///src/photo.png")
        assert await show(agent, session, alone) == "end_turn"
        assert "inbox/photo.png" in editor.text()
        with pytest.raises(RequestError, match=r"photo\.png is not base64"):
            await show(agent, session, image_block("?", "image/png", uri="photo.png"))


async def test_tool_calls_need_a_permission(acp_gateway: AcpGateway) -> None:
    """The editor is asked; the call and its result are updates of the session."""
    editor = Editor()
    async with acp_gateway.editor(editor) as agent:
        session = await acp_gateway.session(agent)
        assert await say(agent, session, "run: echo by-hand") == "end_turn"
        editor.choose = "Deny"
        assert await say(agent, session, "run: echo never-run") == "end_turn"
    assert [one.raw_input["command"] for one in editor.asked] == ["echo by-hand", "echo never-run"]
    calls = [one for one in editor.updates if one.session_update == "tool_call"]
    results = [one for one in editor.updates if one.session_update == "tool_call_update"]
    assert [(one.kind, one.raw_input["command"]) for one in calls] == [("execute", "echo by-hand")]
    assert results[0].tool_call_id == calls[0].tool_call_id
    assert (results[0].status, "by-hand" in results[0].content[0].content.text) == ("completed", True)


@pytest.mark.parametrize("reason", ["end_turn", "cancelled"])
async def test_what_happens_elsewhere_withdraws_the_editors_question(
    acp_gateway: AcpGateway, reason: str
) -> None:
    """`$/cancel_request` names the request: it was decided, or its turn was cancelled, elsewhere."""
    editor = Editor(choose=None)
    async with acp_gateway.editor(editor) as agent, asyncio.TaskGroup() as group:
        session = await acp_gateway.session(agent)
        saying = group.create_task(say(agent, session, "run: echo elsewhere"))
        asked = await editor.message("session/request_permission")
        approval = asked["params"]["toolCall"]["toolCallId"]
        async with acp_gateway.process.http() as http:
            async with http.get(f"/approvals/{approval}") as shown:
                turn = (await shown.json())["turn"]
            decision = (f"/approvals/{approval}", {"decision": "approve"})
            path, body = decision if reason == "end_turn" else (f"/turns/{turn}/cancel", None)
            async with http.post(path, json=body) as done:
                assert done.status in (200, 202), await done.text()
        withdrawn = await editor.message("$/cancel_request")
        assert withdrawn["params"] == {"requestId": asked["id"]}
        assert await saying == reason


async def test_a_cancelled_request_cancels_its_turn(acp_gateway: AcpGateway) -> None:
    """The prompt's answer says so; a request that has ended, and an unknown one, are ignored."""
    editor = Editor()
    acp_gateway.model.began.clear()
    async with acp_gateway.editor(editor) as agent, asyncio.TaskGroup() as group:
        session = await acp_gateway.session(agent)
        saying = group.create_task(say(agent, session, "slow"))
        sent = await editor.message("session/prompt")
        await acp_gateway.model.began.wait()
        for request in ("never", sent["id"]):
            await send_notification(agent, "$/cancel_request", {"requestId": request})
        assert await saying == "cancelled"
        await send_notification(agent, "$/cancel_request", {"requestId": sent["id"]})
        assert await say(agent, session, "again") == "end_turn"


async def test_questions_are_choices_or_the_next_prompt(acp_gateway: AcpGateway) -> None:
    """A question with choices asks for one of them; any other ends the prompt, and the next one answers."""
    editor = Editor(choose="Coffee")
    async with acp_gateway.editor(editor) as agent:
        session = await acp_gateway.session(agent)
        assert await say(agent, session, "order") == "end_turn"
        assert "Coffee" in editor.text()
        assert await say(agent, session, "name") == "end_turn"
        assert editor.text().endswith("What is your name?")
        assert await say(agent, session, "Ada") == "end_turn"
        assert editor.text().rpartition("name?")[2].strip().startswith("result:")


async def test_a_prompt_outlives_kill_9_and_another_is_cancelled(acp_gateway: AcpGateway) -> None:
    """The client reconnects to the restarted gateway and gets the answer; a cancelled prompt says so."""
    editor = Editor()
    async with acp_gateway.editor(editor) as agent:
        session = await acp_gateway.session(agent)
        acp_gateway.model.began.clear()
        async with asyncio.TaskGroup() as group:
            saying = group.create_task(say(agent, session, "slow"))
            await acp_gateway.model.began.wait()
            await acp_gateway.process.kill()
            await acp_gateway.process.start()
        assert (saying.result(), editor.text()) == ("end_turn", "echo: slow")
        acp_gateway.model.began.clear()
        async with asyncio.TaskGroup() as group:
            saying = group.create_task(say(agent, session, "slow"))
            await acp_gateway.model.began.wait()
            await agent.cancel(session_id=session)
        assert saying.result() == "cancelled"
        with pytest.raises(RequestError, match="at most"):
            await say(agent, session, "x" * 60_001)

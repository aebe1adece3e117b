"""The same turn run by the other vendors' models, against simulators of their APIs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agent_tools import RecordingTools, agent_spec, approve, collect_steps, turn_input
from gateway.agents.model import Vendors, open_model_agent
from gateway.agents.port import ANY_TOOL, ApprovalRequired, Delta, Finished, MessageCompleted, OutputFormat
from openai_server import OpenAIServer, ScriptedTurn
from vendor_servers import VendorAnswer, VendorServer, vendor_server


def vendors_of(server: VendorServer) -> Vendors:
    """Return the keys and addresses of both vendors."""
    return Vendors(
        anthropic_api_key="key-a",
        anthropic_base_url=server.base_url,
        google_api_key="key-g",
        google_base_url=server.base_url,
    )


@pytest.mark.parametrize(
    ("model", "output"),
    [("anthropic:claude-loopback", "Anthropic says done."), ("google:gemini-loopback", "Google says done.")],
)
async def test_a_tool_call_is_approved_and_reported_by_another_vendor(model: str, output: str) -> None:
    """Call, pause, approval, result and text work alike with Anthropic and Google, each under its key."""
    async with vendor_server() as server, open_model_agent(vendors_of(server)) as agent:
        record, tools = agent_spec(models=(model,)), RecordingTools(needs_approval_for=["ls"])
        paused = (await collect_steps(agent, turn_input(record), tools))[-1]
        assert isinstance(paused, ApprovalRequired)
        decided = turn_input(record, checkpoint=paused.state, decisions=approve(paused.calls[0].id))
        tools.approved.add(paused.calls[0].id)
        steps = await collect_steps(agent, decided, tools)
    end = steps[-1]
    assert isinstance(end, Finished)
    assert end.output == output == "".join(step.text for step in steps if isinstance(step, Delta))
    assert tools.executed == [("bash", {"command": "ls"})]
    assert server.keys == [f"key-{model[0]}"] * 2
    assert "done" in json.dumps(server.bodies[1])


@pytest.mark.parametrize("key", ["none", "1"])
@pytest.mark.parametrize("model", ["anthropic:claude-loopback", "google:gemini-loopback"])
async def test_a_key_like_a_word_stops_no_other_vendor(model: str, key: str) -> None:
    """Servers of one's own often take any key; the one of OpenAI's models is part of other headers here."""
    async with vendor_server() as server:
        vendors = Vendors(
            openai_api_key=key, anthropic_base_url=server.base_url, google_base_url=server.base_url
        )
        async with open_model_agent(vendors) as agent:
            given = turn_input(agent_spec(models=(model,)))
            end = (await collect_steps(agent, given, RecordingTools()))[-1]
    assert isinstance(end, Finished)


@pytest.mark.parametrize("key", ["none", "1", None])
async def test_a_server_without_a_key_gets_no_key(key: str | None) -> None:
    """Ollama's models work beside any key of OpenAI's, and are sent none."""
    async with OpenAIServer([ScriptedTurn(text="here")]) as server:
        vendors = Vendors(openai_api_key=key, ollama_base_url=server.base_url)
        async with open_model_agent(vendors) as agent:
            given = turn_input(agent_spec(models=("ollama:local",)))
            end = (await collect_steps(agent, given, RecordingTools()))[-1]
    assert isinstance(end, Finished)
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize("model", ["anthropic:claude-loopback", "google:gemini-loopback"])
async def test_another_vendors_answer_has_the_form_that_was_asked_for(model: str) -> None:
    """The instructions contain the schema, a wrong answer is corrected, and only the JSON is shown."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}

    def script(number: int, _text: str, _is_result: bool) -> VendorAnswer:
        return VendorAnswer(text='{"ok": "yes"}' if number == 1 else '```json\n{"ok": true}\n```')

    async with vendor_server(script) as server, open_model_agent(vendors_of(server)) as agent:
        given = turn_input(agent_spec(models=(model,)), output_format=OutputFormat(schema=schema))
        steps = await collect_steps(agent, given, RecordingTools())
    assert json.dumps(schema) in _instructions(server.bodies[0])
    assert _enforced(server.bodies[0]) == schema | {"additionalProperties": False}
    assert "the answer.ok is not of the type boolean" in json.dumps(server.bodies[1])
    shown = [step for step in steps if isinstance(step, Delta | MessageCompleted)]
    assert shown == [MessageCompleted(text='{"ok": true}')]


async def test_an_empty_answer_of_google_is_requested_again() -> None:
    """The feedback to an empty answer is one that Google's library reads, now and in later turns."""

    def script(number: int, _text: str, _is_result: bool) -> VendorAnswer:
        return VendorAnswer(text="" if number == 1 else "now I answer")

    async with vendor_server(script) as server, open_model_agent(vendors_of(server)) as agent:
        record = agent_spec(models=("google:gemini-loopback",))
        end = (await collect_steps(agent, turn_input(record), RecordingTools()))[-1]
        assert isinstance(end, Finished)
        assert end.history is not None
        later = turn_input(record, history=[end.history])
        again = (await collect_steps(agent, later, RecordingTools()))[-1]
    assert isinstance(again, Finished)
    assert end.output == again.output == "now I answer"


@pytest.mark.parametrize(
    ("model", "refusal"),
    [
        ("anthropic:claude-loopback", "claude-loopback does not support output_config.format"),
        ("anthropic:claude-loopback", "Schema is too complex for compilation."),
        ("google:gemini-loopback", "Function calling with a response mime type is unsupported"),
    ],
)
async def test_a_vendor_that_refuses_a_form_is_asked_without_it(model: str, refusal: str) -> None:
    """The model learns the form from the instructions alone, and the turn succeeds."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}

    def script(number: int, _text: str, _is_result: bool) -> VendorAnswer:
        return VendorAnswer(refusal=refusal) if number == 1 else VendorAnswer(text='{"ok": true}')

    async with vendor_server(script) as server, open_model_agent(vendors_of(server)) as agent:
        given = turn_input(agent_spec(models=(model,)), output_format=OutputFormat(schema=schema))
        steps = await collect_steps(agent, given, RecordingTools())
    assert [_enforced(body) is None for body in server.bodies] == [False, True]
    assert isinstance(steps[-1], Finished)
    assert steps[-1].output == '{"ok": true}'


def _enforced(body: Mapping[str, Any]) -> Any:
    """Return the schema that a request to Anthropic or Google enforces."""
    if "output_config" in body:
        return body["output_config"]["format"]["schema"]
    found = body.get("generationConfig", {}).get("responseJsonSchema")
    return found and {name: part for name, part in found.items() if name != "title"}


def _instructions(body: Mapping[str, Any]) -> str:
    """Return the instructions of a request to Anthropic or Google."""
    text: str = (body["system"] if "system" in body else body["systemInstruction"]["parts"])[0]["text"]
    return text


@pytest.mark.parametrize(
    ("required", "sent"),
    [
        ("bash", {"mode": "ANY"}),
        (ANY_TOOL, {"mode": "ANY"}),
        ("a_tool_that_the_agent_lost", {"mode": "VALIDATED"}),
    ],
)
async def test_google_gets_the_tool_that_is_required(required: str, sent: Mapping[str, Any]) -> None:
    """The first request requires it, and the next one leaves the choice to the model."""
    async with vendor_server() as server, open_model_agent(vendors_of(server)) as agent:
        given = turn_input(
            agent_spec(models=("google:gemini-loopback",)),
            required_tool=required,
            client_tools=frozenset({"bash"}),
        )
        await collect_steps(agent, given, RecordingTools())
    choices = [body["toolConfig"]["functionCallingConfig"] for body in server.bodies]
    assert choices == [sent, {"mode": "VALIDATED"}]

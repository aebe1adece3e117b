"""Models that fail, loop, or are not what the configuration names."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agent_tools import RecordingTools, agent_spec, collect_steps, collect_steps_until, turn_input
from gateway.agents.port import AgentClosed, Checkpoint, TurnLimits
from model_rig import LS, closed_port, failure_of, finished_step, open_loopback_model
from openai_server import ScriptedTurn, ToolCall


@pytest.mark.parametrize("fault", ["429", "500", "garbage", "hang"])
async def test_the_next_model_answers_when_one_fails(fault: Any) -> None:
    """The failover list is tried in order while a model has not begun to answer."""

    def script(body: dict[str, Any]) -> ScriptedTurn:
        return ScriptedTurn(fault=fault) if body["model"] == "first" else ScriptedTurn(text="second here")

    async with open_loopback_model(script) as (server, agent):
        listed = agent_spec(
            server.base_url, models=("openai:first", "openai:second"), limits=TurnLimits(step_timeout=1.0)
        )
        steps = await collect_steps(agent, turn_input(listed), RecordingTools())
    assert [body["model"] for body in server.bodies] == ["first", "second"]
    assert finished_step(steps).output == "second here"
    assert finished_step(steps).usage.model == "second"


async def test_a_refused_connection_fails_over() -> None:
    """A model whose server is not there gives way to the next one."""
    dead = f"http://127.0.0.1:{closed_port()}/v1"
    async with open_loopback_model([ScriptedTurn(text="alive")], ollama_base_url=dead) as (server, agent):
        listed = agent_spec(server.base_url, models=("ollama:gone", "openai:there"))
        steps = await collect_steps(agent, turn_input(listed), RecordingTools())
    assert finished_step(steps).output == "alive"


async def test_no_failover_once_a_model_has_spoken() -> None:
    """A stream cut after its first words ends the attempt, which may be tried again later."""

    def script(body: dict[str, Any]) -> ScriptedTurn:
        return (
            ScriptedTurn(text="half a sen", fault="cut")
            if body["model"] == "first"
            else ScriptedTurn(text="second")
        )

    async with open_loopback_model(script) as (server, agent):
        listed = agent_spec(server.base_url, models=("openai:first", "openai:second"))
        error = await failure_of(agent, turn_input(listed))
    assert error.retryable
    assert server.requests == 1


async def test_a_refused_key_does_not_fail_over() -> None:
    """A wrong key is reported as the operator's to fix."""

    def script(body: dict[str, Any]) -> ScriptedTurn:
        return ScriptedTurn(fault="401") if body["model"] == "first" else ScriptedTurn(text="second")

    async with open_loopback_model(script) as (server, agent):
        listed = agent_spec(server.base_url, models=("openai:first", "openai:second"))
        error = await failure_of(agent, turn_input(listed))
    assert 'The model "first" refused the API key' in str(error)
    assert not error.retryable
    assert server.requests == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [("500", "HTTP 500"), ("429", "HTTP 429"), ("hang", "limits.step_timeout (0.5 s)"), ("cut", "broke off")],
)
async def test_a_failed_model_call_is_reported_and_may_be_tried_again(fault: Any, words: str) -> None:
    """With no other model the turn fails with what happened, as something that may pass."""
    async with open_loopback_model([ScriptedTurn(fault=fault)]) as (server, agent):
        given = turn_input(agent_spec(server.base_url, limits=TurnLimits(step_timeout=0.5)))
        error = await failure_of(agent, given)
    assert words in str(error)
    assert error.retryable


async def test_all_models_down_names_each() -> None:
    """When the whole list fails the error has each model's reason."""
    async with open_loopback_model(lambda _: ScriptedTurn(fault="500")) as (server, agent):
        listed = agent_spec(server.base_url, models=("openai:first", "openai:second"))
        error = await failure_of(agent, turn_input(listed))
    assert 'The model "first" answered with HTTP 500' in str(error)
    assert 'The model "second" answered with HTTP 500' in str(error)
    assert error.retryable


async def test_a_rate_limited_model_is_asked_again_before_giving_up() -> None:
    """The only model of a list is retried as often as configured."""
    async with open_loopback_model([ScriptedTurn(fault="429"), ScriptedTurn(text="now")], retries=1) as (
        server,
        agent,
    ):
        steps = await collect_steps(agent, turn_input(agent_spec(server.base_url)), RecordingTools())
    assert finished_step(steps).output == "now"
    assert server.requests == 2


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (TurnLimits(requests=3, repeated_calls=0), "limit of 3 model requests (3 used)"),
        (TurnLimits(input_tokens=15), "limit of 15 input tokens (20 used)"),
        (TurnLimits(output_tokens=8), "limit of 8 output tokens (10 used)"),
        (TurnLimits(total_tokens=25), "limit of 25 tokens (30 used)"),
    ],
)
async def test_a_turn_stops_at_its_limits_and_names_them(limits: TurnLimits, named: str) -> None:
    """A runaway turn ends with the limit it reached and the setting that raises it."""
    async with open_loopback_model(lambda _: ScriptedTurn(calls=[LS])) as (server, agent):
        error = await failure_of(agent, turn_input(agent_spec(server.base_url, limits=limits)))
    assert named in str(error)
    assert "raise limits." in str(error)
    assert not error.retryable


async def test_limits_count_across_a_restart() -> None:
    """Requests made before a crash count towards the turn's ceiling after it."""
    async with open_loopback_model(lambda _: ScriptedTurn(calls=[LS])) as (server, agent):
        strict = agent_spec(server.base_url, limits=TurnLimits(requests=2))
        crashed = await collect_steps_until(
            agent, turn_input(strict), RecordingTools(), lambda step: isinstance(step, Checkpoint)
        )
        assert isinstance(crashed[-1], Checkpoint)
        error = await failure_of(agent, turn_input(strict, checkpoint=crashed[-1].state, attempt=2))
    assert "limit of 2 model requests" in str(error)
    assert server.requests == 2


async def test_the_same_call_again_and_again_is_stopped() -> None:
    """Identical calls in a row end the turn at the configured number, before the last one runs."""
    async with open_loopback_model(lambda _: ScriptedTurn(calls=[LS])) as (server, agent):
        tools = RecordingTools()
        given = turn_input(agent_spec(server.base_url, limits=TurnLimits(repeated_calls=3)))
        error = await failure_of(agent, given, tools)
    assert "bash 3 times in a row with the same arguments" in str(error)
    assert len(tools.executed) == 2


async def test_broken_arguments_and_unknown_tools_go_back_to_the_model() -> None:
    """The model gets its mistake and may correct it."""
    script = [
        ScriptedTurn(calls=[ToolCall(name="bash", raw='{"command": ')]),
        ScriptedTurn(calls=[ToolCall(name="no_such_tool")]),
        ScriptedTurn(text="I am sorry."),
    ]
    async with open_loopback_model(script) as (server, agent):
        steps = await collect_steps(agent, turn_input(agent_spec(server.base_url)), RecordingTools())
    assert finished_step(steps).output == "I am sorry."
    assert "no_such_tool" in json.dumps(server.bodies[2]["messages"][-1])


async def test_an_empty_answer_is_an_error_not_silence() -> None:
    """A model that keeps returning nothing ends the turn with a clear message."""
    async with open_loopback_model(lambda _: ScriptedTurn()) as (server, agent):
        error = await failure_of(agent, turn_input(agent_spec(server.base_url)))
    assert "no usable answer" in str(error)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models": ("gpt-4",), "base_url": None}, 'agent.model is "gpt-4": use "openai:NAME"'),
        ({"models": ("openai:x",), "base_url": None}, "OPENAI_API_KEY is not set"),
        ({"models": ("ollama:x", "google:y")}, 'agent.fallback is "google:y": GOOGLE_API_KEY is not set'),
        (
            {"models": ("openai:x",), "base_url": "http://10.0.0.1/v1"},
            "the operator has not allowed this address",
        ),
    ],
)
async def test_what_is_missing_for_a_model_is_said(changes: dict[str, Any], words: str) -> None:
    """A turn with an unusable model fails with the field, its value and the remedy."""
    async with open_loopback_model([]) as (_server, agent):
        error = await failure_of(agent, turn_input(agent_spec(**changes)))
    assert words in str(error)


async def test_an_attempt_whose_agent_is_closed_may_be_repeated() -> None:
    """Closing our own client is no failure of the model: the attempt ends as AgentClosed."""
    async with open_loopback_model([ScriptedTurn(fault="hang")]) as (server, agent):
        given = turn_input(agent_spec(server.base_url))
        attempt = asyncio.create_task(collect_steps(agent, given, RecordingTools()))
        await server.asked.wait()
        await agent.aclose()
        with pytest.raises(AgentClosed):
            await attempt

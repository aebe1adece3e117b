"""Conversations longer than their model can hold go on."""

from __future__ import annotations

import json
from typing import Any

from agent_tools import RecordingTools, agent_spec, approve, collect_steps, turn_input
from gateway.agents.history import HistoryEntry, encode_entry
from gateway.agents.model.compaction import COMPACTION_NOTICE
from gateway.agents.port import AgentSpec, TurnLimits
from model_rig import (
    REMOVE,
    approval_step,
    completed_messages,
    failure_of,
    finished_step,
    history_of,
    open_loopback_model,
)
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text


def small(server: OpenAIServer, **limits: Any) -> AgentSpec:
    """Return an agent whose model holds 16k tokens."""
    return agent_spec(server.base_url, limits=TurnLimits(context_tokens=16_000, **limits))


class LimitedModel:
    """Plays a model that holds so many tokens: refuses more, writes memories, else gives long replies."""

    def __init__(self, holds: int = 16_000) -> None:
        self._holds = holds
        self.summaries = 0
        self.largest = 0

    def __call__(self, body: dict[str, Any]) -> ScriptedTurn:
        """Answer one request."""
        size = len(json.dumps(body["messages"])) // 4
        self.largest = max(self.largest, size)
        if size > self._holds:
            return ScriptedTurn(fault="overflow")
        text = last_text(body)
        if "conversation begins" in text:
            self.summaries += 1
            return ScriptedTurn(text=f"memory number {self.summaries}")
        return ScriptedTurn(text=f"reply to {text[:20]} " + "word " * 200, pieces=1)


async def test_a_conversation_of_150_turns_goes_on_with_a_small_model() -> None:
    """150 turns of some 400 tokens each never exceed 16k, with one visible notice for each compaction."""
    memory, notices = LimitedModel(), 0
    history: tuple[HistoryEntry, ...] = ()
    async with open_loopback_model(memory) as (server, agent):
        for turn in range(150):
            given = turn_input(small(server), f"message {turn} " + "text " * 120, history=history)
            steps = await collect_steps(agent, given, RecordingTools())
            notices += completed_messages(steps).count(COMPACTION_NOTICE)
            history = history_of(steps, *history)
    assert memory.largest <= 16_000
    assert 0 < notices <= memory.summaries < 30
    stored = b"".join(map(encode_entry, history))
    assert b"memory number" in stored
    assert b"message 149" in stored
    assert len(stored) < 16_000 * 4 * 3


async def test_approvals_and_job_results_outlive_compaction_word_for_word() -> None:
    """Decisions and job results are repeated beside the model's own summary."""
    memory = LimitedModel()

    def script(body: dict[str, Any]) -> ScriptedTurn:
        if last_text(body) == "clean up":
            return ScriptedTurn(calls=[REMOVE])
        return memory(body)

    async with open_loopback_model(script) as (server, agent):
        tools = RecordingTools(needs_approval_for=["rm -r build"])
        paused = approval_step(await collect_steps(agent, turn_input(small(server), "clean up"), tools))
        decided = turn_input(
            small(server),
            "clean up",
            checkpoint=paused.state,
            decisions=approve(paused.calls[0].id, by="ann"),
        )
        tools.approved.add(paused.calls[0].id)
        history = history_of(await collect_steps(agent, decided, tools))
        job = turn_input(
            small(server), "job_7 ended, exit code 0: 42 tests passed", trigger="job", history=history
        )
        history = history_of(await collect_steps(agent, job, tools), *history)
        for turn in range(60):
            given = turn_input(small(server), f"message {turn} " + "text " * 120, history=history)
            history = history_of(await collect_steps(agent, given, tools), *history)
    assert memory.summaries
    sent = json.dumps(server.bodies[-1]["messages"])
    assert "ann approved bash" in sent
    assert "rm -r build" in sent
    assert "42 tests passed" in sent


async def test_one_turn_with_many_large_results_is_compacted_in_its_middle() -> None:
    """A turn whose tool results outgrow the model keeps its request and goes on."""
    memory = LimitedModel()

    def script(body: dict[str, Any]) -> ScriptedTurn:
        turn = memory(body)
        if turn.fault or turn.text.startswith("memory"):
            return turn
        rounds = len(commands)
        if rounds == 12:
            return ScriptedTurn(text="all read")
        commands.append(f"cat file{rounds}")
        return ScriptedTurn(calls=[ToolCall(name="bash", args={"command": commands[-1]})])

    commands: list[str] = []
    async with open_loopback_model(script) as (server, agent):
        tools = RecordingTools(answer=lambda _name, args: f"{args['command']}: " + "x" * 100_000)
        steps = await collect_steps(agent, turn_input(small(server), "read all twelve files"), tools)
    assert finished_step(steps).output == "all read"
    assert len(tools.executed) == 12
    assert memory.summaries
    assert memory.largest <= 16_000
    assert "read all twelve files" in json.dumps(server.bodies[-1]["messages"])


async def test_a_model_that_finds_the_conversation_too_long_is_asked_again_after_compaction() -> None:
    """The vendor's own "context length exceeded" starts compaction when our estimate did not."""
    memory = LimitedModel(holds=2_000)
    notices = 0
    history: tuple[HistoryEntry, ...] = ()
    async with open_loopback_model(memory) as (server, agent):
        for turn in range(10):
            steps = await collect_steps(
                agent,
                turn_input(agent_spec(server.base_url), f"message {turn}", history=history),
                RecordingTools(),
            )
            history = history_of(steps, *history)
            notices += completed_messages(steps).count(COMPACTION_NOTICE)
    assert 0 < notices <= memory.summaries
    assert finished_step(steps).output.startswith("reply to message 9")


async def test_a_model_whose_context_is_much_smaller_than_configured_goes_on() -> None:
    """One large result exceeds it many times over; the summary is asked for in pieces that it can hold."""
    memory = LimitedModel(holds=4_000)

    def script(body: dict[str, Any]) -> ScriptedTurn:
        turn = memory(body)
        if turn.fault or turn.text.startswith("memory") or tools.executed:
            return turn
        return ScriptedTurn(calls=[ToolCall(name="bash", args={"command": "cat log"})])

    tools = RecordingTools(answer=lambda _name, _args: "line of a log\n" * 8_000)
    async with open_loopback_model(script) as (server, agent):
        history: tuple[HistoryEntry, ...] = ()
        for turn in range(6):
            given = turn_input(
                agent_spec(server.base_url), f"message {turn} " + "text " * 300, history=history
            )
            steps = await collect_steps(agent, given, tools)
            history = history_of(steps, *history)
    assert finished_step(steps).output.startswith("reply to message 5")
    assert memory.summaries


async def test_a_message_that_no_summary_makes_fit_is_refused_after_few_requests() -> None:
    """The error names the setting; nothing is summarised again and again."""
    memory = LimitedModel(holds=1_000)
    async with open_loopback_model(memory) as (server, agent):
        error = await failure_of(agent, turn_input(agent_spec(server.base_url), "text " * 4_000))
    assert "limits.context_tokens" in str(error)
    assert (memory.summaries, server.requests) == (0, 2)


async def test_a_message_the_model_cannot_hold_is_refused_with_advice() -> None:
    """An input larger than half the model's memory is an error, not a silent cut."""
    async with open_loopback_model([]) as (server, agent):
        error = await failure_of(agent, turn_input(small(server), "text " * 20_000))
    assert "limits.context_tokens" in str(error)
    assert server.requests == 0

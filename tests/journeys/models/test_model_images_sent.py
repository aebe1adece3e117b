"""Users' pictures reach models that accept images, and do not stop those that do not."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_tools import RecordingTools, agent_spec, collect_steps, collect_steps_until, turn_input
from gateway.agents.model.images import MAX_VIEWED
from gateway.agents.port import AgentImage, Checkpoint, ToolResult
from model_rig import LS, finished_step, history_of, open_loopback_model
from openai_server import ScriptedTurn, ToolCall, images_of, last_text

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)
CAT = AgentImage(name="inbox/cat.png", media_type="image/png", content=PIXEL)
ADDRESS = "data:image/png;base64," + base64.b64encode(PIXEL).decode()


async def test_a_picture_arrives_at_the_model_with_its_label() -> None:
    """The model gets the bytes as a data URL, after the text with the picture's path."""
    async with open_loopback_model([ScriptedTurn(text="a cat")]) as (server, agent):
        given = replace(
            turn_input(agent_spec(server.base_url)),
            images=(CAT,),
            attachment_lines=("[attached: inbox/cat.png]",),
        )
        steps = await collect_steps(agent, given, RecordingTools())
    (body,) = server.bodies
    assert images_of(body) == [ADDRESS]
    assert "[attached: inbox/cat.png]" in last_text(body)
    assert "[image: inbox/cat.png]" in last_text(body)
    assert finished_step(steps).output == "a cat"


async def test_a_model_that_refuses_pictures_is_asked_once_more_without() -> None:
    """It gets a note that there was one, and answers."""

    def script(body: dict[str, Any]) -> ScriptedTurn:
        return ScriptedTurn(fault="blind") if images_of(body) else ScriptedTurn(text="I cannot see it")

    async with open_loopback_model(script) as (server, agent):
        given = replace(turn_input(agent_spec(server.base_url)), images=(CAT,))
        steps = await collect_steps(agent, given, RecordingTools())
    assert server.requests == 2
    assert "does not take images" in last_text(server.bodies[1])
    assert finished_step(steps).output == "I cannot see it"


async def test_a_picture_is_shown_again_after_a_crash_and_not_in_the_next_turn() -> None:
    """What is stored has no bytes; the same turn has them again, a later one reads that there was one."""
    async with open_loopback_model(
        [ScriptedTurn(calls=[LS]), ScriptedTurn(text="done"), ScriptedTurn(text="later")]
    ) as (server, agent):
        given = replace(turn_input(agent_spec(server.base_url)), images=(CAT,))
        taken = await collect_steps_until(
            agent, given, RecordingTools(), lambda step: isinstance(step, Checkpoint)
        )
        saved = taken[-1]
        assert isinstance(saved, Checkpoint)
        assert PIXEL not in saved.state
        again = replace(given, checkpoint=saved.state, attempt=2)
        steps = await collect_steps(agent, again, RecordingTools())
        following = replace(turn_input(agent_spec(server.base_url)), history=history_of(steps), turn="trn_2")
        await collect_steps(agent, following, RecordingTools())
    first, second, third = map(images_of, server.bodies)
    assert (first, second, third) == ([ADDRESS], [ADDRESS], [])
    assert "shown to you then" in str(server.bodies[2]["messages"])


class ViewingTools(RecordingTools):
    """Answers every call with a picture, as `view_image` does."""

    async def call(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> ToolResult:
        """Return the result with a picture that is named after the call's command."""
        result = await super().call(name, args, call=call, typed_by_asker=typed_by_asker)
        return replace(result, images=(replace(CAT, name=str(args["command"])),))


def view(*names: str) -> ScriptedTurn:
    """Return a response that asks to see pictures."""
    return ScriptedTurn(calls=[ToolCall(name="bash", args={"command": name}) for name in names])


async def test_a_picture_of_a_result_is_shown_to_the_model() -> None:
    """It follows the results with its label; the next turn reads that it was shown."""
    script = [view("a.png", "b.png"), ScriptedTurn(text="two cats"), ScriptedTurn(text="later")]
    async with open_loopback_model(script) as (server, agent):
        spec = agent_spec(server.base_url)
        steps = await collect_steps(agent, turn_input(spec, "draw"), ViewingTools())
        later = turn_input(spec, "and now?", history=history_of(steps))
        await collect_steps(agent, later, RecordingTools())
    assert images_of(server.bodies[1]) == [ADDRESS, ADDRESS]
    assert all(label in last_text(server.bodies[1]) for label in ("[image: a.png]", "[image: b.png]"))
    assert images_of(server.bodies[2]) == []
    assert "[image: a.png] (shown to you then, not again)" in str(server.bodies[2]["messages"])


async def test_a_model_without_pictures_gets_words_for_those_of_results() -> None:
    """It is asked once more with a note in place of the picture."""

    def script(body: dict[str, Any]) -> ScriptedTurn:
        if images_of(body):
            return ScriptedTurn(fault="blind")
        return ScriptedTurn(text="I cannot see it") if "[image: a.png]" in last_text(body) else view("a.png")

    async with open_loopback_model(script) as (server, agent):
        steps = await collect_steps(agent, turn_input(agent_spec(server.base_url)), ViewingTools())
    assert "does not take images" in last_text(server.bodies[-1])
    assert finished_step(steps).output == "I cannot see it"


async def test_a_turn_shows_a_limited_number_of_pictures() -> None:
    """Further ones are named only."""
    names = [f"{number}.png" for number in range(MAX_VIEWED + 2)]
    script = [view(*names[:4]), view(*names[4:]), ScriptedTurn(text="enough")]
    async with open_loopback_model(script) as (server, agent):
        await collect_steps(agent, turn_input(agent_spec(server.base_url)), ViewingTools())
    assert len(images_of(server.bodies[-1])) == MAX_VIEWED
    assert str(server.bodies[-1]["messages"]).count("at most 10 images") == 2

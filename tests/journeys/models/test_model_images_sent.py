"""Users' pictures reach models that accept images, and do not stop those that do not."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from agent_tools import RecordingTools, agent_spec, collect_steps, collect_steps_until, turn_input
from gateway.agents.port import AgentImage, Checkpoint
from model_rig import LS, finished_step, history_of, open_loopback_model
from openai_server import ScriptedTurn, images_of, last_text

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

"""Slack Connect: people of other workspaces in a shared channel, and a channel that begins to be shared."""

from __future__ import annotations

import pytest

from channels.errors import Undeliverable
from channels.message import DraftText, Message, RoomMigrated, StepState, ToolStep, ToolSteps
from channels.port import Connection
from channels.slack import plugin
from channels.slack.simulator import Simulator
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.memory_state import MemoryChannelState
from slack_connections import make_reply, thread_address

VISITOR, OTHER_TEAM = "U0EVE", "T0OTHER"
STEPS = (ToolStep(id="s1", title="search", state=StepState.RUNNING),)


@pytest.mark.parametrize("organisation", ["", "E0GRID"])
async def test_a_person_of_another_workspace_gets_streams(
    simulator: Simulator, slack: Connection, notes: MemoryChannelState, organisation: str
) -> None:
    """A stream names the workspace of its recipient, on each replica; those of own people name the bot's.

    Events of a person of an organisation (Enterprise Grid) name that in place of the workspace.
    """
    simulator.world.visitors[VISITOR] = OTHER_TEAM
    simulator.world.organisations |= {OTHER_TEAM: organisation} if organisation else {}
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        asked = await simulator.say("C0ROOM", "<@U0BOT> hello", user=VISITOR)
        own = await simulator.say("C0ROOM", "<@U0BOT> hello")
        await recorder.wait(2)
    async with open_connection(plugin, simulator.settings(), notes) as other:
        for ts, person in ((asked, VISITOR), (own, "U0ADA")):
            draft = DraftText(key=f"draft_{person}", text="one", recipient_id=person)
            await other.sender.update_draft(thread_address(ts), draft)
        steps = ToolSteps(key="steps_1", steps=STEPS, recipient_id=VISITOR)
        assert await other.sender.show_steps(thread_address(asked), steps) is not None
    started = [given for method, given in simulator.calls if method == "chat.startStream"]
    teams = [(given["recipient_user_id"], given["recipient_team_id"]) for given in started]
    assert teams == [(VISITOR, OTHER_TEAM), ("U0ADA", "T0SIMULATED"), (VISITOR, OTHER_TEAM)]
    assert [post.streaming is not None for post in simulator.messages()] == [True, True, True]


async def test_a_private_channel_that_is_shared_gets_a_new_id(
    simulator: Simulator, slack: Connection
) -> None:
    """Slack reports both ids; messages come from the new one, and the old one ends."""
    recorder = UpdateRecorder()
    async with receiving(slack, recorder):
        await simulator.say("G0ROOM", "hello")
        await simulator.change_id("G0ROOM", "C0SHARED")
        await simulator.say("C0SHARED", "hello again")
        first, moved, second = await recorder.wait(3)
    assert isinstance(moved, RoomMigrated)
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    assert (moved.old.room, moved.new.room) == (first.address.room, second.address.room)
    with pytest.raises(Undeliverable):
        await slack.sender.send(first.address, make_reply("too late"))
    await slack.sender.send(second.address, make_reply("in time"))
    assert [post.room for post in simulator.messages()] == ["C0SHARED"]

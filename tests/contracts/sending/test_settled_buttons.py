"""The button of a failed turn goes away on every channel once the turn is tried again."""

from __future__ import annotations

import pytest

from channel_rigs import open_rig
from channels.message import Message
from channels.port import ChannelFeature, ChannelPlugin
from channels.registry import built_in
from channels.testing.connections import CHANNEL, UpdateRecorder, open_connection, receiving
from delivery.chat.shown_messages import ShownMessage
from delivery.chat.sink import ChatSink
from delivery.deliveries import rendering
from delivery.deliveries.part import encode_part
from delivery.events.event import Event, EventType
from sink_harnesses import make_bot, make_delivery

CHANGING = {ChannelFeature.BUTTONS, ChannelFeature.EDIT}
PLUGINS = [one for one in built_in().values() if one.features >= CHANGING]


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
async def test_a_turn_that_is_tried_again_has_no_button(plugin: ChannelPlugin) -> None:
    """The report of the failure stays one message, and keeps the unfinished answer above it."""
    failure = Event.now(EventType.TURN_FAILED, "cnv_1", {"error": "no model"}, turn="trn_1")
    again = Event.now(EventType.TURN_QUEUED, "cnv_1", {"failure": failure.id, "error": "no model"})
    async with open_rig(plugin) as rig, open_connection(plugin, rig.settings()) as connection:
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.say("hello")
            (asked,) = await recorder.wait(1)
        assert isinstance(asked, Message)
        shown = ShownMessage()

        async def find(event: str, _target: str) -> ShownMessage:
            assert event == failure.id
            return shown

        bot = make_bot(connection.sender, plugin.features)
        sink, counts = ChatSink({CHANNEL: bot}.get, find_shown=find), []
        for number, event in enumerate((failure, again)):
            part = rendering.render_text(event)
            assert part is not None
            target, body = asked.address.encode(), encode_part(part)
            delivery = make_delivery(id=f"dlv_{number}", target=target, body=body)
            outcome = await sink.send(delivery)
            shown = ShownMessage(platform_id=outcome.platform_id, text="half an answer")
            counts.append([one.buttons for one in rig.visible_messages()])
        (message,) = rig.visible_messages()
    assert counts == [[1], [0]]
    assert "half an answer" in message.text
    assert "tried again" in message.text

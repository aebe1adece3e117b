"""What the methods of the simulated Bot API share: the room of a call, and saying something there."""

from __future__ import annotations

from channels.telegram.simulator.arguments import Arguments
from channels.telegram.simulator.failure import bad
from channels.telegram.simulator.faults import Meter
from channels.telegram.simulator.updates import Updates
from channels.telegram.simulator.world import Post, Raw, Room, World

BUTTON_DATA_LIMIT = 64


class Floor:
    """One bot in the world."""

    def __init__(self, world: World, updates: Updates, meter: Meter) -> None:
        self._world = world
        self._updates = updates
        self._meter = meter

    def _room(self, arguments: Arguments, kind: str = "") -> Room:
        """Return the room of a call; raises Failure when it, or its topic, does not take this kind."""
        if "chat_id" not in arguments:
            raise bad("chat_id is empty")
        room = self._world.open_room(arguments["chat_id"])
        thread = arguments.number("message_thread_id")
        if thread is not None and thread not in room.topics:
            raise bad("message thread not found")
        if thread in room.closed:
            raise bad("TOPIC_CLOSED")
        if kind in room.forbidden:
            raise bad(f"not enough rights to send {kind} to the chat")
        return room

    def _said(self, room: Room, arguments: Arguments, content: Raw) -> Post:
        reply_to = self._reply_to(room, arguments)
        thread = arguments.number("message_thread_id")
        content = {**content, **keyboard(arguments)}
        self._world.end_drafts(room.id)
        return self._world.post(room, self._world.bot, content, thread=thread, reply_to=reply_to)

    def _reply_to(self, room: Room, arguments: Arguments) -> int | None:
        asked = arguments.structure("reply_parameters")
        if not isinstance(asked, dict):
            return None
        number = asked.get("message_id")
        if isinstance(number, int) and (room.id, number) in self._world.posts:
            return number
        if asked.get("allow_sending_without_reply") is True:
            return None
        raise bad("message to be replied not found")


def keyboard(arguments: Arguments) -> Raw:
    """Return the inline keyboard of a call; raises Failure for buttons Telegram refuses."""
    markup = arguments.structure("reply_markup")
    if not isinstance(markup, dict) or not markup.get("inline_keyboard"):
        return {}
    for row in markup["inline_keyboard"]:
        for button in row:
            data = str(button.get("callback_data") or "")
            if not str(button.get("text") or "").strip():
                raise bad(
                    "can't parse inline keyboard button: text buttons are unallowed in the inline keyboard"
                )
            if "url" not in button and not 1 <= len(data.encode()) <= BUTTON_DATA_LIMIT:
                raise bad("BUTTON_DATA_INVALID")
    return {"reply_markup": markup}

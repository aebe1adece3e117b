"""Shared parts of the simulated Bot API's methods: the room of a call, and posting a message."""

from __future__ import annotations

from channels.telegram.simulator.arguments import Arguments
from channels.telegram.simulator.failure import bad_request
from channels.telegram.simulator.faults import RateLimits
from channels.telegram.simulator.updates import Updates
from channels.telegram.simulator.world import Post, Raw, Room, World

BUTTON_DATA_LIMIT = 64


class MethodBase:
    """The methods' view of the world as one bot."""

    def __init__(self, world: World, updates: Updates, rate_limits: RateLimits) -> None:
        self._world = world
        self._updates = updates
        self._rate_limits = rate_limits

    def _room(self, arguments: Arguments, kind: str = "", *, threads: bool = False) -> Room:
        """Return the room of a call; raises ApiFailure if it or its topic refuses this kind of message.

        Messages take the thread of a topic only, other calls (`threads`) that of a chain of replies as well.
        """
        if "chat_id" not in arguments:
            raise bad_request("chat_id is empty")
        room = self._world.get_writable_room(arguments["chat_id"])
        thread = arguments.number("message_thread_id")
        is_chain = threads and room.kind == "supergroup" and (room.id, thread) in self._world.posts
        if thread is not None and thread not in room.topics and not is_chain:
            raise bad_request("message thread not found")
        if thread in room.closed:
            raise bad_request("TOPIC_CLOSED")
        if kind in room.forbidden:
            raise bad_request(f"not enough rights to send {kind} to the chat")
        return room

    def _post_message(self, room: Room, arguments: Arguments, content: Raw) -> Post:
        reply_to = self._reply_to(room, arguments)
        thread = arguments.number("message_thread_id")
        content = {**content, **inline_keyboard(arguments)}
        self._world.end_drafts(room.id)
        return self._world.post(room, self._world.bot, content, thread=thread, reply_to=reply_to)

    def _reply_to(self, room: Room, arguments: Arguments) -> int | None:
        asked = arguments.json_value("reply_parameters")
        if not isinstance(asked, dict):
            return None
        number = asked.get("message_id")
        post = self._world.posts.get((room.id, number)) if isinstance(number, int) else None
        if post is not None and not post.deleted:
            return post.id
        if asked.get("allow_sending_without_reply") is True:
            return None
        raise bad_request("message to be replied not found")


def inline_keyboard(arguments: Arguments) -> Raw:
    """Return the inline keyboard of a call; raises ApiFailure for buttons Telegram refuses."""
    markup = arguments.json_value("reply_markup")
    if not isinstance(markup, dict) or not markup.get("inline_keyboard"):
        return {}
    for row in markup["inline_keyboard"]:
        for button in row:
            data = str(button.get("callback_data") or "")
            if not str(button.get("text") or "").strip():
                raise bad_request(
                    "can't parse inline keyboard button: text buttons are unallowed in the inline keyboard"
                )
            if "url" not in button and not 1 <= len(data.encode()) <= BUTTON_DATA_LIMIT:
                raise bad_request("BUTTON_DATA_INVALID")
    return {"reply_markup": markup}

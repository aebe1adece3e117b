"""What happens to groups of the simulated Telegram: topics, and the channel whose posts they discuss."""

from __future__ import annotations

from channels.telegram.simulator.world import SUPERGROUPS, Raw, Room, World

TELEGRAM: Raw = {"id": 777000, "is_bot": False, "first_name": "Telegram"}
"""The author of a channel's posts in the group where they are discussed."""


class GroupActions:
    """Actions of groups, on the simulator's world."""

    world: World

    async def group(self, chat: int, *, title: str = "Group", forum: bool = False) -> None:
        """Create a group: a supergroup if its id is below -10^12."""
        kind = "supergroup" if chat < SUPERGROUPS else "group"
        self.world.rooms[chat] = Room(chat, kind, title, forum=forum)

    async def topic(self, chat: int, *, name: str = "Topic") -> int:
        """Create a forum topic and return its thread."""
        room = self.world.room(chat)
        opening = {"forum_topic_created": {"name": name, "icon_color": 0}}
        post = self.world.post(room, self.world.person(1), opening, thread=None, reply_to=None)
        room.topics.add(post.id)
        return post.id

    async def close_topic(self, chat: int, thread: int) -> None:
        """Close a topic to new messages."""
        self.world.room(chat).closed.add(thread)

    async def reopen_topic(self, chat: int, thread: int) -> None:
        """Open a closed topic to new messages, which a service message reports."""
        self.world.room(chat).closed.discard(thread)
        await self._post_message(chat, self.world.person(1), {"forum_topic_reopened": {}}, thread=thread)

    async def delete_topic(self, chat: int, thread: int) -> None:
        """Delete a topic."""
        self.world.room(chat).topics.discard(thread)

    async def discussion(self, chat: int, channel: int) -> None:
        """Have a supergroup discuss the posts of a channel."""
        self.world.room(chat).linked = channel
        self.world.rooms[channel] = Room(channel, "channel", "Channel", linked=chat)

    async def publish(self, chat: int, text: str) -> int:
        """Publish a post in the channel of a supergroup; return the number of its copy there."""
        source = self.world.rooms[self.world.room(chat).linked or 0].raw
        origin = {"type": "channel", "chat": source, "message_id": 1, "date": 0}
        marks = {"sender_chat": source, "is_automatic_forward": True, "forward_origin": origin}
        return await self._post_message(chat, TELEGRAM, {**marks, "text": text})

    async def remove(self, chat: int, message: int) -> None:
        """Delete any message of a room; the bot is not told."""
        self.world.posts[chat, message].deleted = True

    async def _post_message(
        self, chat: int, author: Raw, content: Raw, *, thread: int | None = None, reply_to: int | None = None
    ) -> int:
        room = self.world.room(chat)
        post = self.world.post(room, author, content, thread=thread, reply_to=reply_to)
        self.world.update("message", post.raw)
        await self.world.notify_changed()
        return post.id

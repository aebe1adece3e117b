"""Actions of users in the simulated Slack, and the events the app receives."""

from __future__ import annotations

from abc import abstractmethod

from channels.slack.simulator.server import Server
from channels.slack.simulator.world import APP, BOT_USER, TEAM, Modal, Post, Raw, World, room_id

ADA = "U0ADA"


class UserActions:
    """Actions of users; each returns once its events are delivered, or queued for retry."""

    world: World
    server: Server

    @abstractmethod
    async def send(self, kind: str, payload: Raw) -> None:
        """Deliver a payload to the app."""

    @abstractmethod
    async def send_event(self, event: Raw) -> None:
        """Send the app an event, if its scopes allow it."""

    async def say(self, room: str | int, text: str, *, user: str = ADA, thread: str | None = None) -> str:
        """Post a user's message and return its `ts`; a mention in a channel causes two events."""
        return await self._post_message(room, user, {"text": text, "client_msg_id": "0-0"}, thread)

    async def send_file(
        self,
        room: str | int,
        content: bytes,
        *,
        name: str,
        media_type: str,
        text: str = "",
        thread: str | None = None,
    ) -> str:
        """Send a file as a user."""
        number = f"F{next(self.world.numbers):08d}"
        self.world.files[number] = {"id": number, "name": name, "mimetype": media_type, "size": len(content)}
        self.server.store_file(number, content)
        words = {"text": text, "subtype": "file_share", "files": [self.world.files[number]]}
        return await self._post_message(room, ADA, words, thread)

    async def edit(self, room: str | int, ts: str, text: str) -> None:
        """Edit a user's message."""
        post = self._get_post(room, ts)
        before = dict(post.raw)
        post.raw = {**post.raw, "text": text, "edited": {"user": post.user, "ts": self.world.next_ts()}}
        await self._send_message_changed(post, before)

    async def delete(self, room: str | int, ts: str) -> None:
        """Delete a message; one with replies is replaced by a tombstone, which Slack reports as a change."""
        post = self._get_post(room, ts)
        before = dict(post.raw)
        if any(one.thread == ts and one.room == post.room for one in self.world.posts):
            words = {"subtype": "tombstone", "text": "This message was deleted.", "hidden": True}
            post.raw = {"type": "message", "user": "USLACKBOT", "ts": ts, "thread_ts": ts, **words}
            await self._send_message_changed(post, before)
            return
        self.world.posts.remove(post)
        gone = {"subtype": "message_deleted", "deleted_ts": ts, "previous_message": before, "hidden": True}
        stamp = {"ts": self.world.next_ts()}
        await self.send_event({"type": "message", **gone, **self._channel_fields(post.room), **stamp})

    async def update(self, room: str | int, ts: str, **content: object) -> None:
        """Change an app's blocks or attachments by `chat.update`, which does not mark it as edited."""
        post = self._get_post(room, ts)
        before = dict(post.raw)
        post.raw = {**post.raw, **content}
        await self._send_message_changed(post, before)

    async def unfurl(self, room: str | int, ts: str) -> None:
        """Add a link preview to a message, as Slack does."""
        post = self._get_post(room, ts)
        before = dict(post.raw)
        post.raw = {**post.raw, "attachments": [{"id": 1, "title": "a page"}]}
        await self._send_message_changed(post, before)

    async def react(
        self, room: str | int, ts: str, name: str, *, user: str = ADA, added: bool = True
    ) -> None:
        """Add or remove a user's reaction."""
        post = self._get_post(room, ts)
        who = post.reactions.setdefault(name, [])
        if added:
            who.append(user)
        elif user in who:
            who.remove(user)
        item = {"type": "message", "channel": post.room, "ts": ts}
        kind = "reaction_added" if added else "reaction_removed"
        fields = {"type": kind, "user": user, "reaction": name, "item": item, "item_user": post.user}
        await self.send_event({**fields, "event_ts": self.world.next_ts()})

    async def press(self, room: str | int, ts: str, value: str, *, user: str = ADA) -> None:
        """Press one of the bot's buttons as a user."""
        post = self._get_post(room, ts)
        button = next((one for one in post.buttons if one.get("value") == value), None)
        if button is None:
            raise KeyError(f"message {ts} has no button {value!r}")
        thread = {"thread_ts": post.thread} if post.thread else {}
        container = {"type": "message", "message_ts": ts, "channel_id": post.room, "is_ephemeral": False}
        action = {**button, "block_id": "b1", "action_ts": self.world.next_ts()}
        place = {"channel": {"id": post.room, "name": "room"}, "container": {**container, **thread}}
        address = {
            "response_url": self._response_url(post.room, user, ts),
            "trigger_id": self.world.create_trigger(user),
        }
        fields = {"message": post.raw, **place, **address, "actions": [action]}
        where = self.world.room(room)
        who = _user_fields(user, where.team, where.enterprise)
        await self.send("interactive", {"type": "block_actions", **who, **fields})

    async def submit(self, words: str, *, user: str | None = None) -> None:
        """Fill in and submit the modal that opened last."""
        modal = self.open_modals()[-1]
        blocks = [block for block in modal.raw["blocks"] if block.get("type") == "input"]
        values = {
            block["block_id"]: {
                block["element"]["action_id"]: {"type": block["element"]["type"], "value": words or None}
            }
            for block in blocks
        }
        modal.is_open = False
        view = {**modal.raw, "state": {"values": values}}
        fields = {"view": view, "trigger_id": self.world.create_trigger(modal.user), "response_urls": []}
        await self.send(
            "interactive",
            {"type": "view_submission", **_user_fields(user or modal.user, modal.raw["team_id"]), **fields},
        )

    def open_modals(self) -> list[Modal]:
        """Return the open modals."""
        return [modal for modal in self.world.modals if modal.is_open]

    async def slash(self, room: str | int, text: str, *, user: str = ADA) -> None:
        """Send `/dovecote` with a text as a user."""
        name = self.world.room(room).id
        kind = "directmessage" if name.startswith("D") else "room"
        where = {
            "team_id": self.world.room(name).team,
            "channel_id": name,
            "channel_name": kind,
            "user_id": user,
        }
        what = {"command": "/dovecote", "text": text, "trigger_id": self.world.create_trigger(user)}
        address = {"response_url": self._response_url(name, user), "api_app_id": APP}
        await self.send("slash_commands", {**where, "user_name": "ada", **what, **address})

    async def open_agent(self, room: str | int, *, user: str = ADA) -> None:
        """Open the app's chat, as a user of an app with `agent_view`; each message there opens a thread."""
        place = {"channel": self.world.room(room).id, "tab": "messages"}
        context = {"context": {"entities": [_channel_entity("C0ROOM")]}}
        stamp = {"event_ts": self.world.next_ts()}
        await self.send_event({"type": "app_home_opened", "user": user, **place, **context, **stamp})

    async def change_context(self, viewed: str, *, user: str = ADA) -> None:
        """View another channel next to the app's chat."""
        context = {"entities": [_channel_entity(viewed)]}
        stamp = {"event_ts": self.world.next_ts()}
        await self.send_event({"type": "app_context_changed", "user": user, "context": context, **stamp})

    async def send_message_event(self, post: Post) -> None:
        """Send the app an event about a message."""
        await self.send_event({**post.raw, **self._channel_fields(post.room)})

    async def _send_message_changed(self, post: Post, before: Raw) -> None:
        changed = {"subtype": "message_changed", "message": post.raw, "previous_message": before}
        outer = {"type": "message", **changed, **self._channel_fields(post.room)}
        await self.send_event({**outer, "ts": self.world.next_ts(), "hidden": True})

    def _get_post(self, room: str | int, ts: str) -> Post:
        post = self.world.get_post(room_id(room), ts)
        if post is None:
            raise KeyError(ts)
        return post

    def _channel_fields(self, room: str) -> Raw:
        return {"channel": room, "channel_type": self.world.room(room).kind, "event_ts": self.world.next_ts()}

    def _response_url(self, room: str, user: str, ts: str | None = None) -> str:
        return f"{self.server.url}/response/{self.world.create_response_url(room, user, ts)}"

    async def _post_message(self, room: str | int, user: str, content: Raw, thread: str | None) -> str:
        name, team = self.world.room(room).id, self.world.visitors.get(user)
        shown = self.world.organisations.get(team or "", team)
        origin = {"user_team": shown, "source_team": shown, "team": shown} if shown else {}
        place = {"thread_ts": thread} if thread else {}
        post = self.world.post(name, user, {**content, **place, **origin})
        await self.send_event({**post.raw, **self._channel_fields(name)})
        if f"<@{BOT_USER}>" in str(content.get("text")) and not name.startswith("D"):
            mention = {
                key: value for key, value in self._channel_fields(name).items() if key != "channel_type"
            }
            await self.send_event({**post.raw, **mention, "type": "app_mention"})
        return post.ts


def _channel_entity(channel: str) -> Raw:
    return {"type": "slack#/types/channel_id", "value": channel, "team_id": TEAM}


def _user_fields(user: str, team: str, enterprise: str = "") -> Raw:
    person = {"id": user, "username": "ada", "name": "ada", "team_id": team}
    owner = {"id": enterprise, "name": "sim"} if enterprise else None
    place = {"team": {"id": team, "domain": "sim"}, "enterprise": owner}
    return {**place, "user": person, "api_app_id": APP, "token": "unused"}

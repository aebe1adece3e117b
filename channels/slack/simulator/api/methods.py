"""The Web API methods of the simulated Slack, with the errors their pages document."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from channels.slack.simulator.api.interactivity import InteractivityMethods
from channels.slack.simulator.api.streaming import StreamMethods
from channels.slack.simulator.api.structure import check_blocks, check_metadata, parse_flag, parse_json
from channels.slack.simulator.api.uploads import FileMethods
from channels.slack.simulator.failure import ApiFailure
from channels.slack.simulator.installations import ENTERPRISE_PREFIX
from channels.slack.simulator.world import APP, BOT_ID, BOT_USER, Post, Raw, World

TEXT_LIMIT = 40_000
UPDATE_LIMIT = 4_000
MARKDOWN_LIMIT = 12_000
PAGE_LIMIT = 999


class Methods:
    """The methods by name; `on_message` receives each message that results."""

    def __init__(self, world: World, address: Callable[[], str], on_message: Callable[[Post], None]) -> None:
        self._world = world
        self._address = address
        self._on_message = on_message
        self._methods: dict[str, Callable[[Raw], Raw]] = {
            "auth.test": self._auth_test,
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "chat.delete": self._delete,
            "chat.postEphemeral": self._post_ephemeral,
            "conversations.history": self._history,
            "conversations.replies": self._replies,
            **StreamMethods(world, on_message, self.get_writable_room).methods(),
            **FileMethods(world, address, on_message, self.get_writable_room).methods(),
            **InteractivityMethods(world, self.get_writable_room).methods(),
        }

    def call(self, method: str, given: Raw) -> Raw:
        """Carry out a method; raises ApiFailure."""
        known = self._methods.get(method)
        if known is None:
            raise ApiFailure("unknown_method")
        return known(given)

    def remove(self, method: str) -> None:
        """Remove a method, as on a server that does not have it."""
        self._methods.pop(method, None)

    def get_writable_room(self, given: Raw) -> str:
        """Return the room of a call; raises ApiFailure if the bot may not post there."""
        room = self._world.rooms.get(str(given.get("channel")))
        if room is None:
            raise ApiFailure("channel_not_found")
        if room.refusal:
            raise ApiFailure(room.refusal)
        return room.id

    def _auth_test(self, _: Raw) -> Raw:
        who = {"user": "dovecote", "user_id": BOT_USER, "bot_id": BOT_ID}
        return {
            "url": self._address(),
            "team": "Simulated",
            "team_id": self._world.caller,
            "app_id": APP,
            **who,
            **self._organisation(),
        }

    def _organisation(self) -> Raw:
        """Return what auth.test adds for the token of an org-wide installation."""
        caller = self._world.caller
        is_organisation = caller.startswith(ENTERPRISE_PREFIX)
        return {"enterprise_id": caller, "is_enterprise_install": True} if is_organisation else {}

    def _post(self, given: Raw) -> Raw:
        room = self.get_writable_room(given)
        content = _content(given, limit=TEXT_LIMIT)
        if given.get("thread_ts"):
            content["thread_ts"] = given["thread_ts"]
        post = self._world.post(room, BOT_USER, {**content, "bot_id": BOT_ID, "app_id": APP})
        self._on_message(post)
        return {"channel": room, "ts": post.ts, "message": post.raw}

    def _update(self, given: Raw) -> Raw:
        room = self.get_writable_room(given)
        post = self._world.get_post(room, str(given.get("ts")))
        if post is None:
            raise ApiFailure("message_not_found")
        if post.user != BOT_USER:
            raise ApiFailure("cant_update_message")
        if post.streaming is not None:
            raise ApiFailure("streaming_state_conflict")
        content = _content(given, limit=UPDATE_LIMIT)
        post.history.append(post.text)
        post.raw = {**post.raw, **content}
        post.tasks.clear()
        return {"channel": room, "ts": post.ts, "text": content.get("text", "")}

    def _delete(self, given: Raw) -> Raw:
        room, ts = self.get_writable_room(given), str(given.get("ts"))
        post = self._world.get_post(room, ts)
        if post is None:
            raise ApiFailure("message_not_found")
        if post.user != BOT_USER:
            raise ApiFailure("cant_delete_message")
        self._world.posts.remove(post)
        return {"channel": room, "ts": ts}

    def _post_ephemeral(self, given: Raw) -> Raw:
        room = self.get_writable_room(given)
        if not given.get("user"):
            raise ApiFailure("user_not_in_channel")
        self._world.notices.append({"room": room, "user": given["user"], "text": given.get("text", "")})
        return {"message_ts": self._world.next_ts()}

    def _history(self, given: Raw) -> Raw:
        room = self.get_writable_room(given)
        found = [post for post in self._world.posts if post.room == room and not post.thread]
        return self._page([post for post in found[::-1] if _is_within(post.ts, given)], given)

    def _replies(self, given: Raw) -> Raw:
        room, ts = self.get_writable_room(given), str(given.get("ts"))
        root = self._world.get_post(room, ts)
        if root is None:
            raise ApiFailure("thread_not_found")
        said = [post for post in self._world.posts if post.room == room and post.thread == ts]
        return self._page([root, *(post for post in said if _is_within(post.ts, given))], given)

    def _page(self, posts: list[Post], given: Raw) -> Raw:
        """Return one page of messages, with metadata only if it was requested."""
        limit, start = min(int(given.get("limit") or 100), PAGE_LIMIT), _start(given.get("cursor"))
        part, more = posts[start : start + limit], len(posts) > start + limit
        following = base64.b64encode(f"next:{start + limit}".encode()).decode() if more else ""
        with_metadata = self._world.shows_metadata and parse_flag(given.get("include_all_metadata"))
        messages = [_message_json(post, with_metadata=with_metadata) for post in part]
        return {"messages": messages, "has_more": more, "response_metadata": {"next_cursor": following}}


def _content(given: Raw, *, limit: int) -> Raw:
    """Return the content of a message; raises ApiFailure if Slack refuses it."""
    markdown = str(given.get("markdown_text") or "")
    text, blocks = str(given.get("text") or "") or markdown, parse_json(given.get("blocks"))
    if markdown and (given.get("text") or blocks):
        raise ApiFailure("markdown_text_conflict")
    if not text and not blocks:
        raise ApiFailure("no_text")
    if len(text) > (MARKDOWN_LIMIT if markdown else limit):
        raise ApiFailure("msg_too_long")
    if blocks is not None:
        check_blocks(blocks)
    kept: Raw = {name: given[name] for name in ("mrkdwn",) if name in given}
    mark = {"metadata": check_metadata(given["metadata"])} if given.get("metadata") else {}
    return {"text": text, **kept, **mark, **({} if blocks is None else {"blocks": blocks})}


def _is_within(ts: str, given: Raw) -> bool:
    oldest, latest = float(given.get("oldest") or 0), float(given.get("latest") or "inf")
    inside = oldest < float(ts) < latest
    return inside or (parse_flag(given.get("inclusive")) and float(ts) in {oldest, latest})


def _start(cursor: Any) -> int:
    try:
        return int(base64.b64decode(str(cursor or "bmV4dDow")).decode().partition(":")[2])
    except ValueError:
        raise ApiFailure("invalid_cursor") from None


def _message_json(post: Post, *, with_metadata: bool) -> Raw:
    reactions = [
        {"name": name, "users": list(who), "count": len(who)} for name, who in post.reactions.items()
    ]
    raw = {**post.raw, **({"reactions": reactions} if reactions else {})}
    return raw if with_metadata else {name: value for name, value in raw.items() if name != "metadata"}

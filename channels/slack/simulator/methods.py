"""The Web API methods of the simulated Slack, with the refusals their pages document."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from channels.slack.simulator.failure import Failure
from channels.slack.simulator.streaming import Streaming
from channels.slack.simulator.structure import check_blocks, check_metadata, flag, structure
from channels.slack.simulator.surroundings import Surroundings
from channels.slack.simulator.uploads import Uploads
from channels.slack.simulator.world import APP, BOT_ID, BOT_USER, TEAM, Post, Raw, World

TRUNCATED = 40_000
UPDATED = 4_000
MARKDOWN = 12_000
PAGE = 999


class Methods:
    """The methods by name; `told` is given each message event that results."""

    def __init__(self, world: World, address: Callable[[], str], told: Callable[[Post], None]) -> None:
        self._world = world
        self._address = address
        self._told = told
        self._methods: dict[str, Callable[[Raw], Raw]] = {
            "auth.test": self._identify,
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "chat.postEphemeral": self._whisper,
            "conversations.history": self._history,
            "conversations.replies": self._replies,
            **Streaming(world, told, self.open_room).methods(),
            **Uploads(world, address, told, self.open_room).methods(),
            **Surroundings(world, self.open_room).methods(),
        }

    def call(self, method: str, given: Raw) -> Raw:
        """Carry out a method; raises Failure."""
        known = self._methods.get(method)
        if known is None:
            raise Failure("unknown_method")
        return known(given)

    def forget(self, method: str) -> None:
        """Be a Slack that does not have a method."""
        self._methods.pop(method, None)

    def open_room(self, given: Raw) -> str:
        """Return the room that a call names; raises Failure where the bot may not speak."""
        room = self._world.rooms.get(str(given.get("channel")))
        if room is None:
            raise Failure("channel_not_found")
        if room.refusal:
            raise Failure(room.refusal)
        return room.id

    def _identify(self, _: Raw) -> Raw:
        who = {"user": "dovecote", "user_id": BOT_USER, "bot_id": BOT_ID}
        return {"url": self._address(), "team": "Simulated", "team_id": TEAM, "app_id": APP, **who}

    def _post(self, given: Raw) -> Raw:
        room = self.open_room(given)
        content = _content(given, limit=TRUNCATED)
        if given.get("thread_ts"):
            content["thread_ts"] = given["thread_ts"]
        post = self._world.post(room, BOT_USER, {**content, "bot_id": BOT_ID, "app_id": APP})
        self._told(post)
        return {"channel": room, "ts": post.ts, "message": post.raw}

    def _update(self, given: Raw) -> Raw:
        room = self.open_room(given)
        post = self._world.find(room, str(given.get("ts")))
        if post is None:
            raise Failure("message_not_found")
        if post.user != BOT_USER:
            raise Failure("cant_update_message")
        if post.streaming is not None:
            raise Failure("streaming_state_conflict")
        content = _content(given, limit=UPDATED)
        post.history.append(post.text)
        post.raw = {**post.raw, **content}
        return {"channel": room, "ts": post.ts, "text": content.get("text", "")}

    def _whisper(self, given: Raw) -> Raw:
        room = self.open_room(given)
        if not given.get("user"):
            raise Failure("user_not_in_channel")
        self._world.notices.append({"room": room, "user": given["user"], "text": given.get("text", "")})
        return {"message_ts": self._world.stamp()}

    def _history(self, given: Raw) -> Raw:
        room = self.open_room(given)
        found = [post for post in self._world.posts if post.room == room and not post.thread]
        return _page([post for post in found[::-1] if _is_within(post.ts, given)], given)

    def _replies(self, given: Raw) -> Raw:
        room, ts = self.open_room(given), str(given.get("ts"))
        root = self._world.find(room, ts)
        if root is None:
            raise Failure("thread_not_found")
        said = [post for post in self._world.posts if post.room == room and post.thread == ts]
        return _page([root, *(post for post in said if _is_within(post.ts, given))], given)


def _content(given: Raw, *, limit: int) -> Raw:
    """Return what a message will hold; raises Failure for what Slack refuses."""
    markdown = str(given.get("markdown_text") or "")
    text, blocks = str(given.get("text") or "") or markdown, structure(given.get("blocks"))
    if markdown and (given.get("text") or blocks):
        raise Failure("markdown_text_conflict")
    if not text and not blocks:
        raise Failure("no_text")
    if len(text) > (MARKDOWN if markdown else limit):
        raise Failure("msg_too_long")
    if blocks is not None:
        check_blocks(blocks)
    kept: Raw = {name: given[name] for name in ("mrkdwn",) if name in given}
    mark = {"metadata": check_metadata(given["metadata"])} if given.get("metadata") else {}
    return {"text": text, **kept, **mark, **({} if blocks is None else {"blocks": blocks})}


def _is_within(ts: str, given: Raw) -> bool:
    oldest, latest = float(given.get("oldest") or 0), float(given.get("latest") or "inf")
    inside = oldest < float(ts) < latest
    return inside or (flag(given.get("inclusive")) and float(ts) in {oldest, latest})


def _page(posts: list[Post], given: Raw) -> Raw:
    """Return one page of messages, their metadata only when it was asked for."""
    limit, start = min(int(given.get("limit") or 100), PAGE), _start(given.get("cursor"))
    part, more = posts[start : start + limit], len(posts) > start + limit
    following = base64.b64encode(f"next:{start + limit}".encode()).decode() if more else ""
    messages = [_shown(post, marked=flag(given.get("include_all_metadata"))) for post in part]
    return {"messages": messages, "has_more": more, "response_metadata": {"next_cursor": following}}


def _start(cursor: Any) -> int:
    try:
        return int(base64.b64decode(str(cursor or "bmV4dDow")).decode().partition(":")[2])
    except ValueError:
        raise Failure("invalid_cursor") from None


def _shown(post: Post, *, marked: bool) -> Raw:
    signs = [{"name": name, "users": list(who), "count": len(who)} for name, who in post.reactions.items()]
    raw = {**post.raw, **({"reactions": signs} if signs else {})}
    return raw if marked else {name: value for name, value in raw.items() if name != "metadata"}

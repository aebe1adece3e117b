"""The Web API methods of the simulated Slack, with the refusals their pages document."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from channels.slack.simulator.failure import Failure
from channels.slack.simulator.world import APP, BOT_ID, BOT_USER, TEAM, Post, Raw, World

TRUNCATED = 40_000
UPDATED = 4_000
SECTION = 3_000
LABEL = 75
BLOCKS = 50


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
            "files.getUploadURLExternal": self._offer_upload,
            "files.completeUploadExternal": self._complete_upload,
            "files.info": self._describe_file,
        }

    def call(self, method: str, given: Raw) -> Raw:
        """Carry out a method; raises Failure."""
        known = self._methods.get(method)
        if known is None:
            raise Failure("unknown_method")
        return known(given)

    def _identify(self, _: Raw) -> Raw:
        who = {"user": "dovecote", "user_id": BOT_USER, "bot_id": BOT_ID}
        return {"url": self._address(), "team": "Simulated", "team_id": TEAM, "app_id": APP, **who}

    def _post(self, given: Raw) -> Raw:
        room = self._open_room(given)
        content = self._content(given, limit=TRUNCATED)
        if given.get("thread_ts"):
            content["thread_ts"] = given["thread_ts"]
        post = self._world.post(room, BOT_USER, {**content, "bot_id": BOT_ID, "app_id": APP})
        self._told(post)
        return {"channel": room, "ts": post.ts, "message": post.raw}

    def _update(self, given: Raw) -> Raw:
        room = self._open_room(given)
        post = self._world.find(room, str(given.get("ts")))
        if post is None:
            raise Failure("message_not_found")
        if post.user != BOT_USER:
            raise Failure("cant_update_message")
        content = self._content(given, limit=UPDATED)
        post.history.append(post.text)
        post.raw = {**post.raw, **content}
        return {"channel": room, "ts": post.ts, "text": content.get("text", "")}

    def _whisper(self, given: Raw) -> Raw:
        room = self._open_room(given)
        if not given.get("user"):
            raise Failure("user_not_in_channel")
        self._world.notices.append({"room": room, "user": given["user"], "text": given.get("text", "")})
        return {"message_ts": self._world.stamp()}

    def _history(self, given: Raw) -> Raw:
        room = self._open_room(given)
        found = [post.raw for post in self._world.posts if post.room == room and not post.thread]
        return {"messages": found[::-1], "has_more": False}

    def _replies(self, given: Raw) -> Raw:
        room, ts = self._open_room(given), given.get("ts")
        found = [post.raw for post in self._world.posts if post.room == room and ts in {post.ts, post.thread}]
        return {"messages": found, "has_more": False}

    def _offer_upload(self, given: Raw) -> Raw:
        length = str(given.get("length", ""))
        if not given.get("filename") or not length.isdecimal() or int(length) < 1:
            raise Failure("invalid_arguments")
        file_id = f"F{next(self._world.numbers):08d}"
        self._world.files[file_id] = {"id": file_id, "name": given["filename"], "size": int(length)}
        return {"upload_url": f"{self._address()}/upload/v1/{file_id}", "file_id": file_id}

    def _complete_upload(self, given: Raw) -> Raw:
        files = _structure(given.get("files"))
        numbers = [str(file.get("id")) for file in files] if isinstance(files, list) else []
        if not numbers or any(number not in self._world.contents for number in numbers):
            raise Failure("file_not_found")
        described = [self._world.files[number] for number in numbers]
        if given.get("channel_id"):
            room = self._open_room({"channel": given["channel_id"]})
            thread = {"thread_ts": given["thread_ts"]} if given.get("thread_ts") else {}
            words = {"text": given.get("initial_comment", ""), "files": described, "subtype": "file_share"}
            self._told(self._world.post(room, BOT_USER, {**words, **thread, "bot_id": BOT_ID}))
        return {"files": described}

    def _describe_file(self, given: Raw) -> Raw:
        file = self._world.files.get(str(given.get("file")))
        if file is None:
            raise Failure("file_not_found")
        return {"file": file}

    def _open_room(self, given: Raw) -> str:
        room = self._world.rooms.get(str(given.get("channel")))
        if room is None:
            raise Failure("channel_not_found")
        if room.refusal:
            raise Failure(room.refusal)
        return room.id

    def _content(self, given: Raw, *, limit: int) -> Raw:
        text, blocks = given.get("text") or "", _structure(given.get("blocks"))
        if not text and not blocks:
            raise Failure("no_text")
        if len(text) > limit:
            raise Failure("msg_too_long")
        if blocks is not None:
            _check_blocks(blocks)
        kept: Raw = {name: given[name] for name in ("mrkdwn", "metadata") if name in given}
        return {"text": text, **kept, **({} if blocks is None else {"blocks": blocks})}


def _structure(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise Failure("invalid_arguments") from None


def _check_blocks(blocks: Any) -> None:
    """Refuse blocks that Slack refuses."""
    if not isinstance(blocks, list) or len(blocks) > BLOCKS:
        raise Failure("invalid_blocks")
    names = [button.get("action_id") for block in blocks for button in block.get("elements", [])]
    if len(set(names)) != len(names):
        raise Failure("invalid_blocks")
    for block in blocks:
        _check_block(block)


def _check_block(block: Any) -> None:
    if block.get("type") == "section" and not 1 <= len(block["text"]["text"]) <= SECTION:
        raise Failure("invalid_blocks")
    if block.get("type") == "actions" and not block.get("elements"):
        raise Failure("invalid_blocks")
    for button in block.get("elements", []):
        if not 1 <= len(button["text"]["text"]) <= LABEL:
            raise Failure("invalid_blocks")

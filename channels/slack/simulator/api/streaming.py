"""Streams of the simulated Slack: a reply that grows until it is stopped, or for 300 s."""

from __future__ import annotations

from collections.abc import Callable

from channels.slack.simulator.api.structure import BLOCKS_LIMIT, check_blocks, check_metadata, parse_json
from channels.slack.simulator.failure import ApiFailure
from channels.slack.simulator.world import APP, BOT_ID, BOT_USER, Post, Raw, World

MARKDOWN_LIMIT = 12_000
STREAM_SECONDS = 300
TASK_STATUSES = {"pending", "in_progress", "complete", "error"}
RECIPIENT_FIELDS = ("recipient_team_id", "recipient_user_id")


class StreamMethods:
    """chat.startStream, chat.appendStream and chat.stopStream."""

    def __init__(
        self, world: World, on_message: Callable[[Post], None], get_room: Callable[[Raw], str]
    ) -> None:
        self._world = world
        self._on_message = on_message
        self._get_room = get_room

    def methods(self) -> dict[str, Callable[[Raw], Raw]]:
        """Return the methods by name."""
        return {
            "chat.startStream": self._start,
            "chat.appendStream": self._append,
            "chat.stopStream": self._stop,
        }

    def _start(self, given: Raw) -> Raw:
        room = self._get_room(given)
        thread = str(given.get("thread_ts") or "")
        if thread and self._world.get_post(room, thread) is None:
            raise ApiFailure("invalid_thread_ts")
        if self._world.room(room).kind != "im":
            _check_recipient(given, self._world, self._world.room(room).team)
        place = {"thread_ts": thread} if thread else {}
        content = {"text": _markdown(given), **place, "bot_id": BOT_ID, "app_id": APP}
        post = self._world.post(room, BOT_USER, content)
        _update_plan(post, given)
        post.streaming = self._world.clock.now()
        self._on_message(post)
        return {"channel": room, "ts": post.ts}

    def _append(self, given: Raw) -> Raw:
        post = self._get_streaming_post(given)
        more = _markdown(given)
        if not more and not _update_plan(post, given):
            raise ApiFailure("no_text")
        post.history.append(post.text)
        post.raw = {**post.raw, "text": post.raw["text"] + more}
        return {"channel": post.room, "ts": post.ts}

    def _stop(self, given: Raw) -> Raw:
        post = self._get_streaming_post(given)
        blocks = parse_json(given.get("blocks"))
        if blocks is not None:
            check_blocks(blocks)
        mark = {"metadata": check_metadata(given["metadata"])} if given.get("metadata") else {}
        _update_plan(post, given)
        content = {"text": post.raw["text"] + _markdown(given), **mark}
        post.raw = {**post.raw, **content, **({} if blocks is None else {"blocks": blocks})}
        post.streaming = None
        return {"channel": post.room, "ts": post.ts, "message": post.raw}

    def _get_streaming_post(self, given: Raw) -> Post:
        post = self._world.get_post(self._get_room(given), str(given.get("ts")))
        if post is None:
            raise ApiFailure("message_not_found")
        if post.streaming is not None and self._world.clock.now() - post.streaming > STREAM_SECONDS:
            post.streaming = None
        if post.streaming is None:
            raise ApiFailure("message_not_in_streaming_state")
        return post


def _check_recipient(given: Raw, world: World, team: str) -> None:
    for name in RECIPIENT_FIELDS:
        if not given.get(name):
            raise ApiFailure(f"missing_{name}")
    if given["recipient_team_id"] != world.visitors.get(given["recipient_user_id"], team):
        raise ApiFailure("team_not_found")


def _update_plan(post: Post, given: Raw) -> bool:
    """Apply task and plan chunks to a message; return whether there were any."""
    chunks = [one for one in parse_json(given.get("chunks")) or [] if one.get("type") != "markdown_text"]
    for chunk in chunks:
        if chunk.get("type") == "plan_update" and chunk.get("title"):
            post.plan_title = str(chunk["title"])
        elif chunk.get("type") == "task_update" and _is_task(chunk):
            post.tasks[chunk["id"]] = (chunk["title"], chunk["status"])
        else:
            raise ApiFailure("invalid_chunks")
    if len(post.tasks) > BLOCKS_LIMIT:
        raise ApiFailure("invalid_chunks")
    return bool(chunks)


def _is_task(chunk: Raw) -> bool:
    return bool(chunk.get("id") and chunk.get("title")) and chunk.get("status") in TASK_STATUSES


def _markdown(given: Raw) -> str:
    """Return the text of markdown_text, or of chunks of that type."""
    chunks = parse_json(given.get("chunks")) or []
    texts = [str(chunk.get("text", "")) for chunk in chunks if chunk.get("type") == "markdown_text"]
    text = str(given.get("markdown_text") or "") + "".join(texts)
    if len(text) > MARKDOWN_LIMIT:
        raise ApiFailure("msg_too_long")
    return text

"""Show a reply while it is generated: by Slack's streams, or by posts that are updated.

A stream's platform id is `stream:<ts>`, so that any later process can recognise and end it. Slack ends a
stream by itself after some minutes; then the message is updated instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from hashlib import sha256
from typing import Any

from channels.commonmark.splitting import split
from channels.errors import NotPermitted, Rejected, Undeliverable
from channels.inbox.errors import require_id
from channels.inbox.text import clean
from channels.message import Address, DraftText, Reply, RoomKind, SentMessage
from channels.port import RECENT_PREFIX, ChannelState
from channels.receiving.expiring_set import ExpiringSet
from channels.slack import text as slack_text
from channels.slack.addresses import room_kind_of
from channels.slack.api import Api, answer_of
from channels.slack.errors import error_code
from channels.slack.send import markup
from channels.slack.send.rendering import TEXT_LIMIT
from channels.slack.thread_locations import TEAM_PREFIX

STREAM_PREFIX = "stream:"
STARTED_PREFIX = f"{RECENT_PREFIX}stream:"
"""Prefix of the names of streams that were started: Slack gives their messages no metadata."""

MAX_MARKDOWN_CHARACTERS = 12_000
"""Characters that markdown_text may have in one call."""

LONGEST_ENTITY = 5
MAX_REMEMBERED_ROOMS = 1000
REFUSED_SECONDS = 3600.0
"""Seconds for which no stream is tried where Slack refused one."""

_EVERYWHERE = ""
_UNSUPPORTED_CODES = frozenset(
    ["unknown_method", "not_allowed", "feature_not_enabled", "missing_scope", "method_deprecated"]
)
_PASSING_CODES = frozenset(
    ["invalid_thread_ts", "missing_recipient_team_id", "missing_recipient_user_id", "not_in_channel"]
)
"""Codes that concern one thread or person, or last until the bot is invited: the next reply may stream."""

STREAM_ENDED_CODES = {"message_not_in_streaming_state", "message_not_found", "unknown_method"}

SendReply = Callable[[Address, Reply], Awaitable[SentMessage]]
UpdateMessage = Callable[[Address, str, Reply], Awaitable[None]]


class StreamingReplies:
    """Shows growing replies and remembers for a while where Slack refuses streams."""

    def __init__(
        self, api: Api, state: ChannelState, *, team: str, send: SendReply, update: UpdateMessage
    ) -> None:
        self._api = api
        self._state = state
        self._team = team
        self._send = send
        self._update = update
        self._refused = ExpiringSet[str](MAX_REMEMBERED_ROOMS, seconds=REFUSED_SECONDS)

    async def update(self, address: Address, draft: DraftText) -> SentMessage:
        """Show the text so far, by stream or update, as Slack allows here; raises ChannelError."""
        if draft.platform_id is None:
            return await self._begin(address, draft)
        if not draft.platform_id.startswith(STREAM_PREFIX):
            await self._update(address, draft.platform_id, _partial_reply(draft))
            return SentMessage(platform_id=draft.platform_id)
        if draft.text.startswith(draft.previous_text) and await self._append(address, draft):
            return SentMessage(platform_id=draft.platform_id)
        ts = await self.stop(address, draft.platform_id)
        await self._update(address, ts, _partial_reply(draft))
        return SentMessage(platform_id=ts)

    async def stop(self, address: Address, platform_id: str) -> str:
        """End a stream if it has not ended, and return the message's own id."""
        if not platform_id.startswith(STREAM_PREFIX):
            return platform_id
        ts = platform_id.removeprefix(STREAM_PREFIX)
        try:
            await answer_of(self._api.web.chat_stopStream(channel=address.room, ts=ts))
        except (Rejected, Undeliverable) as error:
            if error_code(error) not in STREAM_ENDED_CODES:
                raise
        return ts

    async def _begin(self, address: Address, draft: DraftText) -> SentMessage:
        stream = await self._start(address, draft) if self.may_stream(address, draft.recipient_id) else None
        return stream or await self._send(address, _partial_reply(draft))

    async def get_started(self, key: str) -> str:
        """Return the digest of the text with which a stream was started, or an empty text."""
        return await self._state.get(STARTED_PREFIX + key) or ""

    def may_stream(self, address: Address, recipient_id: str) -> bool:
        """Return whether a stream is possible: in a channel it needs a recipient."""
        refused = _EVERYWHERE in self._refused or address.room in self._refused
        direct = room_kind_of(address.room, None) is RoomKind.DIRECT
        return not refused and (direct or bool(recipient_id))

    async def _start(self, address: Address, draft: DraftText) -> SentMessage | None:
        """Start a stream with the text so far; None where Slack refuses.

        The text is noted before the call: this process may be killed, or give up, before it is answered.
        """
        pieces = list(_chunks(draft.text))
        if pieces:
            await self._state.set({STARTED_PREFIX + draft.key: digest(pieces[0])})
        ts = await self.start(address, draft.recipient_id, markdown_text=pieces[0] if pieces else None)
        if ts is None:
            return None
        for piece in pieces[1:]:
            await self._call_append(address, ts, piece)
        return SentMessage(platform_id=STREAM_PREFIX + ts)

    async def start(self, address: Address, recipient_id: str, **content: Any) -> str | None:
        """Start a stream; None where Slack refuses, which is remembered if it lasts; raises ChannelError."""
        other = await self._state.get(TEAM_PREFIX + recipient_id) if recipient_id else None
        try:
            answer, _ = await answer_of(
                self._api.web.chat_startStream(
                    channel=address.room,
                    thread_ts=address.thread,  # type: ignore[arg-type]  # optional at Slack
                    recipient_user_id=recipient_id or None,
                    recipient_team_id=(other or self._team) if recipient_id else None,
                    **content,
                )
            )
        except (Rejected, NotPermitted, Undeliverable) as error:
            code = error_code(error)
            if code not in _PASSING_CODES and not isinstance(error, Undeliverable):
                self._refused.add(_EVERYWHERE if code in _UNSUPPORTED_CODES else address.room)
            return None
        return require_id(answer.get("ts"), "chat.startStream")

    async def _append(self, address: Address, draft: DraftText) -> bool:
        """Append the new text; False if the stream has ended."""
        ts = str(draft.platform_id).removeprefix(STREAM_PREFIX)
        try:
            for piece in _chunks(draft.text[len(draft.previous_text) :]):
                await self._call_append(address, ts, piece)
        except (Rejected, NotPermitted, Undeliverable):
            return False
        return True

    async def _call_append(self, address: Address, ts: str, chunk: str) -> None:
        append = self._api.web.chat_appendStream
        await answer_of(append(channel=address.room, ts=ts, markdown_text=chunk))


def digest(text: str) -> str:
    """Return a digest of a text's letters and digits, which Slack's rendering keeps."""
    return sha256("".join(filter(str.isalnum, text)).encode(errors="replace")).hexdigest()


def _partial_reply(draft: DraftText) -> Reply:
    """Return a message with as much text as fits, which can be found by the draft's key."""
    parts = split(draft.text, TEXT_LIMIT, slack_text.measure) if draft.text.strip() else ["…"]
    return Reply(text=parts[0], key=draft.key)


def _chunks(text: str) -> Iterator[str]:
    """Yield the escaped text in pieces that fit one call, without cutting an entity."""
    escaped = markup.escape_markdown(clean(text))
    while len(escaped) > MAX_MARKDOWN_CHARACTERS:
        piece = escaped[:MAX_MARKDOWN_CHARACTERS]
        entity = piece.rfind("&", -LONGEST_ENTITY)
        end = entity if entity > 0 and ";" not in piece[entity:] else len(piece)
        yield escaped[:end]
        escaped = escaped[end:]
    if escaped:
        yield escaped

"""A reply while it is being said: Slack's own streams, and posts that are updated where those are refused.

A stream's platform id is `stream:<ts>`, so that whoever ends it, days later or on another replica, knows
what it is. Slack ends a stream by itself after some minutes; then the message grows by updates.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from channels.errors import Ambiguous, NotPermitted, Rejected, Undeliverable
from channels.message import Address, Reply, Room, Sent, Showing
from channels.slack import text as slack_text
from channels.slack.addresses import room_of
from channels.slack.api import Api
from channels.slack.errors import word_of
from channels.slack.send import markup
from channels.slack.send.rendering import TEXT_LIMIT
from channels.splitting import split

STREAM = "stream:"
PIECE = 12_000
"""Characters that one call's markdown_text takes."""

REMEMBERED_ROOMS = 1000
_NOWHERE = {"unknown_method", "not_allowed", "feature_not_enabled", "missing_scope", "method_deprecated"}
_ENDED = {"message_not_in_streaming_state", "message_not_found", "unknown_method"}

Say = Callable[[Address, Reply], Awaitable[Sent]]
Update = Callable[[Address, str, Reply], Awaitable[None]]


class Streams:
    """The replies that are being said; it remembers where Slack refuses streams."""

    def __init__(self, api: Api, *, team: str, say: Say, update: Update) -> None:
        self._api = api
        self._team = team
        self._say = say
        self._update = update
        self._refused: OrderedDict[str, None] = OrderedDict()
        self._is_refused_everywhere = False

    async def show(self, address: Address, showing: Showing) -> Sent:
        """Show what there is so far, by whatever Slack allows here; raises ChannelError."""
        if showing.platform_id is None:
            return await self._begin(address, showing)
        if not showing.platform_id.startswith(STREAM):
            await self._update(address, showing.platform_id, _so_far(showing))
            return Sent(platform_id=showing.platform_id)
        if showing.text.startswith(showing.shown) and await self._append(address, showing):
            return Sent(platform_id=showing.platform_id)
        ts = await self.end(address, showing.platform_id)
        await self._update(address, ts, _so_far(showing))
        return Sent(platform_id=ts)

    async def end(self, address: Address, platform_id: str) -> str:
        """End a stream, if it is one and has not ended; returns the message's own id."""
        if not platform_id.startswith(STREAM):
            return platform_id
        ts = platform_id.removeprefix(STREAM)
        try:
            await self._api.call("chat.stopStream", {"channel": address.room, "ts": ts})
        except (Rejected, Undeliverable) as error:
            if word_of(error) not in _ENDED:
                raise
        return ts

    async def _begin(self, address: Address, showing: Showing) -> Sent:
        stream = await self._start(address, showing) if self._may_stream(address, showing) else None
        return stream or await self._say(address, _so_far(showing))

    def _may_stream(self, address: Address, showing: Showing) -> bool:
        """A stream answers in a thread, and in a channel it answers somebody."""
        refused = self._is_refused_everywhere or address.room in self._refused
        direct = room_of(address.room, None) is Room.DIRECT
        return not refused and address.thread is not None and (direct or bool(showing.asker))

    async def _start(self, address: Address, showing: Showing) -> Sent | None:
        """Start a stream with what there is; None where Slack refuses streams, which is remembered."""
        pieces = list(_pieces(showing.text))
        asker = {"recipient_user_id": showing.asker, "recipient_team_id": self._team} if showing.asker else {}
        place = {"channel": address.room, "thread_ts": address.thread, **asker}
        first = {"markdown_text": pieces[0]} if pieces else {}
        try:
            answer = await self._api.call("chat.startStream", {**place, **first})
        except (Rejected, NotPermitted, Undeliverable) as error:
            self._remember_refusal(address.room, word_of(error))
            return None
        ts = _stamp(answer)
        for piece in pieces[1:]:
            await self._call_append(address, ts, piece)
        return Sent(platform_id=STREAM + ts)

    def _remember_refusal(self, room: str, word: str) -> None:
        if word in _NOWHERE:
            self._is_refused_everywhere = True
        self._refused[room] = None
        if len(self._refused) > REMEMBERED_ROOMS:
            self._refused.popitem(last=False)

    async def _append(self, address: Address, showing: Showing) -> bool:
        """Append what is new; False when the stream has ended."""
        ts = str(showing.platform_id).removeprefix(STREAM)
        try:
            for piece in _pieces(showing.text[len(showing.shown) :]):
                await self._call_append(address, ts, piece)
        except (Rejected, NotPermitted, Undeliverable):
            return False
        return True

    async def _call_append(self, address: Address, ts: str, piece: str) -> None:
        said = {"channel": address.room, "ts": ts, "markdown_text": piece}
        await self._api.call("chat.appendStream", said)


def _so_far(showing: Showing) -> Reply:
    """Return a message that shows as much as one message can; it bears the reply's key only once it is it."""
    parts = split(showing.text, TEXT_LIMIT, slack_text.measure) if showing.text.strip() else ["…"]
    return Reply(text=parts[0], key=f"draft:{showing.key}")


def _pieces(text: str) -> Iterator[str]:
    """Yield the text as it travels, in pieces that one call takes, no entity cut in two."""
    piece: list[str] = []
    size = 0
    for character in slack_text.clean(text):
        mark = markup.escape(character)
        if size + len(mark) > PIECE:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(mark)
        size += len(mark)
    if piece:
        yield "".join(piece)


def _stamp(answer: Mapping[str, Any]) -> str:
    ts = answer.get("ts")
    if not isinstance(ts, str) or not ts:
        raise Ambiguous("chat.startStream: the answer names no message")
    return ts

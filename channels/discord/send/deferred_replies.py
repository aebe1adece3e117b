"""Commands that were acknowledged and still show "is thinking…": the first answer takes that place.

A question's place is taken by what is sent to its conversation. An order of the vocabulary is answered by
its own token, often while it is still being accepted: then the answer is the acknowledgement.

The token that fills a place is a credential of fifteen minutes and is kept in memory only. What is noted
durably holds no secret: where a command was given, its id, and, before a place is filled, the nonce of the
reply that takes it. From that a later process finds the place in the channel's history: one that still
"thinks" is taken away with the bot's own token, and one that was filled is not said again.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from channels.discord.api import Api, path
from channels.discord.send import rendering
from channels.errors import ChannelError
from channels.message import Address, Command, IgnoredUpdate, Message, Update
from channels.port import ChannelState

TOKEN_SECONDS = 14 * 60.0
"""Seconds a token is used; Discord ends it after fifteen minutes."""

EXPIRED_SECONDS = 16 * 60.0
"""Seconds after which Discord itself has ended a place that nobody filled."""

NOTE_SECONDS = 24 * 3600.0
"""Seconds a filled place is remembered."""

MAX_REPLIES = 10_000
MAX_NOTES = 61
"""Places that are noted at most; a later one overwrites one that shares its slot. A prime spreads the ids,
which grow by a power of two each millisecond."""

PREFIX = "deferred/"
LOADING = 1 << 7
PAGE = 50

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class DeferredReply:
    """A message that waits for its text; `token` answers in the application's name."""

    address: Address
    application: str
    interaction: str
    token: str
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredReplyNote:
    """What is noted of a place: the channel, the command's id, when it was, and who took it."""

    channel: str
    interaction: str
    at: float
    nonce: str = ""

    @property
    def slot(self) -> str:
        """The name of its note."""
        return f"{PREFIX}{int(self.interaction) % MAX_NOTES}"

    def encode(self) -> str:
        """Return it as a note."""
        return json.dumps([self.channel, self.interaction, int(self.at), self.nonce])


def decode_note(note: str) -> DeferredReplyNote | None:
    """Return what a note says; None for one that says nothing."""
    try:
        channel, interaction, at, nonce = json.loads(note)
        trace = DeferredReplyNote(
            channel=str(channel), interaction=str(interaction), at=int(at), nonce=str(nonce)
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return trace if trace.channel.isdecimal() and trace.interaction.isdecimal() else None


class DeferredReplies:
    """The places that wait, by conversation, and those taken, by the key of the reply that took them."""

    def __init__(self, api: Api, state: ChannelState, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._pending: OrderedDict[str, deque[DeferredReply]] = OrderedDict()
        self._claimed: OrderedDict[str, DeferredReply] = OrderedDict()
        self._earlier: dict[str, DeferredReplyNote] = {}
        self._accepting: dict[str, bool] = {}

    async def load(self) -> None:
        """Read what another process noted of its places."""
        ours = {place.interaction for places in self._pending.values() for place in places}
        ours |= {place.interaction for place in self._claimed.values()}
        for note in (await self._state.list(PREFIX)).values():
            trace = decode_note(note)
            if trace and trace.at > self._clock() - NOTE_SECONDS and trace.interaction not in ours:
                self._earlier[trace.interaction] = trace

    async def add(self, address: Address, *, application: str, interaction: str, token: str) -> None:
        """Remember that an answer in this conversation belongs to a command."""
        place = DeferredReply(address, application, interaction, token, self._clock() + TOKEN_SECONDS)
        self._pending.setdefault(address.key, deque(maxlen=MAX_NOTES)).append(place)
        _evict(self._pending)
        await self.record(address, interaction)

    async def on_acknowledged(self, decoded: Update | IgnoredUpdate, interaction: Mapping[str, Any]) -> None:
        """An interaction was acknowledged: a command shows "is thinking…" from now on."""
        number = str(interaction.get("id"))
        if isinstance(decoded, Command):
            await self.record(decoded.address, number)
        if isinstance(decoded, Message):
            application, token = str(interaction.get("application_id")), str(interaction.get("token"))
            await self.add(decoded.address, application=application, interaction=number, token=token)

    async def record(self, address: Address, interaction: str) -> None:
        """Note that a command shows "is thinking…"."""
        trace = DeferredReplyNote(
            channel=rendering.channel_id_of(address), interaction=interaction, at=self._clock()
        )
        await self._save_note(trace)

    def begin_accepting(self, interaction: str) -> None:
        """A command is being accepted and not acknowledged yet."""
        self._accepting[interaction] = False

    def is_accepting(self, interaction: str) -> bool:
        """Whether a command still waits for its acknowledgement."""
        return self._accepting.get(interaction) is False

    def mark_acknowledged(self, interaction: str) -> None:
        """An answer was the acknowledgement."""
        if interaction in self._accepting:
            self._accepting[interaction] = True

    def end_accepting(self, interaction: str) -> bool:
        """The command is accepted; say whether it was answered meanwhile."""
        return self._accepting.pop(interaction, False)

    async def claim(self, address: Address, key: str, nonce: str) -> DeferredReply | None:
        """Return the place for a reply: the same one for the same reply, each time it is tried."""
        place = self._claimed.get(key) or self._pop_pending(address.key)
        if place is None or place.until < self._clock():
            return None
        if key not in self._claimed:
            self._claimed[key] = place
            _evict(self._claimed)
            channel, now = rendering.channel_id_of(address), self._clock()
            await self._save_note(
                DeferredReplyNote(channel=channel, interaction=place.interaction, at=now, nonce=nonce)
            )
        return place

    async def delete_pending(self, channel: str) -> None:
        """Take the places of a channel away: what was to stand there was said by another process."""
        waiting = [place for places in self._pending.values() for place in places]
        for place in [place for place in waiting if rendering.channel_id_of(place.address) == channel]:
            self._pop_pending(place.address.key)
            where = path("webhooks", place.application, place.token, "messages", "@original")
            try:
                await self._api.call("DELETE", where, name="remove a place", as_bot=False)
            except ChannelError as error:
                log.info("discord.deferred_reply_delete_failed: %s", error)
            await self.resolve(place.interaction, channel)

    def delete_claim(self, key: str) -> None:
        """Forget a place that Discord no longer knows."""
        self._claimed.pop(key, None)

    async def resolve(self, interaction: str, channel: str) -> None:
        """Forget what was noted of a place that no reply took."""
        trace = DeferredReplyNote(channel=channel, interaction=interaction, at=0.0)
        noted = decode_note(await self._get_state(trace.slot))
        if noted is not None and noted.interaction == interaction:
            await self._set_state({trace.slot: ""})

    async def find_filled(self, nonce: str) -> tuple[str, str] | None:
        """Return channel and message of the place that an earlier process filled with this reply."""
        for trace in [trace for trace in self._earlier.values() if trace.nonce == nonce]:
            found = await self._find_message(trace)
            if found is not None and not _is_loading(found):
                return trace.channel, str(found["id"])
            del self._earlier[trace.interaction]
        return None

    async def delete_abandoned(self) -> None:
        """Take away the places of an earlier process that still "think": nobody can fill them any more."""
        await self.load()
        for trace in list(self._earlier.values()):
            is_over = trace.at < self._clock() - EXPIRED_SECONDS
            if is_over and trace.nonce:
                continue
            found = None if is_over else await self._find_message(trace)
            if found is not None and _is_loading(found):
                await self._delete_message(trace, str(found["id"]))
            if not trace.nonce or found is None or _is_loading(found):
                self._earlier.pop(trace.interaction, None)
                await self._set_state({trace.slot: ""})

    def _pop_pending(self, key: str) -> DeferredReply | None:
        places = self._pending.get(key)
        place = places.popleft() if places else None
        if places is not None and not places:
            del self._pending[key]
        return place

    async def _find_message(self, note: DeferredReplyNote) -> Mapping[str, Any] | None:
        """Look for the message that a command's acknowledgement made."""
        where = path("channels", note.channel, "messages")
        query = f"after={note.interaction}&limit={PAGE}"
        try:
            page = await self._api.call("GET", where, name="find a place", query=query)
        except ChannelError as error:
            log.info("discord.deferred_reply_lookup_failed: %s", error)
            return None
        return next((one for one in _messages(page) if _interaction_id_of(one) == note.interaction), None)

    async def _delete_message(self, note: DeferredReplyNote, message: str) -> None:
        where = path("channels", note.channel, "messages", message)
        try:
            await self._api.call("DELETE", where, name="remove a place")
        except ChannelError as error:
            log.info("discord.deferred_reply_delete_failed: %s", error)

    async def _save_note(self, note: DeferredReplyNote) -> None:
        await self._set_state({note.slot: note.encode()})

    async def _set_state(self, values: Mapping[str, str]) -> None:
        """Notes are hints: what cannot be noted costs a tidy channel after a restart, nothing else."""
        try:
            await self._state.set(values)
        except Exception as error:  # noqa: BLE001 - a store of any kind is behind it
            log.warning("discord.deferred_reply_save_failed: %r", error)

    async def _get_state(self, name: str) -> str:
        try:
            return await self._state.get(name) or ""
        except Exception as error:  # noqa: BLE001 - a store of any kind is behind it
            log.warning("discord.channel_state_read_failed: %r", error)
            return ""


def _messages(page: object) -> Iterator[Mapping[str, Any]]:
    for one in page if isinstance(page, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), str):
            yield one


def _interaction_id_of(message: Mapping[str, Any]) -> str | None:
    """Return the id of the interaction that a message answers."""
    origin = message.get("interaction_metadata") or message.get("interaction")
    return str(origin.get("id")) if isinstance(origin, dict) else None


def _is_loading(message: Mapping[str, Any]) -> bool:
    flags = message.get("flags")
    return isinstance(flags, int) and bool(flags & LOADING)


def _evict(entries: OrderedDict[str, Any]) -> None:
    while len(entries) > MAX_REPLIES:
        entries.popitem(last=False)

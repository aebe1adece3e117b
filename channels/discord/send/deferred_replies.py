"""Fill the deferred replies ("is thinking…") of acknowledged slash commands with the first answer.

The deferred reply of `/ask` is filled by the next message to its conversation. Another command is answered by
its own token, often while it is still being accepted; then the answer is also the acknowledgement.

The token that fills a deferred reply is valid for fifteen minutes and is kept among the channel's secrets,
because another replica may send the answer. The channel's state holds no secret: the channel, the command's
id and, before the reply is filled, the nonce of the message that claims it. With these, a later process finds
the deferred reply in the channel's history. If it still "thinks" and has no token, such as that of another
command, the bot deletes it with its own token; if it was filled, the answer is not sent again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from channels.discord.api import Api
from channels.discord.send import rendering
from channels.errors import ChannelError
from channels.message import Address, Command, IgnoredUpdate, Message, Update
from channels.port import RECENT_PREFIX, ChannelState
from channels.receiving.bounded_dict import BoundedDict

TOKEN_SECONDS = 14 * 60.0
"""Seconds a token is used; Discord's limit is fifteen minutes."""

EXPIRED_SECONDS = 16 * 60.0
"""Seconds after which Discord itself has ended a deferred reply."""

NOTE_SECONDS = 24 * 3600.0
"""Seconds a filled deferred reply is remembered."""

RESPONSE_SECONDS = 2.5
"""Seconds in which a posted command is answered by the HTTP response; Discord waits for three."""

MAX_REPLIES = 10_000
MAX_NOTES = 61
"""Most deferred replies that are stored; a later one may overwrite one in the same slot.

A prime spreads the ids, which grow by a power of two each millisecond.
"""

PREFIX = "deferred/"
TOKEN_PREFIX = f"{RECENT_PREFIX}deferred/"
LOADING = 1 << 7
PAGE, MAX_TOKENS = 50, 1000

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class InteractionInProgress:
    """A command or press that is being accepted and not yet acknowledged.

    A posted one is acknowledged by the `response` to its HTTP request until `until`. If that is missed,
    `otherwise` sends the answer.
    """

    until: float = 0.0
    is_acknowledged: bool = False
    response: Mapping[str, Any] | None = None
    otherwise: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class DeferredReply:
    """A deferred reply that can be filled; `token` answers in the application's name."""

    address: Address
    application: str
    interaction: str
    token: str
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredReplyNote:
    """The stored part of a deferred reply: channel, command id, time, and the claiming nonce."""

    channel: str
    interaction: str
    at: float
    nonce: str = ""

    @property
    def slot(self) -> str:
        """The name under which it is stored."""
        return f"{PREFIX}{int(self.interaction) % MAX_NOTES}"

    def encode(self) -> str:
        """Return it as a value of the channel's state."""
        return json.dumps([self.channel, self.interaction, int(self.at), self.nonce])


def decode_note(note: str) -> DeferredReplyNote | None:
    """Return the note that `encode` wrote; None for any other value."""
    try:
        channel, interaction, at, nonce = json.loads(note)
        decoded = DeferredReplyNote(
            channel=str(channel), interaction=str(interaction), at=int(at), nonce=str(nonce)
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return decoded if decoded.channel.isdecimal() and decoded.interaction.isdecimal() else None


class DeferredReplies:
    """Pending deferred replies by channel, and claimed ones by the claiming reply's key."""

    def __init__(self, api: Api, state: ChannelState, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._state = state
        self._clock = clock
        self._claimed = BoundedDict[str, DeferredReply](MAX_REPLIES)
        self._earlier: dict[str, DeferredReplyNote] = {}
        self._accepting: dict[str, InteractionInProgress] = {}

    async def load(self) -> None:
        """Read the deferred replies that another process stored."""
        ours = {reply.interaction for reply in self._claimed.values()}
        for value in (await self._state.list(PREFIX)).values():
            stored = decode_note(value)
            if stored and stored.at > self._clock() - NOTE_SECONDS and stored.interaction not in ours:
                self._earlier[stored.interaction] = stored

    async def add(self, address: Address, *, application: str, interaction: str, token: str) -> None:
        """Add a deferred reply that the next message to this conversation fills."""
        reply = [address.encode(), application, interaction, token, self._clock() + TOKEN_SECONDS, ""]
        await self._save_token(f"{_tokens_of(rendering.channel_id_of(address))}{interaction:0>20}", reply)
        await self.record(address, interaction)

    async def on_acknowledged(self, decoded: Update | IgnoredUpdate, interaction: Mapping[str, Any]) -> None:
        """Record that an acknowledged command now shows "is thinking…"."""
        number = str(interaction.get("id"))
        if isinstance(decoded, Command):
            await self.record(decoded.address, number)
        if isinstance(decoded, Message):
            application, token = str(interaction.get("application_id")), str(interaction.get("token"))
            await self.add(decoded.address, application=application, interaction=number, token=token)

    async def record(self, address: Address, interaction: str) -> None:
        """Store that a command shows "is thinking…"."""
        note = DeferredReplyNote(
            channel=rendering.channel_id_of(address), interaction=interaction, at=self._clock()
        )
        await self._save_note(note)

    def begin_accepting(self, interaction: str, *, is_posted: bool = False) -> None:
        """Mark a command as being accepted and not yet acknowledged."""
        until = self._clock() + RESPONSE_SECONDS if is_posted else 0.0
        self._accepting[interaction] = InteractionInProgress(until)

    def is_accepting(self, interaction: str) -> bool:
        """Return whether a command is being accepted and not yet acknowledged."""
        pending = self._accepting.get(interaction)
        return pending is not None and not pending.is_acknowledged

    def mark_acknowledged(self, interaction: str) -> None:
        """Record that an answer acknowledged the command."""
        if interaction in self._accepting:
            self._accepting[interaction].is_acknowledged = True

    def respond_to_post(
        self, interaction: str, response: Mapping[str, Any], otherwise: Callable[[], Awaitable[None]]
    ) -> bool:
        """Answer a posted command in its HTTP response; False if it was not posted or it is too late."""
        pending = self._accepting.get(interaction)
        if pending is None or pending.is_acknowledged or self._clock() >= pending.until:
            return False
        pending.is_acknowledged, pending.response, pending.otherwise = True, response, otherwise
        return True

    def end_accepting(self, interaction: str) -> bool:
        """Mark a command as accepted; return whether an answer acknowledged it."""
        pending = self._accepting.pop(interaction, None)
        return pending is not None and pending.is_acknowledged

    async def take_response(self, interaction: str) -> Mapping[str, Any] | None:
        """Return the answer for the HTTP response; if that is too late, send it in the other way."""
        pending = self._accepting.get(interaction)
        if pending is None or pending.otherwise is None:
            return None
        if self._clock() < pending.until:
            return pending.response
        try:
            await pending.otherwise()
        except ChannelError as error:
            log.warning("discord.interaction_answer_failed", error=str(error))
        return None

    async def claim(self, address: Address, key: str, nonce: str) -> DeferredReply | None:
        """Return the deferred reply for a message, the same one on every attempt."""
        channel = rendering.channel_id_of(address)
        reply = self._claimed.get(key) or await self._take_pending(channel, nonce)
        if reply is None or reply.until < self._clock():
            return None
        if key not in self._claimed:
            self._claimed[key] = reply
            note = DeferredReplyNote(
                channel=channel, interaction=reply.interaction, at=self._clock(), nonce=nonce
            )
            await self._save_note(note)
        return reply

    def delete_claim(self, key: str) -> None:
        """Drop the claim on a deferred reply that Discord no longer has."""
        self._claimed.pop(key, None)

    async def resolve(self, interaction: str, channel: str) -> None:
        """Remove the stored note of a deferred reply that no message claimed."""
        note = DeferredReplyNote(channel=channel, interaction=interaction, at=0.0)
        stored = decode_note(await self._get_state(note.slot))
        if stored is not None and stored.interaction == interaction:
            await self._set_state({note.slot: ""})

    async def find_filled(self, nonce: str) -> tuple[str, str] | None:
        """Return channel and message of the deferred reply that an earlier process filled."""
        for note in [note for note in self._earlier.values() if note.nonce == nonce]:
            message = await self._find_message(note)
            if message is not None and not _is_loading(message):
                return note.channel, str(message["id"])
            del self._earlier[note.interaction]
        return None

    async def delete_abandoned(self) -> None:
        """Delete an earlier process's deferred replies that still "think" and that no replica can fill."""
        await self.load()
        for note in list(self._earlier.values()):
            is_over = note.at < self._clock() - EXPIRED_SECONDS
            pending = {} if is_over else await self._list_pending(note.channel)
            if (is_over and note.nonce) or any(name.endswith(note.interaction) for name in pending):
                continue
            message = None if is_over else await self._find_message(note)
            if message is not None and _is_loading(message):
                await self._delete_message(note, str(message["id"]))
            if not note.nonce or message is None or _is_loading(message):
                self._earlier.pop(note.interaction, None)
                await self._set_state({note.slot: ""})

    async def _take_pending(self, channel: str, nonce: str) -> DeferredReply | None:
        """Take the first deferred reply of a channel that no replica has taken for another message.

        The nonce of the message is kept beside the token: a fill may be repeated, also by another replica.
        """
        for name, value in (await self._list_pending(channel)).items():
            *stored, claimed_by = [*json.loads(value), ""][:6]  # an earlier version stored no nonce
            is_ours = claimed_by == nonce or (not claimed_by and await self._is_taken(name))
            if is_ours and stored[-1] > self._clock():
                await self._save_token(name, [*stored, nonce])
                return DeferredReply(Address.decode(stored[0]), *stored[1:])
        return None

    async def _save_token(self, name: str, stored: list[Any]) -> None:
        if self._state.secrets is not None:
            await _attempt(self._state.secrets.set(name, json.dumps(stored)))

    async def _is_taken(self, name: str) -> bool:
        """Take a token; return whether no other replica has it."""
        try:
            return self._state.secrets is not None and await self._state.secrets.take(name) is not None
        except Exception as error:  # noqa: BLE001 - the answer is sent as a message of its own
            log.warning("discord.deferred_reply_not_read", error=repr(error))
            return False

    async def _list_pending(self, channel: str) -> Mapping[str, str]:
        try:
            store = self._state.secrets
            return await store.list(_tokens_of(channel), limit=MAX_TOKENS) if store else {}
        except Exception as error:  # noqa: BLE001 - the answer is sent as a message of its own
            log.warning("discord.deferred_reply_not_read", error=repr(error))
            return {}

    async def _find_message(self, note: DeferredReplyNote) -> Mapping[str, Any] | None:
        """Return the message that a command's acknowledgement created."""
        history = self._api.bot.logs_from(note.channel, PAGE, after=note.interaction)
        try:
            page = await self._api.call(history, name="find deferred reply")
        except ChannelError as error:
            log.info("discord.deferred_reply_lookup_failed", error=str(error))
            return None
        return next((one for one in _messages(page) if _interaction_id_of(one) == note.interaction), None)

    async def _delete_message(self, note: DeferredReplyNote, message: str) -> None:
        delete = self._api.bot.delete_message(note.channel, message)
        try:
            await self._api.call(delete, name="delete deferred reply")
        except ChannelError as error:
            log.info("discord.deferred_reply_delete_failed", error=str(error))

    async def _save_note(self, note: DeferredReplyNote) -> None:
        await self._set_state({note.slot: note.encode()})

    async def _set_state(self, values: Mapping[str, str]) -> None:
        await _attempt(self._state.set(values))

    async def _get_state(self, name: str) -> str:
        try:
            return await self._state.get(name) or ""
        except Exception as error:  # noqa: BLE001 - any error of the state's store
            log.warning("discord.channel_state_read_failed", error=repr(error))
            return ""


async def _attempt(write: Awaitable[None]) -> None:
    """Store something; a failure only means that a deferred reply may stay, and its answer is a message."""
    try:
        await write
    except Exception as error:  # noqa: BLE001 - any error of the state's store
        log.warning("discord.deferred_reply_save_failed", error=repr(error))


def _tokens_of(channel: str) -> str:
    return f"{TOKEN_PREFIX}{channel}/"


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

"""Handle gateway events: remember channels, read missed messages, accept updates."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from typing import Any

import structlog

from channels.discord import payloads
from channels.discord.api import Api
from channels.discord.receive import codec
from channels.discord.receive.backfill import Backfill, ChannelTypes
from channels.discord.receive.interactions import initial_response
from channels.discord.receive.own_roles import OwnRoles
from channels.discord.send.deferred_replies import DeferredReplies
from channels.errors import ChannelError
from channels.inbox.text import iso_time, mapping, mappings
from channels.message import IgnoredUpdate, Update
from channels.port import Accept, ChannelState
from channels.receiving.attempts import concerns_one_room, repeat_until_stored
from channels.receiving.held_updates import HeldUpdates
from channels.receiving.read_markers import ReadMarker, ReadMarkers
from channels.receiving.unread_rooms import UnreadRooms

MAX_PRIVATE_CHANNELS = 200
MAX_THREADS = 50
"""Most rooms that Discord does not list and that are read after a downtime, newest first."""

CHANGES = (
    *("CHANNEL_CREATE", "CHANNEL_UPDATE", "THREAD_CREATE", "THREAD_UPDATE"),
    *codec.PERMISSION_CHANGES,
)
"""Events that tell what a channel is, or what the bot may do."""

Raw = Mapping[str, Any]
log = structlog.get_logger(__name__)


class _NotStoredError(Exception):
    """An update could not be accepted; its event must be handled again."""


class EventHandler:
    """Handles gateway events, one after the other."""

    def __init__(
        self,
        api: Api,
        state: ChannelState,
        *,
        channel: str,
        bot: payloads.Bot,
        deferred: DeferredReplies,
        minutes: int,
        reads_private: bool = True,
    ) -> None:
        self._api = api
        self._channel = channel
        self._bot = bot
        self._deferred = deferred
        self._reads_private = reads_private
        self._channel_types = ChannelTypes(api)
        self._own_roles = OwnRoles(api, bot.id)
        self._markers = ReadMarkers(state)
        self._backfill = Backfill(api, minutes, self._markers, self._is_own)
        self._unread = UnreadRooms(state)
        self._held = HeldUpdates(self._unread, self._store_held)
        self._waiting: set[str] = set()

    async def handle(self, event: Raw, accept: Accept) -> bool:
        """Handle one event; False if an update could not be stored. Raises ChannelError."""
        return await self._is_handled(event, self._dispatch(event, accept))

    async def _is_handled(self, event: Raw, handling: Awaitable[None]) -> bool:
        """Return whether an event is handled. Raises ChannelError.

        A malformed event is skipped: it never ends the connection and is not handled again.
        """
        try:
            await handling
            await self._markers.save()
        except _NotStoredError:
            return False
        except ChannelError:
            raise
        except Exception:  # a malformed event must not stop the later ones
            log.exception("discord.event_skipped", type=str(event.get("t"))[:80])
        return True

    async def resume(self, session: str) -> None:
        """Prepare for a session that another process began; raises what the state raises."""
        await self._markers.load()
        await self._unread.load()
        await self._deferred.delete_abandoned()
        self._backfill.begin(session)

    async def read_unread_rooms(self, accept: Accept) -> None:
        """Read the rooms that could not be read when their turn came; never ends."""

        async def read(room: str, note: str) -> None:
            after, guild = json.loads(note)
            await self._read_room(room, guild, after, accept)
            await self._held.finish(room)

        await self._unread.run(read)

    async def close(self) -> None:
        """Save the read markers; what is held is in the histories of rooms that are read later."""
        await self._held.close()
        await self._markers.save(at_once=True)

    async def _dispatch(self, event: Raw, accept: Accept) -> None:
        content = mapping(event.get("d"))
        match event.get("t") if content else None:
            case "READY":
                await self._on_ready(str(content.get("session_id") or ""), accept)
            case "GUILD_CREATE":
                await self._on_guild_create(content, accept)
            case name if name in CHANGES:
                self._channel_types.remember(content)
                await self._accept(event, accept)
            case "MESSAGE_CREATE" | "MESSAGE_UPDATE":
                await self._on_message(event, content, accept)
            case "MESSAGE_DELETE_BULK":
                await self._on_bulk_deletion(content, accept)
            case "MESSAGE_REACTION_ADD" | "MESSAGE_REACTION_REMOVE" | "MESSAGE_DELETE":
                await self._on_reaction(event, content, accept)
            case "INTERACTION_CREATE":
                await self._on_interaction(event, content, accept)

    async def _on_ready(self, session: str, accept: Accept) -> None:
        """Read the private conversations, which Discord does not list."""
        try:
            await self.resume(session)
        except Exception as error:  # any error of the state's store
            log.warning("discord.channel_state_read_failed", error=repr(error))
            raise _NotStoredError from error
        for channel in self._markers.list_private(MAX_PRIVATE_CHANNELS if self._reads_private else 0):
            if self._backfill.is_unread(channel):
                await self._backfill_channel(channel, None, 0, accept)

    async def _on_guild_create(self, guild: Raw, accept: Accept) -> None:
        """Read a server's channels that have unread messages, from when the bot joined."""
        self._own_roles.remember(guild)
        joined = payloads.time_snowflake(iso_time(guild.get("joined_at")))
        guild_id, listed = guild.get("id"), set()
        for kind in ("channels", "threads"):
            for channel in mappings(guild.get(kind)):
                self._channel_types.remember(channel)
                if isinstance(channel.get("id"), str):
                    listed.add(channel["id"])
                    if self._backfill.has_unread(channel, joined):
                        await self._backfill_channel(channel["id"], guild_id, joined, accept)
                    if 0 < (self._markers.last(channel["id"]) or 0) < joined:  # the bot was added again
                        await self._accept({"t": "CHANNEL_UPDATE", "s": joined, "d": channel}, accept)
        for thread in self._markers.list_threads(str(guild_id), MAX_THREADS):
            if thread not in listed and self._backfill.is_unread(thread):  # it was archived in the meantime
                await self._backfill_channel(thread, guild_id, joined, accept)

    async def _backfill_channel(
        self, channel: str, guild: object, joined: int, accept: Accept, *, before: int | None = None
    ) -> None:
        """Read a room's missed messages; if Discord fails only there, the room is read later."""
        after = self._backfill.first_unread(channel, joined)
        try:
            if channel not in self._unread and not self._unread.are_many:
                await self._read_room(channel, guild, after, accept, before=before)
                return
        except ChannelError as error:
            if not concerns_one_room(error):
                raise
            log.warning("discord.room_is_read_later", channel=channel, error=str(error))
        try:
            await self._unread.add(channel, json.dumps([after, guild]))
        except Exception as error:  # any error of the state's store
            raise _NotStoredError from error
        self._backfill.skip(channel)

    async def _read_room(
        self, channel: str, guild: object, after: int, accept: Accept, *, before: int | None = None
    ) -> None:
        async for message in self._backfill.messages(channel, after):
            number = message["id"]
            if (before is None or int(number) < before) and not self._backfill.is_emitted(number):
                raw = {**message, "channel_id": channel, "guild_id": guild}
                await self._accept({"t": "MESSAGE_CREATE", "d": await self._with_channel(raw)}, accept)
                await self._record_accepted(raw, read=True)

    async def _on_message(self, event: Raw, message: Raw, accept: Accept) -> None:
        number, channel = message.get("id"), message.get("channel_id")
        if not (isinstance(number, str) and isinstance(channel, str) and number.isdecimal()):
            log.warning("discord.message_without_id_skipped")
            return
        is_private = message.get("guild_id") is None
        if is_private and event.get("t") == "MESSAGE_CREATE" and self._backfill.is_unread(channel):
            await self._backfill_channel(channel, None, 0, accept, before=int(number))
        await self._accept_in_order(event, message, accept)

    async def _accept_in_order(self, event: Raw, raw: Raw, accept: Accept) -> None:
        """Accept an event of a room; a message waits until an unread room is read, and so do its changes.

        If the process ends before, the next one reads the message from the room's history.
        """
        number = str(raw.get("message_id") or raw.get("id"))
        is_message = event.get("t") == "MESSAGE_CREATE" and not self._is_own(raw)
        if (is_message or number in self._waiting) and await self._held.hold(
            str(raw["channel_id"]), (event, raw, accept)
        ):
            self._waiting.add(number)
        else:
            await self._accept_event(event, raw, accept)

    async def _store_held(self, held: tuple[Raw, Raw, Accept]) -> None:
        event, raw, _ = held
        await repeat_until_stored(lambda: self._is_handled(event, self._accept_event(*held)))
        self._waiting.discard(str(raw.get("id")))

    async def _accept_event(self, event: Raw, raw: Raw, accept: Accept) -> None:
        is_new = event.get("t") == "MESSAGE_CREATE"
        if is_new and self._backfill.is_emitted(raw["id"]):
            return
        await self._accept({**event, "d": await self._with_channel(raw)}, accept)
        if is_new:
            await self._record_accepted(raw, read=raw["channel_id"] in self._unread)

    def _is_own(self, message: Raw) -> bool:
        return bool(mapping(message.get("author")).get("id") == self._bot.id)

    async def _record_accepted(self, message: Raw, *, read: bool = False) -> None:
        """Record an accepted message; save the marker of a new room at once."""
        room, number, guild = str(message["channel_id"]), str(message["id"]), message.get("guild_id")
        marker = ReadMarker(
            message=int(number),
            guild=guild if isinstance(guild, str) else "",
            is_thread=self._channel_types.is_thread(room),
        )
        is_new_room = self._backfill.record_accepted(room, number, marker, read=read)
        if is_new_room and (marker.is_thread or not marker.guild):
            await self._markers.save(at_once=True)

    async def _on_reaction(self, event: Raw, reaction: Raw, accept: Accept) -> None:
        """Accept a reaction, unless it is the bot's own, or the deletion of a message."""
        channel = reaction.get("channel_id")
        if isinstance(channel, str) and channel.isdecimal() and reaction.get("user_id") != self._bot.id:
            await self._accept_in_order(event, reaction, accept)

    async def _on_bulk_deletion(self, deletion: Raw, accept: Accept) -> None:
        """Accept the deletions of a moderator's purge, each as one of its own."""
        for number in deletion["ids"]:
            await self._on_reaction({"t": "MESSAGE_DELETE"}, {**deletion, "id": number}, accept)

    async def _with_channel(self, raw: Raw) -> Raw:
        """Add the type of the channel to a message or reaction, and the bot's role if it names roles."""
        if raw.get("guild_id") is None:
            return raw
        role = await self._own_roles.get(str(raw["guild_id"])) if raw.get("mention_roles") else None
        return {**raw, "channel": await self._channel_types.get(str(raw["channel_id"])), "own_role": role}

    async def _accept(self, event: Raw, accept: Accept) -> Update | IgnoredUpdate:
        decoded = codec.decode(event, channel=self._channel, bot=self._bot)
        if isinstance(decoded, IgnoredUpdate):
            log.debug("discord.update_ignored", reason=decoded.reason)
            return decoded
        try:
            await accept(decoded)
        except Exception as error:
            log.warning("discord.update_not_stored", key=decoded.key, error=repr(error))
            raise _NotStoredError from error
        return decoded

    async def _on_interaction(self, event: Raw, interaction: Raw, accept: Accept) -> None:
        """Accept an interaction, then acknowledge it; if that fails, the answer is still sent."""
        number, token = interaction.get("id"), interaction.get("token")
        if not (isinstance(number, str) and isinstance(token, str)):
            return
        self._deferred.begin_accepting(number)
        try:
            decoded = await self._accept(event, accept)
        finally:
            is_answered = self._deferred.end_accepting(number)
        body = initial_response(interaction, decoded)
        if body is None or is_answered:
            return
        try:
            await self._api.call(self._api.interactions.respond(number, token, body), name="react")
        except ChannelError as error:
            log.warning("discord.interaction_ack_failed", error=str(error))
            return
        await self._deferred.on_acknowledged(decoded, interaction)

"""Receive from Discord, by the gateway or as posted interactions: accept, and only then acknowledge.

By the gateway an event is acknowledged by resuming after it; see `gateway`. A posted interaction is
acknowledged by our answer; one that could not be stored is a 503, and the person is told by Discord.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from channels.discord import commands, payloads
from channels.discord.api import Api, path
from channels.discord.errors import NotThere
from channels.discord.receive import codec, interactions
from channels.discord.receive.event_handler import Listener
from channels.discord.receive.gateway import PAUSES, Event, Gateway, Take
from channels.discord.send.deferred_replies import Deferred
from channels.discord.settings import DiscordSettings
from channels.errors import ChannelError, RateLimited
from channels.message import Ignored, Update
from channels.port import Accept, Answer, Inbox, Incoming, Notes, Receiving
from channels.supervision import supervise

RECEIVING, INTERRUPTED = True, False

log = logging.getLogger(__name__)


class DiscordInbox(Inbox):
    """The receiving half of a Discord bot."""

    def __init__(
        self,
        api: Api,
        settings: DiscordSettings,
        notes: Notes,
        *,
        channel: str,
        bot: payloads.Bot,
        deferred: Deferred,
    ) -> None:
        self._api = api
        self._settings = settings
        self._channel = channel
        self._bot = bot
        self._deferred = deferred
        self._gateway = Gateway(api.http, settings)
        self._listener = Listener(
            api, notes, channel=channel, bot=bot, deferred=deferred, minutes=settings.backfill_minutes
        )
        self._stop = asyncio.Event()
        self._is_registered = not settings.commands

    async def run(self, accept: Accept, *, receiving: Receiving) -> None:
        """Receive until cancelled.

        The work is a task of its own: on Python 3.11 something below may swallow a cancellation, and then
        the flag ends the loop, while this method returns in time.
        """
        self._stop = asyncio.Event()
        by_gateway = self._settings.mode == "gateway"
        await supervise(self._listen(accept, receiving) if by_gateway else self._wait(receiving), self._stop)

    async def receive(self, request: Incoming, accept: Accept) -> Answer:
        """Take one posted interaction: 401 if not signed by Discord, 400 for garbage, 503 if not stored."""
        key = self._settings.public_key
        if self._settings.mode != "interactions" or key is None or not interactions.is_signed(request, key):
            return Answer(status=401)
        interaction = _parsed(request.body)
        if interaction.get("type") == interactions.PING:
            return _answer(interactions.PONG)
        event = {"t": "INTERACTION_CREATE", "d": interaction}
        decoded = codec.decode(event, channel=self._channel, bot=self._bot)
        body = interactions.reaction(interaction, decoded)
        if body is None:
            return Answer(status=400)
        if isinstance(decoded, Ignored):
            return _answer(body)
        return await self._take_posted(interaction, decoded, body, accept)

    async def _take_posted(
        self, interaction: dict[str, Any], update: Update, body: dict[str, Any], accept: Accept
    ) -> Answer:
        """Accept, and only then acknowledge; what was answered meanwhile needs no acknowledgement."""
        number = str(interaction["id"])
        self._deferred.accepting(number)
        try:
            await accept(update)
        except Exception as error:  # noqa: BLE001 - whatever kept it from being stored, Discord is told no
            log.warning("discord: interaction %s is not stored: %r", update.key, error)
            return Answer(status=503)
        finally:
            is_answered = self._deferred.accepted(number)
        if is_answered:
            return Answer(status=202)
        await self._deferred.acknowledged(update, interaction)
        return _answer(body)

    async def _listen(self, accept: Accept, receiving: Receiving) -> None:
        stop = self._stop

        async def accept_until_stopped(update: Update) -> None:
            if stop.is_set():  # a cancellation was swallowed in the middle of an event with many updates
                raise InterruptedError("receiving has ended")
            await accept(update)

        async def take(event: Event) -> bool:
            await self._register_once(event)
            return await self._listener.take(event, accept_until_stopped)

        try:
            await self._converse(take, receiving)
        finally:
            await self._listener.close()

    async def _converse(self, take: Take, receiving: Receiving) -> None:
        """Keep a connection, one after the other."""
        stop, failures = self._stop, 0
        while not stop.is_set():
            wait, why = 0.0, "Discord's connection ended"
            try:
                failures = 0 if await self._gateway.converse(take, receiving) else failures + 1
            except ChannelError as error:
                if error.remedy == "operator":
                    raise
                log.warning("discord: not receiving: %s", error)
                failures, why = failures + 1, str(error)
                wait = error.retry_after if isinstance(error, RateLimited) else 0.0
            receiving(INTERRUPTED, why)
            await asyncio.sleep(max(wait, PAUSES[min(failures, len(PAUSES) - 1)]))

    async def _register_once(self, event: Event) -> None:
        if event.get("t") != "READY" or self._is_registered:
            return
        try:
            await self._register()
        except ChannelError as error:
            if error.remedy == "operator":
                raise
            log.warning("discord: the slash commands are not registered: %s", error)

    async def _register(self) -> None:
        """Make our slash commands known, if they are not; those of other programs stay."""
        where = path("applications", self._bot.application_id, "commands")
        try:
            there = await self._api.call("GET", where, name="read commands", query="with_localizations=true")
        except NotThere:
            there = None
        wanted = commands.merged(there)
        if wanted is not None:
            await self._api.call("PUT", where, name="register commands", body=wanted)
        self._is_registered = True

    async def _wait(self, receiving: Receiving) -> None:
        """Register the commands until Discord takes them, then wait to be posted to."""
        stop, failures = self._stop, 0
        while not stop.is_set() and not self._is_registered:
            try:
                await self._register()
            except NotThere as error:
                log.warning("discord: the slash commands cannot be registered here: %s", error)
                break
            except ChannelError as error:
                if error.remedy != "retry":
                    raise
                receiving(INTERRUPTED, str(error))
                log.warning("discord: the slash commands are not registered: %s", error)
                await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1
        receiving(RECEIVING)
        await asyncio.Event().wait()


def _answer(body: dict[str, Any]) -> Answer:
    return Answer(status=200, body=json.dumps(body).encode())


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}

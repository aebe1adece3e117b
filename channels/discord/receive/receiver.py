"""Receive from Discord by gateway or posted interactions: accept, and only then acknowledge.

By gateway, an event is acknowledged by a resume after it; see `gateway`. A posted interaction is acknowledged
by the HTTP response; if it could not be stored the response is 503, and Discord informs the user.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog
from discord.http import Route

from channels.discord import commands, payloads
from channels.discord.api import Api
from channels.discord.errors import UnknownResource, parse_object
from channels.discord.receive import codec, interactions
from channels.discord.receive.event_handler import EventHandler
from channels.discord.receive.gateway import Event
from channels.discord.receive.gateway_sessions import GatewaySessions
from channels.discord.receive.shards import Shards
from channels.discord.rest import RestClient
from channels.discord.send.deferred_replies import DeferredReplies
from channels.discord.settings import DiscordSettings
from channels.errors import ChannelError
from channels.message import IgnoredUpdate, Update
from channels.port import Accept, ChannelState, Receiver, ReceiverStatus, WebhookRequest, WebhookResponse
from channels.receiving.status import BACKOFF_SECONDS
from channels.supervision import supervise

RECEIVING, INTERRUPTED = True, False

log = structlog.get_logger(__name__)


class DiscordReceiver(Receiver):
    """The receiving half of a Discord bot."""

    def __init__(
        self,
        api: Api,
        settings: DiscordSettings,
        state: ChannelState,
        *,
        channel: str,
        bot: payloads.Bot,
        deferred: DeferredReplies,
    ) -> None:
        self._api = api
        self._settings = settings
        self._state = state
        self._channel = channel
        self._bot = bot
        self._deferred = deferred
        self._shards = Shards(
            api,
            settings,
            GatewaySessions(state),
            bot=bot,
            make_handler=self._make_handler,
            before=self._register_commands_once,
        )
        self._stop = asyncio.Event()
        self._is_registered = not settings.commands

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled; see `supervise` for how the loop ends."""
        self._stop = asyncio.Event()
        by_gateway = self._settings.mode == "gateway"
        await supervise(
            self._run_gateway(accept, receiving) if by_gateway else self._run_interactions(receiving),
            self._stop,
        )

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Accept a posted interaction: 401 if not signed, 400 if malformed, 503 if not stored."""
        key = self._settings.public_key
        if self._settings.mode != "interactions" or key is None or not interactions.is_signed(request, key):
            return WebhookResponse(status=401)
        interaction = parse_object(request.body)
        if interaction.get("type") == interactions.PING:
            return _json_response(interactions.PONG)
        event = {"t": "INTERACTION_CREATE", "d": interaction}
        decoded = codec.decode(event, channel=self._channel, bot=self._bot)
        body = interactions.initial_response(interaction, decoded)
        if body is None:
            return WebhookResponse(status=400)
        if isinstance(decoded, IgnoredUpdate):
            return _json_response(body)
        return await self._accept_posted(interaction, decoded, body, accept)

    async def _accept_posted(
        self, interaction: Mapping[str, Any], update: Update, body: dict[str, Any], accept: Accept
    ) -> WebhookResponse:
        """Accept, then acknowledge, with the answer if there is one; 202 if it was sent in another way."""
        number = str(interaction["id"])
        self._deferred.begin_accepting(number, is_posted=True)
        try:
            await accept(update)
            answer = await self._deferred.take_response(number)
        except Exception as error:  # noqa: BLE001 - whatever the reason, Discord must learn that it failed
            log.warning("discord.interaction_not_stored", key=update.key, error=repr(error))
            return WebhookResponse(status=503)
        finally:
            is_answered = self._deferred.end_accepting(number)
        if is_answered:
            return _json_response(answer) if answer is not None else WebhookResponse(status=202)
        await self._deferred.on_acknowledged(update, interaction)
        return _json_response(body)

    def _make_handler(self, shard: int) -> EventHandler:
        return EventHandler(
            self._api,
            self._state,
            channel=self._channel,
            bot=self._bot,
            deferred=self._deferred,
            minutes=self._settings.backfill_minutes,
            reads_private=shard == 0,
        )

    async def _run_gateway(self, accept: Accept, receiving: ReceiverStatus) -> None:
        stop = self._stop

        async def accept_until_stopped(update: Update) -> None:
            if stop.is_set():  # a cancellation was swallowed within an event with many updates
                raise InterruptedError("the receiver was stopped")
            await accept(update)

        await self._shards.run(accept_until_stopped, receiving, stop)

    async def _register_commands_once(self, event: Event) -> None:
        if self._is_registered or event.get("t") not in {"READY", "RESUMED"}:
            return
        try:
            await self._register_commands()
        except ChannelError as error:
            if error.remedy == "operator":
                raise
            log.warning("discord.command_registration_failed", error=str(error))

    async def _register_commands(self) -> None:
        """Register the slash commands if they differ; keep those of other programs."""
        application, bot = self._bot.application_id, self._api.bot
        try:
            existing = await self._api.call(_registered_commands(bot, application), name="read commands")
        except UnknownResource:
            existing = None
        merged = commands.merge_commands(existing)
        if merged is not None:
            register = bot.bulk_upsert_global_commands(application, merged)
            await self._api.call(register, name="register commands")
        self._is_registered = True

    async def _run_interactions(self, receiving: ReceiverStatus) -> None:
        """Register the commands, with back-off, then wait for posted interactions."""
        stop, failures = self._stop, 0
        while not stop.is_set() and not self._is_registered:
            try:
                await self._register_commands()
            except UnknownResource as error:
                log.warning("discord.command_registration_unsupported", error=str(error))
                break
            except ChannelError as error:
                if error.remedy != "retry":
                    raise
                receiving(INTERRUPTED, str(error))
                log.warning("discord.command_registration_failed", error=str(error))
                await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                failures += 1
        receiving(RECEIVING)
        await asyncio.Event().wait()


def _registered_commands(bot: RestClient, application: str) -> Coroutine[Any, Any, Any]:
    """Read the commands with the localizations of other programs, which discord.py leaves out."""
    route = Route("GET", "/applications/{application_id}/commands", application_id=application)
    return bot.request(route, params={"with_localizations": "true"})


def _json_response(body: Mapping[str, Any]) -> WebhookResponse:
    return WebhookResponse(status=200, body=json.dumps(body).encode())

"""Answers of Discord that one person reads: initial responses to interactions, and private conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from channels.discord.api import Api
from channels.discord.errors import AlreadyAcknowledged
from channels.discord.payloads import CHANNEL_MESSAGE
from channels.discord.send import rendering
from channels.discord.send.deferred_replies import DeferredReplies
from channels.errors import Ambiguous, Rejected, Unreachable
from channels.message import Command, Message

REFERENCE_PARTS = 3

log = structlog.get_logger(__name__)


def parse_token(token: str) -> list[str]:
    """Return application, interaction and token of a press or command; raises Rejected."""
    parts = token.split("/")
    if len(parts) != REFERENCE_PARTS or not (parts[0].isdecimal() and parts[1].isdecimal()):
        raise Rejected("the token of this press or command is malformed")
    return parts


class ConfidentialMessages:
    """Sends texts that only their recipient can see."""

    def __init__(self, api: Api, deferred: DeferredReplies) -> None:
        self._api = api
        self._deferred = deferred

    async def reply(self, to: Message | Command, text: str) -> None:
        """Answer a slash command in its initial response; write to the person's private conversation else.

        After the initial response a slash command's reply would be for everybody to read.
        """
        write = partial(self._write, to.author.id, text)
        parts = parse_token(to.token) if isinstance(to, Command) and to.token else None
        if parts is None or not await self.respond(parts, text, write):
            await write()

    async def _write(self, person: str, text: str) -> None:
        opening = self._api.bot.start_private_message(person)
        opened: object = await self._api.call(opening, name="private conversation")
        if not isinstance(opened, dict) or not isinstance(opened.get("id"), str):
            raise Ambiguous("private conversation: the response names no channel")
        message = rendering.message(text[: rendering.TEXT_LIMIT])
        await self._api.call(self._api.bot.send_message(opened["id"], params=message), name="send")

    async def respond(self, parts: list[str], text: str, otherwise: Callable[[], Awaitable[None]]) -> bool:
        """Acknowledge an interaction with a text that only its user sees; False if it is too late.

        One that was posted is answered in the HTTP response; `otherwise` sends the text if that is late.
        """
        response = {"type": CHANNEL_MESSAGE, "data": rendering.notice(text).payload}
        if self._deferred.respond_to_post(parts[1], response, otherwise):
            return True
        if not self._deferred.is_accepting(parts[1]) or not await self.acknowledge(parts, text):
            return False
        self._deferred.mark_acknowledged(parts[1])
        return True

    async def acknowledge(self, parts: list[str], text: str) -> bool:
        """Send the answer as the initial response; False if that is not possible.

        Repeat a failed call once: Discord refuses a second response, so the answer is never shown twice.
        """
        response = {"type": CHANNEL_MESSAGE, "data": rendering.notice(text).payload}
        for is_repeated in (False, True):
            respond = self._api.interactions.respond(parts[1], parts[2], response)
            try:
                await self._api.call(respond, name="answer")
            except AlreadyAcknowledged:
                return is_repeated
            except Rejected:
                return False
            except (Ambiguous, Unreachable) as error:
                log.info("discord.interaction_answer_failed", error=str(error))
            else:
                return True
        return False

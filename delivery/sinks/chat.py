"""The chat sink: says one part of a reply through a channel's port, by editing what already shows."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from hashlib import sha256

from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Rejected,
    Undeliverable,
)
from channels.message import Address, Reply
from channels.port import Channel, Feature, Limits
from delivery.budget import Budget, Use
from delivery.database import Unavailable
from delivery.part import BadPart, Enclosed, Part, decode_part
from delivery.port import Delivery, Outcome, Sink, Verdict

SEND_SECONDS = 20.0
PATIENCE_SECONDS = 5.0
"""How long a send waits for its room's budget before it gives its place back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """A connected channel, as far as speaking goes."""

    channel: Channel
    features: frozenset[Feature]
    budget: Budget
    limits: Limits


Find = Callable[[str], Bot | None]
"""Find a connected bot by channel id; None when it is not connected in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What there is of a draft: the platform id under which it shows, or how long to wait for its writer."""

    platform_id: str | None = None
    wait: float = 0.0


Claim = Callable[[str, str], Awaitable[Claimed]]
"""Take the draft of (target, message) over for its final text."""


Attach = Callable[[Bot, Address, Delivery, Enclosed], Awaitable[Outcome]]
"""Attempt once to bring a file; `delivery.sinks.files` has it."""


async def _no_files(_bot: Bot, _address: Address, _delivery: Delivery, _file: Enclosed) -> Outcome:
    return Outcome(verdict=Verdict.GIVE_UP, detail="files are not sent here")


async def _no_draft(_target: str, _message: str) -> Claimed:
    return Claimed()


def reply_key(delivery_id: str) -> str:
    """Return the key of a delivery's reply: the same on every attempt, spread over all its characters.

    A prefix of a time-ordered id would repeat within a millisecond, and a platform that recognises repeats
    would swallow the second message.
    """
    return base64.b32encode(sha256(delivery_id.encode()).digest()).decode().lower()[:25]


class ChatSink(Sink):
    """Speaks in rooms, within their budgets."""

    def __init__(
        self,
        find: Find,
        *,
        claim: Claim = _no_draft,
        attach: Attach = _no_files,
        send_seconds: float = SEND_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._find = find
        self._claim = claim
        self._attach = attach
        self._send_seconds = send_seconds
        self._patience_seconds = patience_seconds

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once."""
        try:
            address, part = Address.load(delivery.target), decode_part(delivery.body)
        except (BadPart, ValueError, KeyError, TypeError) as error:
            return Outcome(verdict=Verdict.GIVE_UP, detail=f"this delivery cannot be read: {error}")
        bot = self._find(address.channel)
        if bot is None:
            return Outcome(verdict=Verdict.RETRY, detail="the channel is not connected here")
        wait = await bot.budget.take(Use.FINAL, address.destination, at_most=self._patience_seconds)
        if wait > 0:
            return _later(wait, "waiting for the rate budget")
        try:
            claimed = await self._claimed(delivery, part)
        except Unavailable as error:
            return Outcome(verdict=Verdict.RETRY, detail=str(error))
        if claimed.wait > 0:
            return _later(claimed.wait, "a draft of it is still being written")
        return await self._say(bot, address, replace(delivery, platform_id=claimed.platform_id), part)

    async def _claimed(self, delivery: Delivery, part: Part) -> Claimed:
        """Say where the delivery shows already: by an earlier attempt, or as a draft, now taken over."""
        if delivery.platform_id is not None or part.message is None or delivery.part:
            return Claimed(platform_id=delivery.platform_id)
        return await self._claim(delivery.target, part.message)

    async def _say(self, bot: Bot, address: Address, delivery: Delivery, part: Part) -> Outcome:
        if part.file is not None:
            return await self._attach(bot, address, delivery, part.file)
        reply = Reply(
            text=part.text,
            key=reply_key(delivery.id),
            buttons=part.buttons if Feature.BUTTONS in bot.features else (),
            reply_to=part.reply_to,
        )
        if delivery.platform_id is not None and Feature.EDIT in bot.features:
            edited = await self._edit(bot, address, delivery.platform_id, reply)
            if edited is not None:
                return edited
        return await self._send(bot, address, reply)

    async def _edit(self, bot: Bot, address: Address, platform_id: str, reply: Reply) -> Outcome | None:
        """Make what shows already show the reply; None when it cannot be edited, and may be sent instead."""
        try:
            async with asyncio.timeout(self._send_seconds):
                await bot.channel.edit(address, platform_id, reply)
        except Rejected:
            return None  # a person may have deleted it; a text that is wrong by itself is refused again
        except TimeoutError:
            return Outcome(verdict=Verdict.RETRY, detail="no answer in time")
        except ChannelError as error:
            return judge_error(error, bot.budget, address, repeatable=True)
        return Outcome(verdict=Verdict.DELIVERED, platform_id=platform_id)

    async def _send(self, bot: Bot, address: Address, reply: Reply) -> Outcome:
        repeatable = Feature.IDEMPOTENT_SEND in bot.features
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.channel.send(address, reply)
        except TimeoutError:
            return judge_error(Ambiguous("no answer in time"), bot.budget, address, repeatable=repeatable)
        except ChannelError as error:
            return judge_error(error, bot.budget, address, repeatable=repeatable)
        return Outcome(verdict=Verdict.DELIVERED, platform_id=sent.platform_id)


def _later(wait: float, why: str) -> Outcome:
    return Outcome(verdict=Verdict.RETRY, detail=why, retry_after=wait, hold=True)


def judge_error(error: ChannelError, budget: Budget, address: Address, *, repeatable: bool) -> Outcome:
    """Return what a platform's error means for the delivery, and close what the platform wants closed."""
    if isinstance(error, RateLimited):
        budget.hold(error.retry_after, room=address.destination if error.scope == "room" else None)
        return Outcome(verdict=Verdict.RETRY, detail=str(error), retry_after=error.retry_after, hold=True)
    if isinstance(error, Ambiguous):
        return Outcome(verdict=Verdict.RETRY if repeatable else Verdict.AMBIGUOUS, detail=str(error))
    return Outcome(
        verdict=_VERDICTS[error.remedy], detail=str(error), address_dead=isinstance(error, Undeliverable)
    )


_VERDICTS = {"retry": Verdict.RETRY, "give_up": Verdict.GIVE_UP, "operator": Verdict.OPERATOR}

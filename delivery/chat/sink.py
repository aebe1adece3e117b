"""The chat sink: says one part of a reply through a channel's port, by editing what already shows."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256

from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Rejected,
    Undeliverable,
)
from channels.markup import split
from channels.message import Address, Button, Reply
from channels.port import Channel, Feature, Limits
from delivery.chat.rate_limit import Budget, Use
from delivery.database.clock import utc_now
from delivery.database.engine import Unavailable
from delivery.deliveries.attempt import Policy
from delivery.deliveries.part import BadPart, Enclosed, Part, decode_part
from delivery.deliveries.port import Delivery, Outcome, Sink, Verdict
from delivery.events.event import Kind

ENDS_EARLY = frozenset({Kind.TURN_FAILED, Kind.TURN_CANCELLED})
"""Events of a turn that may leave a draft behind which no final text will replace."""

SKEW = timedelta(minutes=15)
"""How far our clock may be ahead of a platform's: so much earlier we look for what was sent."""

SEND_SECONDS = 20.0
PATIENCE_SECONDS = 5.0
"""How long a send waits for its room's budget before it gives its place back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """A connected channel, as far as speaking goes; `account` is whose it is.

    `policy` says what to do where nobody can tell whether a message has arrived.
    """

    channel: Channel
    features: frozenset[Feature]
    budget: Budget
    limits: Limits
    account: str = ""
    policy: Policy = Policy.AT_LEAST_ONCE

    @property
    def can_tell(self) -> bool:
        """Say whether the platform recognises a repeated message, or can be asked for one."""
        return bool({Feature.IDEMPOTENT_SEND, Feature.FIND} & self.features)


Find = Callable[[str], Bot | None]
"""Find a connected bot by channel id; None when it is not connected in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What there is of a draft: the platform id under which it shows, or how long to wait for its writer.

    `shown` is what it says, where that is not to be lost.
    """

    platform_id: str | None = None
    wait: float = 0.0
    shown: str = ""


Claim = Callable[[str, str], Awaitable[Claimed]]
"""Take the draft of (target, message) over for its final text."""

ClaimRest = Callable[[str, str, str], Awaitable[Claimed]]
"""Take over what a turn that ended early left: (target, turn, id of the delivery that takes it)."""

Attach = Callable[[Bot, Address, Delivery, Enclosed], Awaitable[Outcome]]
"""Attempt once to bring a file; `delivery.chat.file_sink` has it."""


async def _no_files(_bot: Bot, _address: Address, _delivery: Delivery, _file: Enclosed) -> Outcome:
    return Outcome(verdict=Verdict.GIVE_UP, detail="files are not sent here")


async def _no_draft(_target: str, _message: str) -> Claimed:
    return Claimed()


async def _no_rest(_target: str, _turn: str, _delivery: str) -> Claimed:
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
        claim_rest: ClaimRest = _no_rest,
        attach: Attach = _no_files,
        send_seconds: float = SEND_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._find = find
        self._claim = claim
        self._claim_rest = claim_rest
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
        if claimed.shown:
            part = replace(part, text=_after(claimed.shown, part.text, bot.limits))
        return await self._say(bot, address, replace(delivery, platform_id=claimed.platform_id), part)

    async def _claimed(self, delivery: Delivery, part: Part) -> Claimed:
        """Say where the delivery shows already: by an earlier attempt, or as a draft, now taken over."""
        if delivery.platform_id is not None or delivery.part:
            return Claimed(platform_id=delivery.platform_id)
        if part.message is not None:
            return await self._claim(delivery.target, part.message)
        if delivery.event_type in ENDS_EARLY and delivery.turn is not None:
            return await self._claim_rest(delivery.target, delivery.turn, delivery.id)
        return Claimed()

    async def _say(self, bot: Bot, address: Address, delivery: Delivery, part: Part) -> Outcome:
        if part.file is not None:
            known = await self._look_up(bot, address, delivery)
            delivery.check()
            return known or await self._attach(bot, address, delivery, part.file)
        reply = Reply(
            text=part.text,
            key=reply_key(delivery.id),
            buttons=_pressable(part.buttons, bot.features),
            reply_to=part.reply_to,
        )
        if delivery.platform_id is not None and Feature.EDIT in bot.features:
            delivery.check()
            edited = await self._edit(bot, address, delivery.platform_id, reply)
            if edited is not None:
                return edited
        known = await self._look_up(bot, address, delivery)
        if known is None and not bot.can_tell:
            await delivery.held.enter_async_context(bot.budget.flight)
        delivery.check()
        return known or await self._send(bot, address, reply)

    async def _edit(self, bot: Bot, address: Address, platform_id: str, reply: Reply) -> Outcome | None:
        """Make what shows already show the reply; None when it cannot be edited, and may be sent instead."""
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.channel.edit(address, platform_id, reply)
        except Rejected:
            return None  # a person may have deleted it; a text that is wrong by itself is refused again
        except TimeoutError:
            return Outcome(verdict=Verdict.RETRY, detail="no answer in time")
        except ChannelError as error:
            return judge_error(error, bot.budget, address, repeatable=True)
        return Outcome(verdict=Verdict.DELIVERED, platform_id=sent.platform_id)

    async def _look_up(self, bot: Bot, address: Address, delivery: Delivery) -> Outcome | None:
        """Find out what became of an earlier attempt that may have arrived; None: say it (again)."""
        if not delivery.uncertain or _is_recognised(bot, delivery, utc_now()):
            return None
        if Feature.FIND not in bot.features:
            return _by_policy(bot)
        since = (delivery.tried_at or delivery.event_time) - SKEW
        try:
            async with asyncio.timeout(self._send_seconds):
                found = await bot.channel.find(address, reply_key(delivery.id), since=since)
        except TimeoutError:
            return Outcome(verdict=Verdict.RETRY, detail="no answer in time", uncertain=True)
        except ChannelError as error:
            return _unknown(error, bot, address)
        return None if found is None else Outcome(verdict=Verdict.DELIVERED, platform_id=found.platform_id)

    async def _send(self, bot: Bot, address: Address, reply: Reply) -> Outcome:
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.channel.send(address, reply)
        except TimeoutError:
            return judge_error(Ambiguous("no answer in time"), bot.budget, address, repeatable=bot.can_tell)
        except ChannelError as error:
            return judge_error(error, bot.budget, address, repeatable=bot.can_tell)
        return Outcome(verdict=Verdict.DELIVERED, platform_id=sent.platform_id)


def _pressable(buttons: tuple[Button, ...], features: frozenset[Feature]) -> tuple[Button, ...]:
    """Return the buttons that work on this platform: those that ask for words only where it can ask."""
    if Feature.BUTTONS not in features:
        return ()
    return tuple(button for button in buttons if not button.prompt or Feature.PROMPTS in features)


def _later(wait: float, why: str) -> Outcome:
    return Outcome(verdict=Verdict.RETRY, detail=why, retry_after=wait, hold=True)


def _after(shown: str, words: str, limits: Limits) -> str:
    """Return what was shown, as much of it as fits, with words after it."""
    room = limits.text - limits.measure(words) - 2
    if room <= 0:
        return words
    kept = shown if limits.measure(shown) <= room else split(shown, room, limits.measure)[0]
    return f"{kept}\n\n{words}"


def _is_recognised(bot: Bot, delivery: Delivery, now: datetime) -> bool:
    """Tell whether the platform would recognise a repetition of what was first sent then."""
    if Feature.IDEMPOTENT_SEND not in bot.features:
        return False
    first = delivery.tried_at or delivery.event_time
    return (now - first).total_seconds() < bot.limits.recognised_seconds


def _by_policy(bot: Bot) -> Outcome | None:
    """Where nobody can tell what became of it, it is said again or left, as the channel's settings want."""
    if bot.policy is Policy.AT_LEAST_ONCE:
        return None
    return Outcome(verdict=Verdict.AMBIGUOUS, detail="it may have arrived", uncertain=True)


def _unknown(error: ChannelError, bot: Bot, address: Address) -> Outcome | None:
    """Return what it means that we could not look: later, or never where the platform does not let us."""
    if error.remedy == "retry" or isinstance(error, Undeliverable):
        return replace(judge_error(error, bot.budget, address, repeatable=True), uncertain=True)
    return _by_policy(bot)


def judge_error(error: ChannelError, budget: Budget, address: Address, *, repeatable: bool) -> Outcome:
    """Return what a platform's error means for the delivery, and close what the platform wants closed."""
    if isinstance(error, RateLimited):
        budget.hold(error.retry_after, room=address.destination if error.scope == "room" else None)
        return Outcome(
            verdict=Verdict.RETRY,
            detail=str(error),
            retry_after=error.retry_after,
            hold=True,
            hold_bot=error.scope == "account",
        )
    if isinstance(error, Ambiguous):
        verdict = Verdict.RETRY if repeatable else Verdict.AMBIGUOUS
        return Outcome(verdict=verdict, detail=str(error), uncertain=True)
    return Outcome(
        verdict=_VERDICTS[error.remedy], detail=str(error), address_dead=isinstance(error, Undeliverable)
    )


_VERDICTS = {"retry": Verdict.RETRY, "give_up": Verdict.GIVE_UP, "operator": Verdict.OPERATOR}

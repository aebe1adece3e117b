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
from channels.port import ChannelFeature, ChannelLimits, Sender
from delivery.chat.rate_limit import RateLimiter, SendPriority
from delivery.database.clock import utc_now
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.attempt import AmbiguityPolicy
from delivery.deliveries.part import BadPart, FilePart, Part, decode_part
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.events.event import EventType

ENDS_EARLY = frozenset({EventType.TURN_FAILED, EventType.TURN_CANCELLED})
"""Events of a turn that may leave a draft behind which no final text will replace."""

CLOCK_SKEW = timedelta(minutes=15)
"""How far our clock may be ahead of a platform's: so much earlier we look for what was sent."""

SEND_SECONDS = 20.0
RATE_WAIT_SECONDS = 5.0
"""How long a send waits for its room's budget before it gives its place back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedBot:
    """A connected channel, as far as speaking goes; `account` is whose it is.

    `policy` says what to do where nobody can tell whether a message has arrived.
    """

    sender: Sender
    features: frozenset[ChannelFeature]
    rate_limiter: RateLimiter
    limits: ChannelLimits
    account: str = ""
    policy: AmbiguityPolicy = AmbiguityPolicy.AT_LEAST_ONCE

    @property
    def detects_duplicates(self) -> bool:
        """Say whether the platform recognises a repeated message, or can be asked for one."""
        return bool({ChannelFeature.IDEMPOTENT_SEND, ChannelFeature.FIND} & self.features)


GetBot = Callable[[str], ConnectedBot | None]
"""Find a connected bot by channel id; None when it is not connected in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDraft:
    """What there is of a draft: the platform id under which it shows, or how long to wait for its writer.

    `shown` is what it says, where that is not to be lost.
    """

    platform_id: str | None = None
    wait: float = 0.0
    shown: str = ""


ClaimDraft = Callable[[str, str], Awaitable[ClaimedDraft]]
"""Take the draft of (target, message) over for its final text."""

ClaimUnfinished = Callable[[str, str, str], Awaitable[ClaimedDraft]]
"""Take over what a turn that ended early left: (target, turn, id of the delivery that takes it)."""

AttachFile = Callable[[ConnectedBot, Address, Delivery, FilePart], Awaitable[Outcome]]
"""Attempt once to bring a file; `delivery.chat.file_sink` has it."""


async def _no_files(_bot: ConnectedBot, _address: Address, _delivery: Delivery, _file: FilePart) -> Outcome:
    return Outcome(kind=OutcomeKind.GIVE_UP, detail="files are not sent here")


async def _no_draft(_target: str, _message: str) -> ClaimedDraft:
    return ClaimedDraft()


async def _no_unfinished(_target: str, _turn: str, _delivery: str) -> ClaimedDraft:
    return ClaimedDraft()


def idempotency_key(delivery_id: str) -> str:
    """Return the key of a delivery's reply: the same on every attempt, spread over all its characters.

    A prefix of a time-ordered id would repeat within a millisecond, and a platform that recognises repeats
    would swallow the second message.
    """
    return base64.b32encode(sha256(delivery_id.encode()).digest()).decode().lower()[:25]


class ChatSink(Sink):
    """Speaks in rooms, within their budgets."""

    def __init__(
        self,
        get_bot: GetBot,
        *,
        claim: ClaimDraft = _no_draft,
        claim_unfinished: ClaimUnfinished = _no_unfinished,
        attach: AttachFile = _no_files,
        send_seconds: float = SEND_SECONDS,
        rate_wait_seconds: float = RATE_WAIT_SECONDS,
    ) -> None:
        self._get_bot = get_bot
        self._claim = claim
        self._claim_unfinished = claim_unfinished
        self._attach = attach
        self._send_seconds = send_seconds
        self._rate_wait_seconds = rate_wait_seconds

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once."""
        try:
            address, part = Address.decode(delivery.target), decode_part(delivery.body)
        except (BadPart, ValueError, KeyError, TypeError) as error:
            return Outcome(kind=OutcomeKind.GIVE_UP, detail=f"this delivery cannot be read: {error}")
        bot = self._get_bot(address.channel)
        if bot is None:
            return Outcome(kind=OutcomeKind.RETRY, detail="the channel is not connected here")
        wait = await bot.rate_limiter.acquire(
            SendPriority.FINAL, address.destination, timeout=self._rate_wait_seconds
        )
        if wait > 0:
            return _retry_later(wait, "waiting for the rate budget")
        try:
            claimed = await self._claim_draft(delivery, part)
        except DatabaseUnavailable as error:
            return Outcome(kind=OutcomeKind.RETRY, detail=str(error))
        if claimed.wait > 0:
            return _retry_later(claimed.wait, "a draft of it is still being written")
        if claimed.shown:
            part = replace(part, text=_append_below(claimed.shown, part.text, bot.limits))
        return await self._send_part(bot, address, replace(delivery, platform_id=claimed.platform_id), part)

    async def _claim_draft(self, delivery: Delivery, part: Part) -> ClaimedDraft:
        """Say where the delivery shows already: by an earlier attempt, or as a draft, now taken over."""
        if delivery.platform_id is not None or delivery.part:
            return ClaimedDraft(platform_id=delivery.platform_id)
        if part.message is not None:
            return await self._claim(delivery.target, part.message)
        if delivery.event_type in ENDS_EARLY and delivery.turn is not None:
            return await self._claim_unfinished(delivery.target, delivery.turn, delivery.id)
        return ClaimedDraft()

    async def _send_part(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, part: Part
    ) -> Outcome:
        if part.file is not None:
            known = await self._find_sent(bot, address, delivery)
            delivery.ensure_held()
            return known or await self._attach(bot, address, delivery, part.file)
        reply = Reply(
            text=part.text,
            key=idempotency_key(delivery.id),
            buttons=_supported_buttons(part.buttons, bot.features),
            reply_to=part.reply_to,
        )
        if delivery.platform_id is not None and ChannelFeature.EDIT in bot.features:
            delivery.ensure_held()
            edited = await self._edit(bot, address, delivery.platform_id, reply)
            if edited is not None:
                return edited
        known = await self._find_sent(bot, address, delivery)
        if known is None and not bot.detects_duplicates:
            await delivery.exit_stack.enter_async_context(bot.rate_limiter.in_flight)
        delivery.ensure_held()
        return known or await self._send(bot, address, reply)

    async def _edit(
        self, bot: ConnectedBot, address: Address, platform_id: str, reply: Reply
    ) -> Outcome | None:
        """Make what shows already show the reply; None when it cannot be edited, and may be sent instead."""
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.sender.edit(address, platform_id, reply)
        except Rejected:
            return None  # a person may have deleted it; a text that is wrong by itself is refused again
        except TimeoutError:
            return Outcome(kind=OutcomeKind.RETRY, detail="no answer in time")
        except ChannelError as error:
            return outcome_for_error(error, bot.rate_limiter, address, repeatable=True)
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id)

    async def _find_sent(self, bot: ConnectedBot, address: Address, delivery: Delivery) -> Outcome | None:
        """Find out what became of an earlier attempt that may have arrived; None: say it (again)."""
        if not delivery.uncertain or _is_deduplicated(bot, delivery, utc_now()):
            return None
        if ChannelFeature.FIND not in bot.features:
            return _outcome_by_policy(bot)
        since = (delivery.first_attempt_at or delivery.event_time) - CLOCK_SKEW
        try:
            async with asyncio.timeout(self._send_seconds):
                found = await bot.sender.find(address, idempotency_key(delivery.id), since=since)
        except TimeoutError:
            return Outcome(kind=OutcomeKind.RETRY, detail="no answer in time", uncertain=True)
        except ChannelError as error:
            return _outcome_if_unknown(error, bot, address)
        return None if found is None else Outcome(kind=OutcomeKind.DELIVERED, platform_id=found.platform_id)

    async def _send(self, bot: ConnectedBot, address: Address, reply: Reply) -> Outcome:
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.sender.send(address, reply)
        except TimeoutError:
            return outcome_for_error(
                Ambiguous("no answer in time"), bot.rate_limiter, address, repeatable=bot.detects_duplicates
            )
        except ChannelError as error:
            return outcome_for_error(error, bot.rate_limiter, address, repeatable=bot.detects_duplicates)
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id)


def _supported_buttons(
    buttons: tuple[Button, ...], features: frozenset[ChannelFeature]
) -> tuple[Button, ...]:
    """Return the buttons that work on this platform: those that ask for words only where it can ask."""
    if ChannelFeature.BUTTONS not in features:
        return ()
    return tuple(button for button in buttons if not button.prompt or ChannelFeature.PROMPTS in features)


def _retry_later(retry_after: float, why: str) -> Outcome:
    return Outcome(kind=OutcomeKind.RETRY, detail=why, retry_after=retry_after, pause_destination=True)


def _append_below(shown: str, text: str, limits: ChannelLimits) -> str:
    """Return what was shown, as much of it as fits, with words after it."""
    room = limits.text - limits.measure(text) - 2
    if room <= 0:
        return text
    kept = shown if limits.measure(shown) <= room else split(shown, room, limits.measure)[0]
    return f"{kept}\n\n{text}"


def _is_deduplicated(bot: ConnectedBot, delivery: Delivery, now: datetime) -> bool:
    """Tell whether the platform would recognise a repetition of what was first sent then."""
    if ChannelFeature.IDEMPOTENT_SEND not in bot.features:
        return False
    first = delivery.first_attempt_at or delivery.event_time
    return (now - first).total_seconds() < bot.limits.recognised_seconds


def _outcome_by_policy(bot: ConnectedBot) -> Outcome | None:
    """Where nobody can tell what became of it, it is said again or left, as the channel's settings want."""
    if bot.policy is AmbiguityPolicy.AT_LEAST_ONCE:
        return None
    return Outcome(kind=OutcomeKind.AMBIGUOUS, detail="it may have arrived", uncertain=True)


def _outcome_if_unknown(error: ChannelError, bot: ConnectedBot, address: Address) -> Outcome | None:
    """Return what it means that we could not look: later, or never where the platform does not let us."""
    if error.remedy == "retry" or isinstance(error, Undeliverable):
        return replace(outcome_for_error(error, bot.rate_limiter, address, repeatable=True), uncertain=True)
    return _outcome_by_policy(bot)


def outcome_for_error(
    error: ChannelError, rate_limiter: RateLimiter, address: Address, *, repeatable: bool
) -> Outcome:
    """Return what a platform's error means for the delivery, and close what the platform wants closed."""
    if isinstance(error, RateLimited):
        rate_limiter.pause(error.retry_after, room=address.destination if error.scope == "room" else None)
        return Outcome(
            kind=OutcomeKind.RETRY,
            detail=str(error),
            retry_after=error.retry_after,
            pause_destination=True,
            pause_bot=error.scope == "account",
        )
    if isinstance(error, Ambiguous):
        verdict = OutcomeKind.RETRY if repeatable else OutcomeKind.AMBIGUOUS
        return Outcome(kind=verdict, detail=str(error), uncertain=True)
    return Outcome(
        kind=_KIND_BY_REMEDY[error.remedy], detail=str(error), address_dead=isinstance(error, Undeliverable)
    )


_KIND_BY_REMEDY = {
    "retry": OutcomeKind.RETRY,
    "give_up": OutcomeKind.GIVE_UP,
    "operator": OutcomeKind.OPERATOR,
}

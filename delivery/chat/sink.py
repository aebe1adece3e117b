"""The chat sink: sends one part of a reply through a channel's port, or edits its visible draft."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any

import structlog

from channels.errors import (
    Ambiguous,
    ChannelError,
    Rejected,
    ThreadUndeliverable,
    Undeliverable,
)
from channels.message import Address, Button, Reply
from channels.port import ChannelFeature, ChannelLimits, Sender
from delivery.chat.claimed_drafts import (
    ENDS_EARLY,
    ClaimDraft,
    ClaimedDraft,
    ClaimUnfinished,
    no_draft,
    no_unfinished,
    replaces_draft,
)
from delivery.chat.dead_threads import DeadThreads, NameThread, no_name
from delivery.chat.outcomes import outcome_for_error, refusal_notice
from delivery.chat.rate_limit import RateLimiter, SendPriority
from delivery.chat.shown_messages import FindShown, append_below, nothing_shown
from delivery.database.clock import utc_now
from delivery.database.engine import DatabaseUnavailable
from delivery.deliveries.attempt import AmbiguityPolicy
from delivery.deliveries.part import BadPart, FilePart, Part, decode_part
from delivery.deliveries.port import Delivery, Outcome, OutcomeKind, Sink
from delivery.deliveries.route import bot_destination

CLOCK_SKEW = timedelta(minutes=15)
"""How far this clock may be ahead of the platform's; lookups of sent messages start this much earlier."""

log = structlog.get_logger(__name__)

_TIMED_OUT = "the platform did not answer in time"
_NOTHING_TO_EDIT = "there is no visible message to change"
_NO_EDITS = "the platform cannot change messages"
_NO_REACTIONS = "the platform has no reactions of bots"
_NOT_SENT_YET = "the message to change is not sent yet"

SEND_SECONDS = 20.0
RATE_WAIT_SECONDS = 5.0
"""Seconds that a send waits for the chat's rate limit before it is retried later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedBot:
    """The sending side of a connected channel; `account` owns it.

    `policy` applies when it cannot be found out whether a message has arrived.
    """

    sender: Sender
    features: frozenset[ChannelFeature]
    rate_limiter: RateLimiter
    limits: ChannelLimits
    account: str = ""
    policy: AmbiguityPolicy = AmbiguityPolicy.AT_LEAST_ONCE

    def bot_destination(self, address: Address) -> str:
        """Return the destination of all chats that share the limits of a chat's account at the platform."""
        return bot_destination(address.destination, self.limits.account_of(address.room))

    @property
    def detects_duplicates(self) -> bool:
        """Whether the platform recognises a repeated message or can look one up."""
        return bool({ChannelFeature.IDEMPOTENT_SEND, ChannelFeature.FIND} & self.features)


GetBot = Callable[[str], ConnectedBot | None]
"""Return the connected bot of a channel id; None when it is not connected in this process."""


AttachFile = Callable[[ConnectedBot, Address, Delivery, FilePart], Awaitable[Outcome]]
"""Attempt once to attach a file; implemented by `delivery.chat.file_sink`."""


async def _no_files(_bot: ConnectedBot, _address: Address, _delivery: Delivery, _file: FilePart) -> Outcome:
    return Outcome(kind=OutcomeKind.GIVE_UP, detail="this sink does not send files")


def idempotency_key(delivery_id: str) -> str:
    """Return the key of a delivery's reply: a hash, and the same on every attempt.

    A prefix of the time-ordered id would repeat within a millisecond, and a platform that recognises repeats
    would drop the second message.
    """
    return base64.b32encode(sha256(delivery_id.encode()).digest()).decode().lower()[:25]


class ChatSink(Sink):
    """Sends replies to chats within their rate limits."""

    def __init__(
        self,
        get_bot: GetBot,
        *,
        explain: Callable[[str], str] = lambda _channel: "",
        claim: ClaimDraft = no_draft,
        claim_unfinished: ClaimUnfinished = no_unfinished,
        attach: AttachFile = _no_files,
        find_shown: FindShown = nothing_shown,
        name_thread: NameThread = no_name,
        send_seconds: float = SEND_SECONDS,
        rate_wait_seconds: float = RATE_WAIT_SECONDS,
    ) -> None:
        self._get_bot = get_bot
        self._explain = explain
        self._claim = claim
        self._claim_unfinished = claim_unfinished
        self._attach = attach
        self._find_shown = find_shown
        self._dead_threads = DeadThreads(name_thread)
        self._send_seconds = send_seconds
        self._rate_wait_seconds = rate_wait_seconds

    async def send(self, delivery: Delivery) -> Outcome:
        """Attempt once to send or edit the part, and return the outcome."""
        try:
            address, part = Address.decode(delivery.target), decode_part(delivery.body)
        except (BadPart, ValueError, KeyError, TypeError) as error:
            return Outcome(kind=OutcomeKind.GIVE_UP, detail=f"the delivery cannot be decoded: {error}")
        bot = self._get_bot(address.channel)
        if bot is None:
            why = self._explain(address.channel)
            detail = f"the channel is not connected in this process{why and f': {why}'}"
            return Outcome(kind=OutcomeKind.RETRY, detail=detail, unreached=True)
        if part.needs_edits and ChannelFeature.EDIT not in bot.features:
            return Outcome(kind=OutcomeKind.DELIVERED, detail=_NO_EDITS)
        wait = await bot.rate_limiter.acquire(
            SendPriority.FINAL, address.destination, timeout=self._rate_wait_seconds
        )
        if wait > 0:
            return _retry_later(wait, "waiting for the rate limit")
        claimed = await self._claim_visible(bot, address, delivery, part)
        if isinstance(claimed, Outcome):
            return claimed
        if claimed.shown:
            part = replace(part, text=append_below(claimed.shown, part.text, bot.limits))
        delivery = replace(delivery, platform_id=claimed.platform_id)
        send = partial(self._send_part, bot)
        return await self._dead_threads.send_or_move(send, bot.limits, address, delivery, part)

    async def _claim_visible(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, part: Part
    ) -> ClaimedDraft | Outcome:
        """Claim the draft, and look it up if its call was not answered; an Outcome: retry later."""
        try:
            claimed = await self._claim_draft(delivery, part)
        except DatabaseUnavailable as error:
            return Outcome(kind=OutcomeKind.RETRY, detail=str(error))
        if claimed.is_unsent:
            return Outcome(kind=OutcomeKind.RETRY, detail=_NOT_SENT_YET)
        if claimed.wait > 0:
            return _retry_later(claimed.wait, "another process is writing a draft of this message")
        if not claimed.key or not bot.detects_duplicates:
            return claimed
        found = await self._find_draft(bot, address, delivery, claimed, part)
        if found is None:
            return claimed
        delivered = found.kind is OutcomeKind.DELIVERED
        return replace(claimed, platform_id=found.platform_id) if delivered else found

    async def _find_draft(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, claimed: ClaimedDraft, part: Part
    ) -> Outcome | None:
        """Find a draft whose first call was not answered; None: it is not visible, or cannot be found.

        A platform that recognises the call answers a repetition with the draft's id.
        """
        since = claimed.since or delivery.event_time
        if claimed.platform_id is None and _is_deduplicated(bot, since, utc_now()):
            delivery.ensure_held()
            return await self._send(bot, address, Reply(text=part.text, key=claimed.key))
        if ChannelFeature.FIND not in bot.features:
            return None
        since -= CLOCK_SKEW
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.sender.find(address, claimed.key, since=since)
        except TimeoutError:
            return Outcome(kind=OutcomeKind.RETRY, detail=_TIMED_OUT)
        except ChannelError as error:
            if error.remedy != "retry":
                return None
            return outcome_for_error(error, bot.rate_limiter, address, repeatable=True)
        return None if sent is None else Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id)

    async def _claim_draft(self, delivery: Delivery, part: Part) -> ClaimedDraft:
        """Return where the delivery is already visible: by an earlier attempt, or as a draft, now claimed."""
        unfinished = ClaimedDraft()
        if delivery.event_type in ENDS_EARLY and delivery.turn is not None and not delivery.part:
            unfinished = await self._claim_unfinished(delivery)
        if unfinished.wait > 0:
            return unfinished
        if delivery.platform_id is not None or delivery.part:
            return ClaimedDraft(platform_id=delivery.platform_id)
        if part.edits is not None:
            shown = await self._find_shown(part.edits, delivery.target)
            return ClaimedDraft(
                platform_id=shown.platform_id,
                shown=shown.text,
                is_unsent=shown.is_open and not shown.platform_id,
            )
        if part.message is not None:
            return await self._claim(delivery.target, part.message)
        return unfinished

    async def _send_part(
        self, bot: ConnectedBot, address: Address, part: Part, delivery: Delivery
    ) -> Outcome:
        if part.file is not None:
            earlier = await self._find_sent(bot, address, delivery)
            delivery.ensure_held()
            return earlier or await self._attach(bot, address, delivery, part.file)
        if part.only_edit and (delivery.platform_id is None or ChannelFeature.EDIT not in bot.features):
            return Outcome(kind=OutcomeKind.DELIVERED, detail=_NOTHING_TO_EDIT)
        if part.deletes or part.reaction is not None:
            change = self._delete if part.deletes else self._react
            return await change(bot, address, delivery, part)
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
            if part.only_edit:
                return Outcome(kind=OutcomeKind.DELIVERED, detail=_NOTHING_TO_EDIT)
        outcome = await self._send_unless_found(bot, address, delivery, reply)
        if outcome.kind is OutcomeKind.DELIVERED and replaces_draft(delivery, part, outcome.platform_id):
            await self._remove_draft(bot, address, delivery, part)
        return outcome

    async def _send_unless_found(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, reply: Reply
    ) -> Outcome:
        """Send, unless an earlier attempt has arrived."""
        earlier = await self._find_sent(bot, address, delivery)
        if earlier is None and not bot.detects_duplicates:
            await delivery.exit_stack.enter_async_context(bot.rate_limiter.in_flight)
        delivery.ensure_held()
        return earlier or await self._send_or_explain(bot, address, delivery, reply)

    async def _remove_draft(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, part: Part
    ) -> None:
        """Delete the draft that could not become the message that was sent; it stays if that fails."""
        removed = await self._delete(bot, address, delivery, part)
        if removed.kind is not OutcomeKind.DELIVERED:
            log.info("draft.not_removed", channel=address.channel, error=removed.detail)

    async def _send_or_explain(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, reply: Reply
    ) -> Outcome:
        """Send; if the platform refuses the content, send a notice, because a person waits for an answer."""
        outcome = await self._send(bot, address, reply)
        if outcome.content_refused:
            key = idempotency_key(f"{delivery.id}:refused")
            await self._send(bot, address, Reply(text=refusal_notice(outcome), key=key))
        return outcome

    async def _edit(
        self, bot: ConnectedBot, address: Address, platform_id: str, reply: Reply
    ) -> Outcome | None:
        """Edit the visible message into the reply; None when it cannot be edited and must be sent instead."""
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.sender.edit(address, platform_id, reply)
        except ThreadUndeliverable as error:
            return outcome_for_error(error, bot.rate_limiter, address, repeatable=True)
        except (Rejected, Undeliverable):
            return None  # a person may have deleted the message; a send finds out whether more is wrong
        except TimeoutError:
            return Outcome(kind=OutcomeKind.RETRY, detail=_TIMED_OUT)
        except ChannelError as error:
            return outcome_for_error(error, bot.rate_limiter, address, repeatable=True)
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id)

    async def _delete(self, bot: ConnectedBot, address: Address, delivery: Delivery, _part: Part) -> Outcome:
        """Delete a message of the bot; one that is gone, or cannot be deleted any more, stays as it is."""
        if ChannelFeature.DELETE not in bot.features or delivery.platform_id is None:
            return Outcome(kind=OutcomeKind.DELIVERED, detail=_NOTHING_TO_EDIT)
        return await self._repeatable(
            bot, address, delivery, bot.sender.delete(address, delivery.platform_id)
        )

    async def _react(self, bot: ConnectedBot, address: Address, delivery: Delivery, part: Part) -> Outcome:
        """Add a reaction to a message; a platform without reactions has none to add."""
        if ChannelFeature.REACT not in bot.features or part.reaction is None or part.reply_to is None:
            return Outcome(kind=OutcomeKind.GIVE_UP, detail=_NO_REACTIONS)
        added = bot.sender.add_reaction(address, part.reply_to, part.reaction)
        return await self._repeatable(bot, address, delivery, added)

    async def _repeatable(
        self, bot: ConnectedBot, address: Address, delivery: Delivery, call: Coroutine[Any, Any, None]
    ) -> Outcome:
        """Make a call about a message that has the same effect if it is repeated.

        An address whose message is gone is not dead: only a send finds that out.
        """
        with closing(call):
            delivery.ensure_held()
            try:
                async with asyncio.timeout(self._send_seconds):
                    await call
            except TimeoutError:
                return Outcome(kind=OutcomeKind.RETRY, detail=_TIMED_OUT)
            except ChannelError as error:
                outcome = outcome_for_error(error, bot.rate_limiter, address, repeatable=True)
                return replace(outcome, address_dead=False, thread_dead=False)
        return Outcome(kind=OutcomeKind.DELIVERED)

    async def _find_sent(self, bot: ConnectedBot, address: Address, delivery: Delivery) -> Outcome | None:
        """Look up an earlier attempt that may have arrived; None: send it (again)."""
        first = delivery.first_attempt_at or delivery.event_time
        if not delivery.uncertain or _is_deduplicated(bot, first, utc_now()):
            return None
        if ChannelFeature.FIND not in bot.features:
            return _outcome_by_policy(bot)
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.sender.find(address, idempotency_key(delivery.id), since=first - CLOCK_SKEW)
        except TimeoutError:
            return Outcome(kind=OutcomeKind.RETRY, detail=_TIMED_OUT, uncertain=True)
        except ChannelError as error:
            return _outcome_if_unknown(error, bot, address)
        return None if sent is None else Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id)

    async def _send(self, bot: ConnectedBot, address: Address, reply: Reply) -> Outcome:
        try:
            async with asyncio.timeout(self._send_seconds):
                sent = await bot.sender.send(address, reply)
        except TimeoutError:
            return outcome_for_error(
                Ambiguous(_TIMED_OUT), bot.rate_limiter, address, repeatable=bot.detects_duplicates
            )
        except ChannelError as error:
            return outcome_for_error(error, bot.rate_limiter, address, repeatable=bot.detects_duplicates)
        return Outcome(kind=OutcomeKind.DELIVERED, platform_id=sent.platform_id)


def _supported_buttons(
    buttons: tuple[Button, ...], features: frozenset[ChannelFeature]
) -> tuple[Button, ...]:
    """Return the buttons that the platform supports; those with a prompt need the feature PROMPTS."""
    if ChannelFeature.BUTTONS not in features:
        return ()
    return tuple(button for button in buttons if not button.prompt or ChannelFeature.PROMPTS in features)


def _retry_later(retry_after: float, why: str) -> Outcome:
    return Outcome(kind=OutcomeKind.RETRY, detail=why, retry_after=retry_after, pause_destination=True)


def _is_deduplicated(bot: ConnectedBot, first: datetime, now: datetime) -> bool:
    """Return whether the platform still recognises a repetition of a call that was first made then."""
    if ChannelFeature.IDEMPOTENT_SEND not in bot.features:
        return False
    return (now - first).total_seconds() < bot.limits.recognised_seconds


def _outcome_by_policy(bot: ConnectedBot) -> Outcome | None:
    """Return the outcome of an attempt that cannot be looked up, by the bot's policy; None: send again."""
    if bot.policy is AmbiguityPolicy.AT_LEAST_ONCE:
        return None
    return Outcome(kind=OutcomeKind.AMBIGUOUS, detail="it may have arrived", uncertain=True)


def _outcome_if_unknown(error: ChannelError, bot: ConnectedBot, address: Address) -> Outcome | None:
    """Return the outcome of a failed lookup: retry later, or the policy if the platform does not allow it."""
    if error.remedy == "retry" or isinstance(error, Undeliverable):
        return replace(outcome_for_error(error, bot.rate_limiter, address, repeatable=True), uncertain=True)
    return _outcome_by_policy(bot)

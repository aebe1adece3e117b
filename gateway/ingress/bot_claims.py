"""Which channel receives for a bot if several channels, maybe of several accounts, are the same bot."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from datetime import datetime

import structlog

from channels.message import Update
from channels.port import Accept
from delivery.database.engine import Database
from gateway.ingress.channel_context import ChannelContext, UpdateAcceptor, channel_identity
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations

log = structlog.get_logger(__name__)


class BotClaims:
    """The channels that could receive for each bot. Of those of one bot the first that was created receives.

    So each replica comes to the same answer, and so does each start. A channel has no claim while it is
    paused, or while its platform refuses it. One that can send and not receive yields to the others until its
    record changes; if all of them yield, the one that has yielded first tries again.
    """

    def __init__(self) -> None:
        self._bots: dict[str, str] = {}
        self._channels: defaultdict[str, dict[str, tuple[datetime, str]]] = defaultdict(dict)
        self._known: defaultdict[str, dict[str, Record]] = defaultdict(dict)
        """All channels that had a bot, also paused and deleted ones, as long as one of them exists."""
        self._yielded: dict[str, tuple[int, str]] = {}
        """Why channels cannot receive, with a number that counts up."""
        self._yields = 0
        self._changed = asyncio.Event()

    def claim(self, record: Record, bot: str) -> None:
        """Let a channel receive for a bot, unless one that was created before has a claim."""
        self.note(record, bot)
        if self._bots.get(record.id) == bot:
            return
        self.release(record.id)
        self._bots[record.id] = bot
        self._channels[bot][record.id] = (record.created_at, record.id)
        self._report_change()

    def note(self, record: Record, bot: str) -> None:
        """Note that a channel has a bot, without a claim."""
        self._known[bot][record.id] = record

    def release(self, channel: str) -> None:
        """End the claim of a channel, if it has one: the next channel of its bot receives."""
        bot = self._bots.pop(channel, None)
        if bot is None:
            return
        self._yielded.pop(channel, None)
        del self._channels[bot][channel]
        if not self._channels[bot]:
            del self._channels[bot]
        self._report_change()

    def forget_others(self, channels: Collection[str]) -> None:
        """End the claims of all channels but these, which are those that exist."""
        for channel in [one for one in self._bots if one not in channels]:
            self.release(channel)
        for bot in [one for one, known in self._known.items() if known.keys().isdisjoint(channels)]:
            del self._known[bot]

    def yield_to_others(self, channel: str, why: str) -> None:
        """Let the other channels of a channel's bot receive before it, because it cannot."""
        if channel in self._bots:
            self._yields += 1
            self._yielded[channel] = (self._yields, why)
            self._report_change()

    def end_yielding(self, channel: str) -> None:
        """Let a channel receive before those that were created later again, because it has changed."""
        if self._yielded.pop(channel, None) is not None:
            self._report_change()

    def why_yielded(self, channel: str) -> str:
        """Return why a channel lets others receive before it, or an empty text."""
        return self._yielded.get(channel, (0, ""))[1]

    def rival(self, channel: str) -> str | None:
        """Return the other channel that receives for a channel's bot, or None."""
        bot = self._bots.get(channel)
        if bot is None:
            return None
        claims = self._channels[bot]
        first = min(claims, key=lambda one: (self._yielded.get(one, (0, ""))[0], claims[one]))
        return None if first == channel else first

    def others(self, channel: str) -> Collection[Record]:
        """Return the other channels that a channel's bot has or had."""
        known = self._known.get(self._bots.get(channel, ""), {})
        return [record for name, record in known.items() if name != channel]

    def next_change(self) -> asyncio.Event:
        """Return the event that is set by the next change of a claim."""
        return self._changed

    async def wait_for_rival(self, channel: str) -> None:
        """Return when another channel receives for a channel's bot."""
        while True:
            changed = self.next_change()
            if self.rival(channel) is not None:
                return
            await changed.wait()

    def _report_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class BotAcceptor(UpdateAcceptor):
    """Accepts the updates of a channel that no other channel of its bot has accepted.

    A platform that keeps its updates offers them again to the channel that receives next.
    """

    def __init__(
        self,
        get_inner: Callable[[], UpdateAcceptor],
        database: Database,
        claims: BotClaims,
    ) -> None:
        self._get_inner = get_inner
        self._database = database
        self._claims = claims

    def accept(self, context: ChannelContext) -> Accept:
        """Return the function that a channel's receiver calls with each update."""
        inner = self._get_inner().accept(context)

        async def accept_once(update: Update) -> None:
            if await self._was_accepted(context.record.id, update.key):
                log.info("update.repeated", **channel_identity(context.record), key=update.key)
                return
            await inner(update)

        return accept_once

    async def _was_accepted(self, channel: str, key: str) -> bool:
        others = self._claims.others(channel)
        if not others:
            return False
        async with self._database.read() as connection:
            for one in others:
                if await conversations.get_recorded_event(
                    connection, account=one.account, source=one.id, event_key=key
                ):
                    return True
        return False

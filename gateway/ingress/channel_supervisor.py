"""The switchboard: every configured channel at work, each in a supervised task, changed without a restart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from channels import registry
from channels.errors import ChannelError
from channels.message import Address, Command, Press, Sign
from channels.port import Answer, ChannelPlugin, Connection, Feature, Finding, Incoming, Limits
from channels.settings import ChannelSettings
from delivery.broker.port import Leases
from delivery.chat.rate_limit import Budget
from delivery.chat.shared_rate_limit import Allowances, SharedBudget
from delivery.chat.sink import SEND_SECONDS, Bot
from delivery.database.engine import Database, Unavailable
from delivery.deliveries.attempt import Policy
from delivery.deliveries.port import Delivery
from delivery.errors import Busy, DeliveryError
from gateway.ingress.channel_health import Listening
from gateway.ingress.channel_state import ChannelNotes
from gateway.ingress.receive import Accepting, Desk
from gateway.records.records import Book
from gateway.store.accounts import records
from gateway.store.accounts.records import Record

log = structlog.get_logger(__name__)

UNKNOWN = Limits(text=2000)
"""What a channel of an unknown kind is planned for."""

BACK_OFF = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
OPERATOR_BACK_OFF = (2.0, 5.0, 10.0, 30.0, 60.0)
STANDBY_LOOK = 1.0
SIGN_SECONDS = 5.0
PROBE_SECONDS = 20.0


@dataclass(slots=True)
class Line:
    """One channel at work in this process."""

    record: Record
    plugin: ChannelPlugin
    desk: Desk
    settings: ChannelSettings
    budget: Budget
    listening: Listening
    connection: Connection | None = None
    trouble: str = ""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    receiving: asyncio.Lock = field(default_factory=asyncio.Lock)
    task: asyncio.Task[None] | None = None


class Switchboard:
    """Opens channels, keeps them open, and finds them for replies. `receives`: this process polls too.

    With `allowances` other processes speak for the same bots, and share their rates.
    """

    def __init__(
        self,
        *,
        database: Database,
        book: Book,
        reception: Callable[[], Accepting],
        leases: Leases,
        receives: bool,
        public_url: str | None,
        allowances: Allowances | None = None,
        lease_ttl: float = 6.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._book = book
        self._reception = reception
        self._leases = leases
        self._receives = receives
        self._public_url = public_url
        self._allowances = allowances
        self._lease_ttl = lease_ttl
        self._clock = clock
        self._lines: dict[str, Line] = {}
        self._changed = asyncio.Event()
        self._hushed = asyncio.Event()
        self._is_known = False

    async def listen(self, stop: asyncio.Event) -> None:
        """Let the lines receive until stopped, and end when none does; what is open still speaks."""
        await stop.wait()
        self._hushed.set()
        for line in list(self._lines.values()):
            async with line.receiving:
                log.debug("channel.hushed", channel=line.record.name)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the lines open as the records say, until stopped."""
        try:
            while not stop.is_set():
                self._changed.clear()
                try:
                    await self.sync()
                except Unavailable as error:
                    log.warning("switchboard.waits", error=str(error))
                await _either(stop, self._changed, timeout=30.0)
        finally:
            await asyncio.gather(*(self._close(line) for line in list(self._lines.values())))

    async def changed(self, _account: str, _record: str) -> None:
        """A channel record was made, changed or removed: look at once."""
        self._changed.set()

    async def sync(self) -> None:
        """Open, reopen and close lines so that they are what the records say."""
        async with self._database.read() as connection:
            wanted = {record.id: record for record in await records.every(connection, "channel")}
        for line in list(self._lines.values()):
            new = wanted.get(line.record.id)
            if new is None or new.updated_at != line.record.updated_at:
                await self._close(line)
        for record in wanted.values():
            if record.id not in self._lines:
                self._open(record)
        self._is_known = True

    def _open(self, record: Record) -> None:
        config = self._book.channel_config(record)
        try:
            plugin = registry.plugin(config.kind)
        except (registry.UnknownKind, registry.BrokenPlugin) as error:
            log.warning("channel.not_installed", channel=record.name, error=str(error))
            return
        settings = self._settings(plugin, record)
        line = Line(
            record=record,
            plugin=plugin,
            desk=Desk.of(record, agent=config.agent, settings=settings, own=plugin.account(settings)),
            settings=settings,
            budget=self._budget(plugin, settings),
            listening=Listening(self._clock),
        )
        self._lines[record.id] = line
        line.task = asyncio.create_task(self._supervise(line))

    def _budget(self, plugin: ChannelPlugin, settings: ChannelSettings) -> Budget:
        limits = _limits(plugin, settings)

        def crowded(destination: str) -> bool:
            return limits.is_crowded(Address.room_of(destination))

        if self._allowances is None:
            return Budget(limits, crowded=crowded)
        name = f"{plugin.name}:{plugin.account(settings)}"
        return SharedBudget(limits, name=name, allowances=self._allowances, crowded=crowded)

    async def probe(self, record: Record) -> tuple[Finding, ...]:
        """Ask a channel's platform whether its settings are right, open or not; raises ChannelError."""
        plugin = registry.plugin(self._book.channel_config(record).kind)
        async with asyncio.timeout(PROBE_SECONDS):
            return await plugin.probe(self._settings(plugin, record))

    def _settings(self, plugin: ChannelPlugin, record: Record) -> Any:
        """Return a channel's settings; a webhook channel is told where the platform reaches it."""
        settings: dict[str, Any] = dict(self._book.channel_config(record).settings)
        wants = "webhook_url" in plugin.settings.model_fields and not settings.get("webhook_url")
        if wants and self._public_url and settings.get("mode") == "webhook":
            settings["webhook_url"] = f"{self._public_url.rstrip('/')}/channels/{record.id}/inbound"
        return plugin.settings.model_validate(settings)

    async def _close(self, line: Line) -> None:
        self._lines.pop(line.record.id, None)
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_SECONDS):
                await line.budget.landed()
        line.stop.set()
        if line.task is not None:
            line.task.cancel()
            with suppress(asyncio.CancelledError):
                await line.task

    async def _supervise(self, line: Line) -> None:
        tries = 0
        while not line.stop.is_set():
            try:
                async with line.plugin.open(
                    line.record.id, line.settings, ChannelNotes(self._database, line.record.id)
                ) as connection:
                    line.connection, line.trouble, tries = connection, "", 0
                    await self._receive(line, connection)
            except ChannelError as error:
                line.trouble = str(error)
                wait = _wait(tries, OPERATOR_BACK_OFF if error.remedy == "operator" else BACK_OFF)
                log.warning("channel.down", channel=line.record.name, error=str(error), retry_in=wait)
            except Exception as error:  # the outermost loop of a channel: the others must go on
                line.trouble = str(error)
                wait = _wait(tries, BACK_OFF)
                log.exception("channel.failed", channel=line.record.name)
            else:
                wait = 0.0
            line.connection = None
            line.listening.fall_silent(line.trouble)
            tries += 1
            await _either(line.stop, timeout=wait)

    async def _receive(self, line: Line, connection: Connection) -> None:
        """Receive whenever the bot's connection lease is ours; without it, stand by and only send."""
        while self._receives and not (self._hushed.is_set() or line.stop.is_set()):
            async with line.receiving:
                received = await self._receive_once(line, connection)
            if not received:
                await _either(line.stop, self._hushed, timeout=STANDBY_LOOK)
        await line.stop.wait()

    async def _receive_once(self, line: Line, connection: Connection) -> bool:
        name = f"a:{line.plugin.name}:{line.plugin.account(line.settings)}"
        try:
            async with self._leases.hold(name, ttl=self._lease_ttl) as lease:
                line.listening.stand_by(yes=False)
                await self._receive_leased(line, connection, lease.wait_lost())
        except (Busy, DeliveryError) as error:
            line.listening.stand_by(yes=isinstance(error, Busy), why=str(error))
            return False
        return True

    async def _receive_leased(self, line: Line, connection: Connection, lost: Any) -> None:
        accept = self._reception().accept(line.desk)
        running = asyncio.create_task(connection.inbox.run(accept, receiving=line.listening))
        losing, stopping = asyncio.ensure_future(lost), asyncio.create_task(_either(line.stop, self._hushed))
        try:
            await asyncio.wait({running, losing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            line.listening.fall_silent()
            for task in (running, losing, stopping):
                task.cancel()
            await asyncio.gather(running, losing, stopping, return_exceptions=True)

    def find(self, channel: str) -> Bot | None:
        """Return a connected bot, for the chat sink."""
        line = self._lines.get(channel)
        if line is None or line.connection is None:
            return None
        return Bot(
            channel=line.connection.channel,
            features=line.plugin.features,
            budget=line.budget,
            limits=line.plugin.limits,
            account=line.record.account,
            policy=Policy(line.settings.ambiguous),
        )

    def resolves(self, delivery: Delivery) -> bool:
        """Say whether the platform can tell what became of a message that may have arrived."""
        line = self._lines.get(Address.load(delivery.target).channel)
        return line is not None and bool({Feature.FIND, Feature.IDEMPOTENT_SEND} & line.plugin.features)

    def told(self, destination: str, seconds: float) -> None:
        """A platform wants a whole bot to pause, as perhaps another replica was told."""
        line = self._lines.get(json.loads(destination)[0])
        if line is not None:
            line.budget.hold(seconds)

    def policy(self, delivery: Delivery) -> Policy:
        """Return what a delivery's channel wants done when it may have arrived."""
        line = self._lines.get(Address.load(delivery.target).channel)
        return Policy(line.settings.ambiguous) if line else Policy.AT_LEAST_ONCE

    def limits(self, channel: str) -> Limits:
        """Return a channel's limits, for planning."""
        line = self._lines.get(channel)
        return line.plugin.limits if line else UNKNOWN

    def typing_seconds(self, channel: str) -> float:
        """Return how long a typing sign lasts there."""
        return self.limits(channel).typing_seconds

    async def receive(self, channel: str, request: Incoming) -> Answer | None:
        """Give a posted request to a channel's inbox; None when there is no such channel."""
        line = self._lines.get(channel)
        if line is None:
            return None
        if line.connection is None:
            return Answer(status=503)
        return await line.connection.inbox.receive(request, self._reception().accept(line.desk))

    async def answer(self, to: Press | Command, text: str) -> None:
        """Tell who pressed a button what came of it; best effort, the decision stands anyhow."""
        line = self._lines.get(to.address.channel)
        if line is None or line.connection is None:
            return
        try:
            await line.connection.channel.answer(to, text)
        except ChannelError as error:
            log.warning("channel.answer_failed", channel=line.record.name, error=str(error))

    def reacts(self) -> bool:
        """Say whether any channel here shows by reactions what became of a message."""
        return any(_reacts(line) for line in self._lines.values())

    async def react(self, address: Address, platform_id: str, sign: Sign) -> None:
        """Put a sign under a message where that is wanted; best effort, whatever the platform says of it."""
        line = self._lines.get(address.channel)
        if line is None or line.connection is None or not _reacts(line):
            return
        try:
            async with asyncio.timeout(SIGN_SECONDS):
                await line.connection.channel.react(address, platform_id, sign)
        except (ChannelError, TimeoutError) as error:
            log.debug("channel.react_failed", channel=line.record.name, error=str(error))

    def troubles(self) -> dict[str, str]:
        """Return what is wrong with channels, by name."""
        told = {line.record.name: line.trouble or self._interruption(line) for line in self._lines.values()}
        return {name: trouble for name, trouble in told.items() if trouble}

    def _interruption(self, line: Line) -> str:
        """Return why a channel that received here does not, for the moment."""
        listening = line.listening
        if not self._receives or listening.is_open or not listening.has_begun:
            return ""
        return f"not receiving: {listening.why or 'it begins'}"

    def deaf(self) -> dict[str, str]:
        """Return the channels that have not received for long where they should, with why."""
        return {
            line.record.name: line.listening.why or "no updates arrive"
            for line in self._lines.values()
            if self._receives and line.listening.is_deaf
        }

    def standings(self) -> dict[str, int]:
        """Count the channels by how they stand in this process."""
        counted = dict.fromkeys(("receiving", "standby", "trouble", "open", "closed"), 0)
        for line in self._lines.values():
            counted[_standing(line)] += 1
        return counted

    def waiting(self) -> list[str]:
        """Return the channels that should receive here and do not yet (those in trouble excepted)."""
        if self._receives and not self._is_known:
            return ["the channels that are not read from the database yet"]
        return [
            line.record.name
            for line in self._lines.values()
            if self._receives and not (line.listening.has_begun or line.trouble)
        ]


def _standing(line: Line) -> str:
    if line.trouble:
        return "trouble"
    if line.listening.receives:
        return "receiving"
    if line.listening.stands_by:
        return "standby"
    return "closed" if line.connection is None else "open"


def _reacts(line: Line) -> bool:
    return line.settings.reactions and Feature.REACT in line.plugin.features


def _wait(tries: int, back_off: Sequence[float]) -> float:
    return back_off[min(tries, len(back_off) - 1)]


async def _either(*events: asyncio.Event, timeout: float | None = None) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _limits(plugin: ChannelPlugin, settings: ChannelSettings) -> Limits:
    """Return the platform's limits, with the rate that the operator knows it takes from this bot."""
    if settings.sends_per_second is None:
        return plugin.limits
    return replace(plugin.limits, account_sends_per_second=settings.sends_per_second)

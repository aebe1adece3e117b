"""A signal to all replicas that the database has changed. It is lost while the broker is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from nats.aio.msg import Msg

from delivery.background import log_errors, wait_for_any
from delivery.broker.connection import NatsConnection, connect
from delivery.errors import BrokerUnreachable, DeliveryError
from gateway.config.settings import Settings
from gateway.infra.embedded_nats import find_running

CHANNELS_CHANGED = "changed.channels"
"""The subject of the signal that a channel was created, changed or deleted."""

RETRY_SECONDS = 1.0
SEND_TIMEOUT = 5.0


class ReplicaSignal:
    """Tells all replicas, this one too, to look at the database now instead of at the next interval."""

    def __init__(self, nats: NatsConnection, subject: str) -> None:
        self._nats = nats
        self._subject = subject

    async def send(self) -> None:
        """Send the signal, best effort: raises nothing."""
        await self._nats.publish_nowait(self._subject)

    async def run(self, stop: asyncio.Event, on_signal: Callable[[], None]) -> None:
        """Call `on_signal` at each signal until `stop`, and once when signals may have been missed."""

        async def receive(_message: Msg) -> None:
            on_signal()

        while not stop.is_set():
            with log_errors("replica_signal.receive"):
                try:
                    async with self._nats.subscribe(self._subject, receive, on_overflow=on_signal):
                        on_signal()
                        await stop.wait()
                except BrokerUnreachable:
                    await wait_for_any(stop, timeout=RETRY_SECONDS)


async def send_from_command(settings: Settings, subject: str) -> None:
    """Send a signal from a process that is no replica, best effort: raises nothing."""
    named = settings.nats_url
    server = find_running(settings.data_dir) if named is None else (named.get_secret_value(), None)
    if server is None:
        return
    with suppress(DeliveryError, TimeoutError):
        async with asyncio.timeout(SEND_TIMEOUT), connect(server[0], token=server[1]) as nats:
            await ReplicaSignal(nats, subject).send()

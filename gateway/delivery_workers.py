"""The lanes on which results leave: one worker for chats, one for webhooks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, closing, suppress
from datetime import datetime
from typing import Any

from delivery.broker.port import Queue
from delivery.chat.sink import ChatSink
from delivery.database.engine import Database, Unavailable
from delivery.deliveries.port import Delivery
from delivery.deliveries.retry_schedule import CHAT, Schedule
from delivery.deliveries.route import bot_of
from delivery.deliveries.send_receipts import Arrivals
from delivery.deliveries.transactions import Ledger
from delivery.deliveries.worker import Lane, Worker
from delivery.events.event import Event
from delivery.events.relay import Relay
from delivery.webhooks import endpoints
from delivery.webhooks.circuit_breaker import Standing, WatchedSink
from delivery.webhooks.egress import Egress, Rules
from delivery.webhooks.sink import Receiver, WebhookSink
from gateway.config.load import wants_traces
from gateway.config.setting_types import Role
from gateway.infra.backing_services import Ground, Running
from gateway.ingress.channel_supervisor import Switchboard
from gateway.instrumentation import CountedLeases, CountedSink
from gateway.observability.tracing.propagation import Propagation
from gateway.records import webhooks

SEQ_WITHIN = 1.0
"""Seconds a webhook waits for its event's position in the stream; after a restart it may go without."""


async def deliverers(
    ground: Ground,
    ledger: Ledger,
    *,
    relay: Relay,
    switchboard: Switchboard,
    chats: ChatSink,
    stack: AsyncExitStack,
) -> list[Running]:
    """Return what delivers in this process, by its roles."""
    settings = ground.settings
    if Role.DELIVERY not in settings.roles:
        return []
    egress = await stack.enter_async_context(Egress(Rules(allow=settings.egress_allow)))
    source = settings.public_url or "dovecote"
    patience = Schedule(steps=settings.webhook_schedule)
    hooks = WatchedSink(
        WebhookSink(egress=egress, lookup=_receivers(ground), source=source, **_traced(ground)),
        standing=EndpointStanding(ground.database),
        schedule=patience,
    )
    lanes = (
        Lane(
            queue=Queue.DELIVER,
            sink=CountedSink(chats, ground.metrics),
            schedule=CHAT,
            ordered=True,
            repeatable=False,
            policy=switchboard.policy,
            resolves=switchboard.resolves,
            wider=bot_of,
            told=switchboard.told,
        ),
        Lane(
            queue=Queue.HOOK,
            sink=CountedSink(hooks, ground.metrics),
            schedule=patience,
            ordered=False,
            repeatable=True,
            ordered_at=endpoints.is_ordered,
            complete=lambda delivery: _with_seq(relay, delivery),
        ),
    )
    arrivals = Arrivals(ground.home / "arrivals") if ground.home else None
    if arrivals is not None:
        stack.enter_context(closing(arrivals))
    return [
        Worker(
            lane,
            ledger=ledger,
            leases=CountedLeases(ground.leases, ground.metrics),
            signals=ground.signals,
            checkpoint=ground.faults.checkpoint,
            arrivals=arrivals if lane.queue is Queue.DELIVER else None,
            at_most=settings.delivery_workers,
            lease_ttl=settings.lease_ttl,
        ).run
        for lane in lanes
    ]


def _traced(ground: Ground) -> dict[str, Any]:
    """Name the trace to receivers where traces are wanted."""
    return {"more_headers": Propagation(ground.database).headers} if wants_traces() else {}


async def _with_seq(relay: Relay, delivery: Delivery) -> bytes:
    """Return a webhook's body: the event with its position, which it has once it is in the stream."""
    event = Event.load(delivery.body)
    seq = await relay.seq_of(event, within=SEQ_WITHIN)
    return delivery.body if seq is None else event.dump(seq)


def _receivers(ground: Ground) -> Callable[[str], Coroutine[Any, Any, Receiver | None]]:
    async def find(endpoint_id: str) -> Receiver | None:
        async with ground.database.read() as connection:
            endpoint = await endpoints.by_id(connection, endpoint_id)
        if endpoint is None:
            return None
        return Receiver(
            url=endpoint.url,
            secrets=webhooks.live_secrets(ground.vault, endpoint),
            trusted=endpoint.trusted,
            disabled=endpoint.disabled_at is not None,
        )

    return find


class EndpointStanding(Standing):
    """How endpoints have been doing, in their rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def failed(self, endpoint: str, now: datetime) -> datetime:
        """Remember the first failure after a success; without a database nothing is concluded."""
        try:
            async with self._database.begin() as connection:
                return await endpoints.note_failure(connection, endpoint, now=now)
        except Unavailable:
            return now

    async def succeeded(self, endpoint: str) -> None:
        """Forget that it failed."""
        with suppress(Unavailable):
            async with self._database.begin() as connection:
                await endpoints.note_success(connection, endpoint)

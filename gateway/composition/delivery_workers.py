"""Delivery workers: one for chats, one for webhooks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, closing, suppress
from datetime import datetime
from functools import partial
from typing import Any

from delivery.broker.port import WorkQueue
from delivery.chat.drafts import Drafts
from delivery.chat.shown_messages import find_shown_in
from delivery.chat.sink import AttachFile, ChatSink
from delivery.database.engine import Database, DatabaseUnavailable
from delivery.deliveries.port import Delivery
from delivery.deliveries.retry_schedule import CHAT, RetrySchedule
from delivery.deliveries.transactions import Transactions
from delivery.events.event import Event
from delivery.events.relay import Relay
from delivery.webhooks import endpoints
from delivery.webhooks.circuit_breaker import CircuitBreakerSink, EndpointHealth
from delivery.webhooks.egress import Egress
from delivery.webhooks.shared_lookup import SharedLookup
from delivery.webhooks.sink import WebhookSink, WebhookTarget
from delivery.workers.send_receipts import SendReceipts
from delivery.workers.sink_config import SinkConfig
from delivery.workers.worker import DeliveryWorker
from egress.policy import EgressPolicy
from gateway.composition.worker_leases import open_worker_leases
from gateway.config.load import wants_traces
from gateway.config.setting_types import Role
from gateway.conversations.notices import report_parked
from gateway.infra.backing_services import BackgroundTask, BackingServices
from gateway.infra.shard_leases import DELIVERY_SHARDS
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.ingress.deleted_channels import DeletionCheckingSink
from gateway.ingress.refused_credentials import CredentialCheckingSink
from gateway.instrumentation import InstrumentedSink
from gateway.observability.tracing.propagation import TraceContextPropagator
from gateway.records import webhooks
from gateway.store.conversations import conversations

SEQ_TIMEOUT = 1.0
"""Seconds that a webhook waits for its event's `seq`; after a restart it may be sent without it."""


async def delivery_workers(
    backing: BackingServices,
    transactions: Transactions,
    *,
    relay: Relay,
    channel_supervisor: ChannelSupervisor,
    drafts: Drafts,
    attach: AttachFile,
    stack: AsyncExitStack,
) -> list[BackgroundTask]:
    """Return the delivery tasks of this process; none without the delivery role."""
    settings = backing.settings
    if Role.DELIVERY not in settings.roles:
        return []
    chat_sink = ChatSink(
        channel_supervisor.get_bot,
        explain=channel_supervisor.connection_error,
        claim=drafts.claim,
        claim_unfinished=drafts.claim_unfinished,
        attach=attach,
        find_shown=find_shown_in(backing.database),
        name_thread=partial(_title_of, backing.database),
    )
    checked_sink = DeletionCheckingSink(
        CredentialCheckingSink(chat_sink, channel_supervisor.note_credentials), backing.database
    )
    egress = await stack.enter_async_context(Egress(EgressPolicy(allow=settings.egress_allow)))
    source = settings.public_url or "dovecote"
    webhook_schedule = RetrySchedule(delays=settings.webhook_schedule)
    webhook_sink = CircuitBreakerSink(
        WebhookSink(
            egress=egress, find_target=_webhook_targets(backing), source=source, **_trace_headers(backing)
        ),
        health=SqlEndpointHealth(backing.database),
    )
    configs = (
        SinkConfig(
            queue=WorkQueue.DELIVER,
            sink=InstrumentedSink(checked_sink, backing.metrics),
            schedule=CHAT,
            ordered=True,
            repeatable=False,
            policy=channel_supervisor.policy,
            resolves=channel_supervisor.can_resolve,
            bot_destination=channel_supervisor.bot_destination,
            on_bot_paused=channel_supervisor.pause_bot,
            on_parked=report_parked,
        ),
        SinkConfig(
            queue=WorkQueue.HOOK,
            sink=InstrumentedSink(webhook_sink, backing.metrics),
            schedule=webhook_schedule,
            ordered=False,
            repeatable=True,
            ordered_at=endpoints.is_ordered,
            complete_body=lambda delivery: _with_seq(relay, delivery),
        ),
    )
    receipts = SendReceipts(backing.locked_data_dir / "arrivals") if backing.locked_data_dir else None
    if receipts is not None:
        stack.enter_context(closing(receipts))
    work = open_worker_leases(backing, DELIVERY_SHARDS, transactions.wake_soon)
    workers = [
        DeliveryWorker(
            config,
            transactions=transactions,
            leases=work.leases,
            wake_ups=backing.wake_ups,
            checkpoint=backing.fault_points.checkpoint,
            receipts=receipts if config.queue is WorkQueue.DELIVER else None,
            size=settings.pool(settings.delivery_workers),
            lease_ttl=settings.lease_ttl,
        )
        for config in configs
    ]
    transactions.claim_deliveries(WorkQueue.DELIVER, workers[0].immediate_sends())
    return [*(worker.run for worker in workers), *work.tasks]


def _trace_headers(backing: BackingServices) -> dict[str, Any]:
    """Return the option that adds trace headers to webhooks, if traces are enabled."""
    return {"extra_headers": TraceContextPropagator(backing.database).headers} if wants_traces() else {}


async def _with_seq(relay: Relay, delivery: Delivery) -> bytes:
    """Return a webhook's body: the event with its `seq`, once it is published."""
    event = Event.decode(delivery.body)
    seq = await relay.get_seq(event, timeout=SEQ_TIMEOUT)
    return delivery.body if seq is None else event.encode(seq)


async def _title_of(database: Database, conversation: str) -> str:
    """Return the title of a conversation, by which people know a thread that is gone."""
    async with database.read() as connection:
        found = await conversations.get_by_id(connection, conversation)
    return (found.title if found else None) or ""


def _webhook_targets(backing: BackingServices) -> Callable[[str], Coroutine[Any, Any, WebhookTarget | None]]:
    async def find(endpoint_id: str) -> WebhookTarget | None:
        async with backing.database.read() as connection:
            endpoint = await endpoints.get_by_id(connection, endpoint_id)
        if endpoint is None:
            return None
        return WebhookTarget(
            url=endpoint.url,
            secrets=webhooks.active_secrets(backing.vault, endpoint),
            trusted=endpoint.trusted,
            disabled=endpoint.disabled_at is not None,
        )

    return SharedLookup(find).get


class SqlEndpointHealth(EndpointHealth):
    """The health of webhook endpoints, stored in their rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record_failure(self, endpoint: str, now: datetime) -> datetime:
        """Record a failure and return the first one since a success; `now` if the database is unavailable."""
        try:
            async with self._database.begin() as connection:
                return await endpoints.record_failure(connection, endpoint, now=now)
        except DatabaseUnavailable:
            return now

    async def record_success(self, endpoint: str) -> None:
        """Clear an endpoint's failures."""
        with suppress(DatabaseUnavailable):
            async with self._database.begin() as connection:
                await endpoints.record_success(connection, endpoint)

"""The parts that all services are built on: transactions, the relay, channels and drafts."""

from __future__ import annotations

from dataclasses import dataclass

from delivery.broker import checkpoints
from delivery.broker.port import WorkQueue
from delivery.chat.drafts import Drafts
from delivery.chat.rate_limit_store import SqlTokenBuckets
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Transactions
from delivery.events.event import Event
from delivery.events.relay import Relay
from egress.policy import EgressPolicy
from gateway.composition.worker_leases import WorkerLeases, open_worker_leases
from gateway.config.load import wants_traces
from gateway.config.setting_types import Role
from gateway.conversations.commands.room_verbosity import RoomVerbosity
from gateway.conversations.message_ids import full_text_path
from gateway.files.wiring import speech_format
from gateway.infra.backing_services import BackingServices
from gateway.infra.replica_signal import CHANNELS_CHANGED, ReplicaSignal
from gateway.infra.shard_leases import TURN_SHARDS
from gateway.ingress.channel_context import UpdateAcceptor
from gateway.ingress.channel_supervisor import ChannelSupervisor
from gateway.ingress.interactions.status_reactions import StatusReactions
from gateway.instrumentation import (
    InstrumentedLeases,
    InstrumentedStream,
)
from gateway.observability import tracing
from gateway.observability.tracing.span_recorder import SpanRecorder
from gateway.records.records import Records
from gateway.tools.mcp.sign_ins.links import SignInLinks
from gateway.tools.mcp.sign_ins.wiring import open_sign_in_links
from gateway.turns.turn_end import EndedTurns


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """The parts that all services are built on."""

    backing: BackingServices
    records: Records
    span_recorder: SpanRecorder | None
    relay: Relay
    acceptors: list[UpdateAcceptor]
    channel_supervisor: ChannelSupervisor
    transactions: Transactions
    turn_leases: WorkerLeases
    drafts: Drafts
    status_reactions: StatusReactions
    sign_in_links: SignInLinks


def build_foundation(backing: BackingServices) -> Foundation:
    """Build the parts that all services are built on."""
    settings, checkpoint = backing.settings, backing.fault_points.checkpoint
    records = Records(
        backing.vault,
        EgressPolicy(allow=settings.egress_allow),
        ceilings=settings.sandbox.ceilings,
    )
    span_recorder = tracing.open_span_recorder(backing.database) if wants_traces() else None
    stream = InstrumentedStream(
        backing.stream, backing.metrics, on_event=span_recorder.on_event if span_recorder else _ignore_event
    )
    relay = Relay(
        backing.database, stream, checkpoint, announce=backing.announce, is_present=checkpoints.is_present
    )
    acceptors: list[UpdateAcceptor] = []
    channels = _channel_supervisor(backing, records, acceptors)
    verbosity = RoomVerbosity(backing.database).get
    transactions = Transactions(
        backing.database,
        relay,
        Router(
            channels.limits,
            max_messages=backing.settings.files.messages_before_file,
            accepts_files=channels.accepts_files,
            speech=speech_format(backing.settings.speech),
        ),
        backing.wake_ups,
        checkpoint,
        full_text_url=full_text_path,
    )
    channels.wake_destination = lambda destination, account: transactions.wake_soon(
        WorkQueue.DELIVER, destination, account=account
    )
    return Foundation(
        backing=backing,
        records=records,
        span_recorder=span_recorder,
        relay=relay,
        acceptors=acceptors,
        channel_supervisor=channels,
        transactions=transactions,
        turn_leases=open_worker_leases(backing, TURN_SHARDS, transactions.wake_soon),
        drafts=Drafts(
            get_bot=channels.get_bot,
            database=backing.database,
            get_verbosity=verbosity,
            get_ended_turns=EndedTurns(backing.database).get,
        ),
        status_reactions=StatusReactions(
            backing.database, channels.react, channels.has_reactions, channels.has_single_reactions
        ),
        sign_in_links=open_sign_in_links(backing, transactions, records),
    )


def _channel_supervisor(
    backing: BackingServices, records: Records, acceptors: list[UpdateAcceptor]
) -> ChannelSupervisor:
    settings = backing.settings
    return ChannelSupervisor(
        database=backing.database,
        records=records,
        get_acceptor=lambda: acceptors[0],
        leases=InstrumentedLeases(backing.leases, backing.metrics),
        may_receive=Role.INGRESS in settings.roles,
        public_url=settings.public_url,
        token_buckets=None if backing.sole_process_since else SqlTokenBuckets(backing.database),
        replica=backing.presence.instance if backing.presence is not None else None,
        changes=ReplicaSignal(backing.nats, CHANNELS_CHANGED),
        lease_ttl=settings.lease_ttl,
    )


def _ignore_event(_event: Event) -> None:
    """Do nothing: tracing is off."""

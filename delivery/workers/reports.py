"""What a worker reports of its attempts: events for the conversation, and log lines."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from delivery.deliveries.attempt import DeliveryState, Transition
from delivery.deliveries.port import Outcome
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType

log = structlog.get_logger(__name__)


def emit(
    tx: Transaction, due: DueDelivery, transition: Transition, attempt: int, platform_id: str | None
) -> None:
    """Emit the event of a transition, if it has one."""
    if transition.event_type is None or due.delivery.conversation is None:
        return
    data: dict[str, object] = {
        "delivery": due.delivery.id,
        "route": due.delivery.kind,
        "attempt": attempt,
        "event": due.delivery.event_id,
        "part": due.delivery.part,
    }
    if platform_id:
        data["platform_id"] = platform_id
    if transition.state is DeliveryState.PARKED:
        data["parked"] = True
    tx.emit(Event.now(transition.event_type, due.delivery.conversation, data, turn=due.delivery.turn))


def emit_disabled(tx: Transaction, due: DueDelivery, why: str) -> None:
    """Log that an endpoint is disabled, and emit the event for the account's other webhooks."""
    log.warning("webhook.disabled", webhook=due.destination, account=due.delivery.account, why=why)
    if due.delivery.conversation is not None:
        data = {"webhook": due.destination, "why": why}
        tx.emit(Event.now(EventType.WEBHOOK_DISABLED, due.delivery.conversation, data))


def log_attempt(due: DueDelivery, transition: Transition, outcome: Outcome, attempt: int) -> None:
    """Log the outcome of an attempt: an error only if an operator must act.

    A person who blocks the bot and an endpoint that its account deleted need no operator.
    """
    fields: Mapping[str, object] = {
        "delivery": due.delivery.id,
        "kind": due.delivery.kind,
        "state": str(transition.state),
        "attempt": attempt,
        "conversation": due.delivery.conversation,
        "turn": due.delivery.turn,
    }
    if transition.mark_dead:
        log.warning("destination.marked_dead", detail=outcome.detail, **fields)
    elif transition.needs_operator:
        log.error("delivery.operator_required", detail=outcome.detail, **fields)
    elif transition.state is not DeliveryState.DELIVERED:
        log.warning("delivery.attempted", detail=outcome.detail, **fields)
    else:
        log.info("delivery.attempted", **fields)

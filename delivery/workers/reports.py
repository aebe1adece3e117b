"""What a worker reports of its attempts: events for the conversation, and log lines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import structlog

from delivery.deliveries.attempt import DeliveryState, Transition
from delivery.deliveries.port import Outcome
from delivery.deliveries.store import DueDelivery
from delivery.deliveries.transactions import Transaction
from delivery.events.event import Event, EventType

MAX_DESTINATIONS = 1000
"""Destinations whose problems are remembered."""

MAX_PROBLEMS = 20
"""Problems of one destination that are remembered."""

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


class AttemptLog:
    """Logs the outcomes of attempts: an error only if an operator must act, and once for each problem.

    A person who blocks the bot and an endpoint that its account deleted need no operator. A problem that
    stays is an error again after something was delivered at the destination, or after a restart.
    """

    def __init__(self) -> None:
        self._problems: OrderedDict[str, set[str]] = OrderedDict()

    def write(self, due: DueDelivery, transition: Transition, outcome: Outcome, attempt: int) -> None:
        """Log the outcome of one attempt."""
        fields: Mapping[str, object] = {
            "account": due.delivery.account,
            "delivery": due.delivery.id,
            "kind": due.delivery.kind,
            "state": str(transition.state),
            "attempt": attempt,
            "conversation": due.delivery.conversation,
            "turn": due.delivery.turn,
        }
        if transition.mark_dead:
            log.warning("destination.marked_dead", detail=outcome.detail, **fields)
        elif transition.needs_operator and self._is_new(due.destination, outcome.detail):
            log.error("delivery.operator_required", detail=outcome.detail, **fields)
        elif transition.state is not DeliveryState.DELIVERED:
            log.warning("delivery.attempted", detail=outcome.detail, **fields)
        else:
            self._problems.pop(due.destination, None)
            log.info("delivery.attempted", **fields)

    def _is_new(self, destination: str, problem: str) -> bool:
        """Return whether a problem was not logged yet; remember it."""
        known = self._problems.setdefault(destination, set())
        is_new = problem not in known
        if len(known) < MAX_PROBLEMS:
            known.add(problem)
        if len(self._problems) > MAX_DESTINATIONS:
            self._problems.popitem(last=False)
        return is_new

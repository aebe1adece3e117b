"""Warnings that most of a budget is used: one message in the chat that used it, in each period."""

from __future__ import annotations

import structlog

from delivery.database.engine import Connection
from delivery.deliveries.transactions import Transactions
from gateway.accounts.budgets import OnModelRequest, UsageMeter
from gateway.accounts.reservations import BudgetReservations, BudgetWarning
from gateway.agents.port import AgentSpec, TurnLimits
from gateway.config.settings import Settings
from gateway.conversations.notices import post_notice
from gateway.observability.metrics import Metrics
from gateway.records.agent import agent_config, turn_limits
from gateway.store.accounts import budgets, records

log = structlog.get_logger(__name__)


class BudgetWarnings:
    """Posts each warning once, whichever replica comes first."""

    def __init__(self, transactions: Transactions, metrics: Metrics) -> None:
        self._transactions = transactions
        self._metrics = metrics

    async def warn(self, warning: BudgetWarning) -> None:
        """Post a warning in its conversation, unless the period has one."""
        async with self._transactions.begin("budget.warn") as tx:
            if not await budgets.mark_warned(tx.connection, warning.account, warning.counter):
                return
            await post_notice(tx, warning.conversation, warning.text, turn=warning.turn, urgent=True)
        self._metrics.count("budget_warnings", whose=warning.whose)
        log.warning(
            "budget.warned",
            account=warning.account,
            owner=warning.counter.owner or warning.account,
            period=warning.counter.period,
            kind=str(warning.counter.kind),
            used=warning.counter.used,
            limit=warning.counter.ceiling,
        )


def open_usage_meter(
    transactions: Transactions,
    metrics: Metrics,
    settings: Settings,
    *,
    on_model_request: OnModelRequest | None = None,
) -> UsageMeter:
    """Return the meter of a gateway: it warns people in chats, and its days begin in the operator's zone."""
    reservations = BudgetReservations(
        transactions.database,
        timezone=settings.timezone,
        on_warning=BudgetWarnings(transactions, metrics).warn,
    )
    return UsageMeter(
        transactions.database,
        metrics,
        settings.prices,
        reservations=reservations,
        on_model_request=on_model_request,
        present_limits=present_limits,
    )


async def present_limits(connection: Connection, agent: AgentSpec) -> TurnLimits:
    """Return the limits of an agent's record as it is now; of a deleted agent those of the turn."""
    record = await records.get_by_id(connection, agent.id)
    return agent.limits if record is None else turn_limits(agent_config(record))

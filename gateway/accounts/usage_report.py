"""The command `/usage`: what a conversation has used so far, and how much of its budgets is used."""

from __future__ import annotations

from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from gateway.accounts import persons
from gateway.accounts.budget_periods import BudgetNames, render_share
from gateway.store.accounts import budgets, usage
from gateway.store.accounts.budgets import ACCOUNT_OWNER
from gateway.store.accounts.usage import Amount
from gateway.store.conversations.conversations import Conversation

NONE_YET = "This conversation has used no model and no sandbox yet."


async def render_usage(connection: Connection, conversation: Conversation, *, by: str, timezone: str) -> str:
    """Return the usage of a conversation, and how much of its budgets is used.

    `by` is the person who asks. Costs are only shown as a share: the account alone sees them.
    """
    found = await usage.sum_of_conversation(connection, conversation.account, conversation.id)
    model, sandbox = found.get("model", Amount()), found.get("sandbox", Amount())
    parts = []
    if model.requests:
        parts.append(
            f"{_count(model.requests, 'request')} to models with {int(model.input_tokens):,} input and "
            f"{int(model.output_tokens):,} output tokens"
        )
    if sandbox.seconds:
        parts.append(f"{_count(round(sandbox.seconds), 'second')} of sandboxes")
    said = f"This conversation has used {' and '.join(parts)}." if parts else NONE_YET
    shares = await _render_budgets(connection, conversation, by=by, timezone=timezone)
    return "\n".join([said, *shares])


async def _render_budgets(
    connection: Connection, conversation: Conversation, *, by: str, timezone: str
) -> list[str]:
    """Return a line for each budget that the conversation's next turn would be under, if it was used."""
    limits = await budgets.get_limits(connection, conversation.account)
    owners = [ACCOUNT_OWNER, conversation.agent]
    platform = await persons.platform_of(connection, conversation)
    if platform is not None and by:
        owners.append(await persons.subject_of(connection, conversation.account, platform, by))
    names = BudgetNames(
        agent=conversation.agent,
        agent_name=await usage.agent_name(connection, conversation.account, conversation.agent),
        timezone=limits.timezone or timezone,
    )
    found = await budgets.list_counters(connection, conversation.account, now=utc_now(), owners=owners)
    return [render_share(counter, names) for counter in found]


def _count(number: int, noun: str) -> str:
    return f"{int(number):,} {noun}{'' if number == 1 else 's'}"

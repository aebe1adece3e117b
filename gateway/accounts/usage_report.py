"""The command `/usage`: what a conversation has used so far."""

from __future__ import annotations

from delivery.database.engine import Connection
from gateway.store.accounts import usage
from gateway.store.accounts.usage import Amount

NONE_YET = "This conversation has used no model and no sandbox yet."


async def render_usage(connection: Connection, account: str, conversation: str) -> str:
    """Return the usage of a conversation as a sentence, without its cost, which only the account sees."""
    found = await usage.sum_of_conversation(connection, account, conversation)
    model, sandbox = found.get("model", Amount()), found.get("sandbox", Amount())
    parts = []
    if model.requests:
        parts.append(
            f"{_count(model.requests, 'request')} to models with {int(model.input_tokens):,} input and "
            f"{int(model.output_tokens):,} output tokens"
        )
    if sandbox.seconds:
        parts.append(f"{_count(round(sandbox.seconds), 'second')} of sandboxes")
    return f"This conversation has used {' and '.join(parts)}." if parts else NONE_YET


def _count(number: int, noun: str) -> str:
    return f"{int(number):,} {noun}{'' if number == 1 else 's'}"

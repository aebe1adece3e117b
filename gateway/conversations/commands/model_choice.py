"""The command `/model`: list and select the models that the operator allows for a conversation's agent."""

from __future__ import annotations

from collections.abc import Sequence

from delivery.deliveries.transactions import Transaction
from gateway.records.agent import OperatorModel, model_choices
from gateway.store.accounts import records
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation

DEFAULT = "default"
"""What selects the agent's own model again."""

MAX_QUOTED = 80


async def execute_model_command(
    tx: Transaction, conversation: Conversation, args: Sequence[str], operator_model: OperatorModel
) -> str:
    """Execute `/model` and return the reply."""
    agent = await records.get_by_id(tx.connection, conversation.agent)
    if agent is None:
        return "This conversation's agent no longer exists. Use `/new`, or a conversation of another name."
    choices = model_choices(agent, operator_model)
    if not args:
        return _list(choices, conversation.model)
    wanted = args[0]
    found = choices[0] if wanted.lower() == DEFAULT else _find(choices, wanted)
    if found is None:
        return f"The model `{_quoted(wanted)}` is not allowed here. {_list(choices, conversation.model)}"
    is_own = found == choices[0]
    await conversations.set_model(tx.connection, conversation.id, None if is_own else found)
    return f"Your next message is answered by `{found}`" + (", the agent's own model." if is_own else ".")


def _find(choices: Sequence[str], wanted: str) -> str | None:
    """Return the model of this name; the vendor may be left out if no other vendor has such a model."""
    if wanted in choices:
        return wanted
    named = [one for one in choices if one.partition(":")[2].lower() == wanted.lower()]
    return named[0] if len(named) == 1 else None


def _list(choices: Sequence[str], selected: str | None) -> str:
    used = selected if selected in choices else choices[0]
    if len(choices) == 1:
        return f"This conversation uses `{used}`; there is no other model to choose from."
    lines = [f"- `{one}`{' (in use)' if one == used else ''}" for one in choices]
    return "\n".join([*lines, f"`/model NAME` selects one, `/model {DEFAULT}` the agent's own."])


def _quoted(text: str) -> str:
    return text.replace("`", "'")[:MAX_QUOTED]

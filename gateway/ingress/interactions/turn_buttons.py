"""Buttons below a failed turn, or one that waits for another attempt: retry it, or stop it."""

from __future__ import annotations

from collections.abc import Callable

from channels.message import ButtonPress
from delivery.broker.port import WorkQueue
from delivery.deliveries.transactions import Transaction, Transactions
from gateway.conversations.retry import TurnNotFailed, retry_in
from gateway.ingress.access import AdmissionResult, authorize
from gateway.ingress.channel_context import ChannelContext
from gateway.ingress.commands.chat_commands import STOPPED
from gateway.ingress.confidential_replies import ReplyPrivately
from gateway.store.conversations import conversations
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn

NO_LONGER_VALID = "This button is no longer valid."


def is_turn_button(press: ButtonPress) -> bool:
    """Return whether a button belongs to a turn."""
    return press.data.partition(":")[0] in _ACTIONS


class TurnButtons:
    """Retries and stops turns by button. `cancel` cancels a turn that runs in this process."""

    def __init__(
        self, transactions: Transactions, reply_privately: ReplyPrivately, cancel: Callable[[str], None]
    ) -> None:
        self._transactions = transactions
        self._reply_privately = reply_privately
        self._cancel = cancel

    async def on_button_press(self, context: ChannelContext, press: ButtonPress) -> None:
        """Retry or stop the button's turn, and reply to the person."""
        verb, _, turn_id = press.data.partition(":")
        async with self._transactions.begin("turn.button") as tx:
            turn = await self._find(tx, context, press, turn_id)
            reply = NO_LONGER_VALID if turn is None else await _ACTIONS[verb](tx, turn)
        if turn is not None and verb == "stop":
            self._cancel(turn.id)
        await self._reply_privately(press, reply)

    @staticmethod
    async def _find(
        tx: Transaction, context: ChannelContext, press: ButtonPress, turn_id: str
    ) -> Turn | None:
        """Return the turn, if it belongs to the conversation of this chat and the person may use the bot."""
        if await authorize(tx.connection, press, context) is not AdmissionResult.ADMITTED:
            return None
        account = context.record.account
        here = await conversations.get_by_address(tx.connection, account, press.address.key)
        turn = await turns.get(tx.connection, account, turn_id)
        return turn if turn is not None and here is not None and turn.conversation == here.id else None


async def _retry(tx: Transaction, turn: Turn) -> str:
    try:
        await retry_in(tx, turn)
    except TurnNotFailed as error:
        return f"There is nothing to retry: {error}."
    return "Trying again."


async def _stop(tx: Transaction, turn: Turn) -> str:
    if await turns.request_cancel(tx.connection, turn.id, reason=STOPPED) is None:
        return f"There is nothing to stop: the turn is {turn.state}."
    tx.wake(WorkQueue.TURN, turn.conversation, account=turn.account)
    return "Stopping."


_ACTIONS = {"retry": _retry, "stop": _stop}

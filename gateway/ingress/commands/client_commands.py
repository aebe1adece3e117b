"""Commands that clients give: over HTTP, WebSocket and in the console."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from channels.message import Author
from delivery.deliveries.transactions import Transaction, Transactions
from gateway.conversations.notices import post_notice
from gateway.ingress.commands.chat_commands import ChatCommands, CommandResult, ParsedCommand, parse
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation

CLIENT_SOURCE = "command"
"""The source of the keys of commands, so that a repeated one is executed once."""

OTHER_NAME = (
    "A new conversation has another name: `dovecote chat --conversation NAME`, *New* in the console, or "
    "another `conversation` over the API."
)

ONLY_DIRECT = "The reply to `/{}` is for one person: that person writes it in the chat."


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedCommand:
    """A command that was executed; `reply` is None if it was a repetition, or if the reply follows later."""

    name: str
    reply: str | None


class ClientCommands:
    """Executes commands in conversations. `cancel` cancels a turn that runs in this process."""

    def __init__(
        self, transactions: Transactions, commands: ChatCommands, cancel: Callable[[str], None]
    ) -> None:
        self._transactions = transactions
        self._commands = commands
        self._cancel = cancel

    async def execute(
        self, account: str, conversation: str, text: str, *, by: str, key: str | None = None
    ) -> ExecutedCommand | None:
        """Execute a command and post its reply in the conversation; None if the text is no command.

        `by` is the id of the API key that gives the command. The same `key` again changes nothing.
        """
        command = parse(text)
        if command is None:
            return None
        async with self._transactions.begin("command") as tx:
            found = await conversations.get(tx.connection, account, conversation)
            if found is None or not await self._is_new(tx, found, key):
                return ExecutedCommand(name=command.name, reply=None)
            result = await self._result(tx, found, command, by)
            reply = ONLY_DIRECT.format(command.name) if result.is_confidential else result.reply
            if reply is not None:
                await post_notice(tx, found.id, reply)
        for turn in result.ended_turns:
            self._cancel(turn)
        return ExecutedCommand(name=command.name, reply=reply)

    async def _result(
        self, tx: Transaction, conversation: Conversation, command: ParsedCommand, by: str
    ) -> CommandResult:
        if command.name == "new" and conversation.address is None:
            return CommandResult(reply=OTHER_NAME)
        return await self._commands.execute(
            tx, conversation, command, by=Author(id=by, name=""), decision_context=None
        )

    @staticmethod
    async def _is_new(tx: Transaction, conversation: Conversation, key: str | None) -> bool:
        return key is None or await conversations.record_event(
            tx.connection,
            account=conversation.account,
            source=CLIENT_SOURCE,
            event_key=f"{conversation.id} {key}",
            message=key[:40],
            turn=None,
        )

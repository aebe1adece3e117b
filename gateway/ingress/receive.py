"""Update handling: each platform update is processed in one transaction, or rejected with a reply."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from channels.message import (
    ButtonPress,
    Command,
    Message,
    MessageDeleted,
    Reaction,
    Update,
)
from channels.port import Accept
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType
from delivery.fair_gate import working_for
from gateway.conversations import room_context
from gateway.conversations.approvals import Approvals
from gateway.conversations.commands.session_reset import reset_if_due
from gateway.conversations.notices import post_notice
from gateway.conversations.room_context import TurnContext, merge_edited_files, stored_files
from gateway.conversations.submissions import queue_policy
from gateway.conversations.submissions.full_queues import FullQueues, render_refusal
from gateway.conversations.submissions.received import delete_message
from gateway.conversations.submissions.submission import QueueFull, Submission
from gateway.conversations.submissions.submissions import Submissions
from gateway.conversations.titles import NO_TEXT
from gateway.ingress.access import AdmissionResult, authorize, is_addressed_to_bot, is_room_known
from gateway.ingress.admission import Admission
from gateway.ingress.channel_context import ChannelContext, UpdateAcceptor
from gateway.ingress.chat_conversations import (
    get_or_create_thread,
    get_thread,
)
from gateway.ingress.commands.chat_commands import ChatCommands, parse, to_command
from gateway.ingress.confidential_replies import ConfidentialReplies, ConfidentialReply
from gateway.ingress.inbound import AfterCommit, InboundMessage
from gateway.ingress.interactions.agent_reactions import AgentReactions
from gateway.ingress.interactions.approval_replies import ApprovalReplies
from gateway.ingress.interactions.question_replies import as_answer, as_direct_answer, describe_waiting
from gateway.ingress.interactions.status_reactions import StatusReactions
from gateway.ingress.interactions.turn_buttons import TurnButtons, is_turn_button
from gateway.ingress.rate_limit import DroppedKeys, SenderRateLimiter, UnknownSenders
from gateway.ingress.room_changes import RoomChanges
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import ChatThread, Conversation
from gateway.store.conversations.messages import visible_attachment
from gateway.store.turns import turns

__all__ = ["ChannelContext", "UpdateAcceptor", "UpdateHandler"]

log = structlog.get_logger(__name__)


class UpdateHandler:
    """Handles the updates of all channels. `cancel` cancels a turn that runs in this process."""

    def __init__(
        self,
        transactions: Transactions,
        submissions: Submissions,
        approvals: Approvals,
        commands: ChatCommands,
        *,
        status_reactions: StatusReactions | None = None,
        rate_limiter: SenderRateLimiter | None = None,
        full_queues: FullQueues | None = None,
        unknown_senders: UnknownSenders | None = None,
        cancel: Callable[[str], None] = lambda _turn: None,
    ) -> None:
        self._transactions = transactions
        self._submissions = submissions
        self._commands = commands
        self._approval_replies = ApprovalReplies(transactions, approvals, commands.reply_privately)
        self._agent_reactions = AgentReactions(transactions, submissions, self._approval_replies)
        self._room_changes = RoomChanges(transactions)
        self._turn_buttons = TurnButtons(transactions, commands.reply_privately, cancel)
        self._confidential_replies = ConfidentialReplies(
            transactions, commands.reply_confidentially, commands.reply_privately
        )
        self._status_reactions = status_reactions
        self._admission = Admission(
            rate_limiter or SenderRateLimiter(),
            full_queues or FullQueues(),
            unknown_senders or UnknownSenders(),
        )
        self._dropped_keys = DroppedKeys()
        self._cancel = cancel

    def accept(self, context: ChannelContext) -> Accept:
        """Return the function that a channel's receiver calls with each update."""

        async def accept_update(update: Update) -> None:
            with working_for(context.record.account):
                await self._accept(context, update)

        return accept_update

    async def _accept(self, context: ChannelContext, update: Update) -> None:
        match update:
            case Message(edited=True) if not update.author.is_bot:
                await self._on_edit(context, update)
            case Message():
                await self._on_message(context, update)
            case Command():
                await self._on_command(context, update)
            case ButtonPress():
                await self._on_button_press(context, update)
            case Reaction():
                await self._on_reaction(context, update)
            case MessageDeleted():
                await self._on_deletion(context, update)
            case _:
                await self._room_changes.apply(context, update)

    async def _on_button_press(self, context: ChannelContext, press: ButtonPress) -> None:
        buttons = self._turn_buttons if is_turn_button(press) else self._approval_replies
        await buttons.on_button_press(context, await self._room_changes.follow(context, press))

    async def _on_message(self, context: ChannelContext, message: Message) -> None:
        command = parse(message.text)
        addressed = is_addressed_to_bot(message, context.groups_in(message.address.room))
        is_decision = command is not None and command.name in ChatCommands.ALWAYS
        if message.author.is_bot or not (addressed or is_decision):
            await self._keep(context, message)
            return
        await self._receive(
            context,
            InboundMessage(
                update=message,
                text=message.text or NO_TEXT,
                command=command,
                attachments=message.attachments,
                existing_conversation_only=not addressed,
            ),
        )

    async def _keep(self, context: ChannelContext, message: Message) -> None:
        """Keep a message that is not for the bot as context of the room's next turn."""
        if not self._admission.may_keep(context, message):
            return
        async with self._transactions.begin("reception") as tx:
            if message.edited:
                await room_context.keep_edit(tx.connection, context.record.account, message)
            elif await is_room_known(tx.connection, context, message):
                await room_context.keep(tx.connection, context.record.account, message)

    async def _on_command(self, context: ChannelContext, command: Command) -> None:
        parsed = to_command(command.name, command.rest.split())
        await self._receive(
            context,
            InboundMessage(update=command, text=f"/{command.name} {command.rest}".rstrip(), command=parsed),
        )

    async def _receive(self, context: ChannelContext, inbound: InboundMessage) -> None:
        if self._admission.should_drop(context, inbound):
            await self._drop(context, inbound)
            return
        after_commit = AfterCommit()
        async with self._transactions.begin("reception") as tx:
            dropped = await self._dropped_keys.write(tx.connection)
            if await self._is_new(tx, context, inbound.update.key) and await self._admission.admit(
                tx, context, inbound, after_commit
            ):
                await self._process(tx, context, inbound, after_commit)
        self._dropped_keys.remove(dropped)
        await self._after_commit(context, inbound, after_commit)

    async def _drop(self, context: ChannelContext, inbound: InboundMessage) -> None:
        """Drop a message; its key is stored together with others."""
        if self._dropped_keys.add(context.record.account, context.record.id, inbound.update.key):
            async with self._transactions.begin("reception") as tx:
                dropped = await self._dropped_keys.write(tx.connection)
            self._dropped_keys.remove(dropped)

    async def _process(
        self, tx: Transaction, context: ChannelContext, inbound: InboundMessage, after_commit: AfterCommit
    ) -> None:
        inbound = await as_answer(tx.connection, context, inbound)
        thread = await self._find_thread(tx, context, inbound)
        if thread is None:
            return
        if inbound.command is None and not thread.is_idle:
            inbound = await as_direct_answer(tx.connection, thread, inbound)
        if inbound.command is None:
            await self._enqueue(tx, context, thread, inbound, after_commit)
            return
        conversation = thread.conversation
        result = await self._commands.execute(
            tx,
            conversation,
            inbound.command,
            by=inbound.author,
            decision_context=context.decision_context(
                inbound.address, may_be_for_others=inbound.may_be_for_others
            ),
        )
        after_commit.ended_turns = result.ended_turns
        if result.is_confidential and result.reply is not None:
            after_commit.confidential = ConfidentialReply(
                conversation=conversation.id, command=inbound.command.name, text=result.reply
            )
        else:
            await self._reply(tx, conversation, inbound, result.reply, after_commit)

    async def _find_thread(
        self, tx: Transaction, context: ChannelContext, inbound: InboundMessage
    ) -> ChatThread | None:
        if inbound.existing_conversation_only:
            return await get_thread(tx, context, inbound.address)
        if inbound.command is None:
            reset = context.reset_in(inbound.address.room)
            await reset_if_due(tx, context.record.account, inbound.address, reset, self._commands.timezone)
        return await get_or_create_thread(tx, context, inbound.address, inbound.update.room)

    @staticmethod
    async def _reply(
        tx: Transaction,
        conversation: Conversation,
        inbound: InboundMessage,
        text: str | None,
        after_commit: AfterCommit,
    ) -> None:
        """Reply privately to a command with a token, otherwise post a notice in the conversation."""
        if isinstance(inbound.update, Command) and inbound.update.token:
            after_commit.reply = text or "The result follows in a moment."
        elif text is not None:
            await post_notice(tx, conversation.id, text, urgent=True)

    async def _enqueue(
        self,
        tx: Transaction,
        context: ChannelContext,
        thread: ChatThread,
        inbound: InboundMessage,
        after_commit: AfterCommit,
    ) -> None:
        conversation = thread.conversation
        before = await self._collect_context(tx, context, thread, inbound)
        submission = Submission(
            account=context.record.account,
            text=inbound.text,
            asker=inbound.author.id,
            asker_name=inbound.author.name,
            attachments=[*stored_files(inbound.attachments, inbound.address), *before.files],
            platform_id=inbound.update.platform_id,
            origin=inbound.origin(str(context.record.config["kind"])),
            context=before.encode(),
        )
        try:
            after_commit.submitted = await self._submissions.enqueue(
                tx, conversation, submission, is_idle=thread.is_idle
            )
            message = inbound.update if isinstance(inbound.update, Message) else None
            await room_context.mark_seen(tx.connection, conversation, before, message)
            if not thread.is_idle and not after_commit.submitted.superseded:
                await self._report_waiting(tx, conversation, inbound)
        except QueueFull as error:
            if self._admission.should_report_full(inbound, conversation.id):
                text = render_refusal(inbound.text, str(error))
                if isinstance(inbound.update, Command):
                    await self._reply(tx, conversation, inbound, text, after_commit)
                else:
                    reply_to = inbound.update.platform_id
                    await post_notice(tx, conversation.id, text, reply_to=reply_to, urgent=True)

    @staticmethod
    async def _report_waiting(tx: Transaction, conversation: Conversation, inbound: InboundMessage) -> None:
        """Post a notice if a message is in line behind a turn that waits for a person."""
        text = await describe_waiting(tx.connection, conversation.id)
        if text is not None and conversation.handover_by is None:
            await post_notice(tx, conversation.id, text, reply_to=inbound.update.platform_id, urgent=True)

    @staticmethod
    async def _collect_context(
        tx: Transaction, context: ChannelContext, thread: ChatThread, inbound: InboundMessage
    ) -> TurnContext:
        """Return what was said before a message, and what it quotes."""
        if not isinstance(inbound.update, Message) or thread.conversation.handover_by is not None:
            return TurnContext()
        limits = context.context_limits_in(inbound.address.room)
        return await room_context.collect(tx.connection, thread, inbound.update, limits)

    async def _after_commit(
        self, context: ChannelContext, inbound: InboundMessage, after_commit: AfterCommit
    ) -> None:
        """Run the in-process work after a commit; losing it in a crash has no lasting effect."""
        for turn in after_commit.ended_turns:
            self._cancel(turn)
        if after_commit.submitted is not None:
            self._submissions.cancel_superseded(after_commit.submitted)
            if self._status_reactions is not None:
                account, platform_id = context.record.account, inbound.update.platform_id
                self._status_reactions.on_received(account, inbound.address, platform_id)
        if after_commit.reply is not None and isinstance(inbound.update, Command):
            await self._commands.reply_privately(inbound.update, after_commit.reply)
        if after_commit.confidential is not None:
            await self._confidential_replies.send(inbound.update, after_commit.confidential)

    @staticmethod
    async def _is_new(tx: Transaction, context: ChannelContext, key: str) -> bool:
        return await conversations.record_event(
            tx.connection,
            account=context.record.account,
            source=context.record.id,
            event_key=key,
            message=key[:40],
            turn=None,
        )

    async def _on_edit(self, context: ChannelContext, message: Message) -> None:
        """Handle an edited message: a queued turn is changed, otherwise the edit is a new message."""
        inbound = InboundMessage(
            update=message, text=message.text or NO_TEXT, command=None, attachments=message.attachments
        )
        if self._admission.should_drop(context, inbound):
            await self._drop(context, inbound)
            return
        after_commit = AfterCommit()
        async with self._transactions.begin("reception") as tx:
            await self._dropped_keys.write(tx.connection)
            if not await self._is_new(tx, context, message.key):
                return
            await room_context.keep_edit(tx.connection, context.record.account, message)
            if await authorize(tx.connection, message, context) is not AdmissionResult.ADMITTED:
                return
            refused = self._admission.rate_limit_reply(context, inbound)
            if refused:
                await self._admission.reply(tx, context, inbound, refused, after_commit)
            elif refused is None and not await self._apply_edit(tx, context, inbound):
                await self._process(tx, context, inbound, after_commit)
        await self._after_commit(context, inbound, after_commit)

    @staticmethod
    async def _apply_edit(tx: Transaction, context: ChannelContext, inbound: InboundMessage) -> bool:
        """Apply an edit to a queued turn; returns whether the edit is done with."""
        message = inbound.update
        stored = await messages.get_by_platform_id(tx.connection, message.address, message.platform_id)
        if stored is None:
            addressed = isinstance(message, Message) and is_addressed_to_bot(
                message, context.groups_in(message.address.room)
            )
            return not addressed or parse(inbound.text) is not None
        before = list(stored.attachments)
        files = merge_edited_files(before, message) if isinstance(message, Message) else before
        is_same = stored.text == inbound.text and files == before
        if stored.author != inbound.author.id or is_same:
            return True
        turn = await turns.get(tx.connection, context.record.account, stored.turn or "")
        edit = stored.id, inbound.text, files
        if turn is None or not await queue_policy.edit_message(tx.connection, turn, *edit):
            return False
        data = {
            "message": stored.id,
            "role": "user",
            "text": inbound.text,
            "author": stored.author,
            "author_name": inbound.author.name or None,
            "files": [visible_attachment(one) for one in files],
            "edited": True,
        }
        tx.emit(Event.now(EventType.MESSAGE_RECEIVED, stored.conversation, data, turn=turn.id))
        return True

    async def _on_reaction(self, context: ChannelContext, reaction: Reaction) -> None:
        if self._admission.allows_reaction(context, reaction):
            await self._agent_reactions.on_reaction(context, reaction)

    async def _on_deletion(self, context: ChannelContext, deletion: MessageDeleted) -> None:
        """Forget a deleted message; if its turn has begun, the next turn gets to know of it."""
        async with self._transactions.begin("reception") as tx:
            if await self._is_new(tx, context, deletion.key):
                await delete_message(tx, context.record.account, deletion)

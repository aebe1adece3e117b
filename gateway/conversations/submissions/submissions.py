"""Submissions: one transaction stores the message, its conversation and a queued turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from sqlalchemy.exc import IntegrityError

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.route import Route
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events.event import Event, EventType, new_id
from gateway.conversations.room_context import merge_contexts, take_carried
from gateway.conversations.submissions import queue_policy
from gateway.conversations.submissions.conversation_lookup import get_or_create_conversation
from gateway.conversations.submissions.queue_policy import QueuePolicy
from gateway.conversations.submissions.received import received_event
from gateway.conversations.submissions.submission import (
    IdempotencyKeyReused,
    QueueFull,
    Submission,
    Submitted,
    UnknownTarget,
)
from gateway.conversations.supplied_history import begin_history
from gateway.conversations.titles import set_first_title
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import Conversation
from gateway.store.conversations.messages import MessageRow
from gateway.store.turn_state import QUEUE_LIMIT, QueueMode
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.turns import Turn


class _DuplicateSubmission(Exception):
    """The same submission was committed between our query and our insert."""


class Submissions:
    """Queues the turns that people submit. `cancel` cancels a turn that runs in this process."""

    def __init__(
        self,
        transactions: Transactions,
        *,
        limit: int = QUEUE_LIMIT,
        cancel: Callable[[str], None] = lambda _turn: None,
    ) -> None:
        self._transactions = transactions
        self._limit = limit
        self._cancel = cancel

    def cancel_superseded(self, submitted: Submitted) -> None:
        """Cancel the superseded turns of this process, after the commit; other replicas poll for them."""
        for turn in submitted.superseded:
            self._cancel(turn)

    async def submit(self, submission: Submission) -> Submitted:
        """Store a message and queue its turn.

        Raises UnknownTarget, WrongAgent, IdempotencyKeyReused, QueueFull, DatabaseUnavailable.
        """
        try:
            submitted = await self._submit(submission)
        except (
            _DuplicateSubmission,
            IntegrityError,
        ):  # the same key, or the same new name, at the same moment
            submitted = await self._submit(submission)
        self.cancel_superseded(submitted)
        return submitted

    async def _submit(self, submission: Submission) -> Submitted:
        async with self._transactions.begin("intake.submit") as tx:
            conversation = None
            if submission.conversation_scoped_key:
                if submission.conversation is not None:
                    conversation = await get_or_create_conversation(tx, submission)
                place = conversation.id if conversation else "-"
                submission = replace(submission, key=f"{place} {submission.asker} {submission.key}")
            known = await self._get_submitted(tx, submission)
            if known is not None:
                return known
            conversation = conversation or await get_or_create_conversation(tx, submission)
            if submission.history is not None:
                await begin_history(tx.connection, conversation, submission.history)
            return await self.enqueue(tx, conversation, submission)

    async def get_or_create(self, account: str, name_or_id: str) -> Conversation | None:
        """Return a conversation by id or name; a new name creates one with the default agent."""
        try:
            async with self._transactions.database.begin() as connection:
                submission = Submission(account=account, text="", asker="", conversation=name_or_id)
                return await get_or_create_conversation(Transaction(connection), submission)
        except UnknownTarget:
            return None

    async def _get_submitted(self, tx: Transaction, submission: Submission) -> Submitted | None:
        if submission.key is None:
            return None
        if submission.is_first:
            await conversations.delete_event_key(
                tx.connection, submission.account, submission.source, submission.key
            )
            return None
        found = await conversations.get_recorded_event(
            tx.connection,
            account=submission.account,
            source=submission.source,
            event_key=submission.key,
        )
        if found is None or found[0] is None or found[1] is None:
            return None
        turn = await turns.get(tx.connection, submission.account, found[1])
        if turn is None:
            return None
        message = await messages.get_by_id(tx.connection, found[0])
        if message is None or message.text != submission.text:
            raise IdempotencyKeyReused("this id was used for a different message")
        return Submitted(turn=turn.id, conversation=turn.conversation, message=found[0], repeated=True)

    async def enqueue(
        self, tx: Transaction, conversation: Conversation, submission: Submission, *, is_idle: bool = False
    ) -> Submitted:
        """Queue a message's turn by the conversation's queue mode; raises QueueFull.

        `is_idle`: this transaction has found that no turn of the conversation is open. Call
        `cancel_superseded` once this is committed.
        """
        # The first statement, because transactions that end turns lock the conversation before its turns.
        await set_first_title(tx.connection, conversation, submission.text, submission.attachments)
        waiting = 0 if is_idle else await turns.count_waiting(tx.connection, conversation.id)
        if not waiting:
            return await self._append(tx, conversation, submission, None, waiting, is_first=is_idle)
        policy = await queue_policy.queue_policy(tx.connection, conversation, limit=self._limit)
        if waiting >= policy.limit:
            raise _queue_full(waiting, policy)
        if submission.steers:
            return await self._append(tx, conversation, submission, QueueMode.STEER, waiting)
        if submission.own_turn:
            return await self._append(tx, conversation, submission, QueueMode.FOLLOWUP, waiting)
        if policy.mode in {QueueMode.COLLECT, QueueMode.INTERRUPT}:
            merged = await self._merge(tx, conversation, submission, policy)
            if merged is not None:
                return merged
        # Attachments are fetched when a turn starts, so a running turn cannot receive them.
        own_turn = policy.mode is QueueMode.STEER and bool(submission.attachments)
        mode = QueueMode.FOLLOWUP if own_turn else policy.mode
        submitted = await self._append(tx, conversation, submission, mode, waiting)
        return await self._supersede(tx, policy, submitted)

    @staticmethod
    async def _supersede(tx: Transaction, policy: QueuePolicy, submitted: Submitted) -> Submitted:
        if policy.mode is not QueueMode.INTERRUPT:
            return submitted
        queue = await turns.list_open(tx.connection, submitted.conversation)
        cancelled = await queue_policy.cancel_running(tx.connection, queue)
        return replace(submitted, superseded=tuple(cancelled))

    async def _merge(
        self, tx: Transaction, conversation: Conversation, submission: Submission, policy: QueuePolicy
    ) -> Submitted | None:
        """Merge a message into the asker's waiting turn; None if there is none."""
        queue = await turns.list_open(tx.connection, conversation.id)
        turn = queue_policy.find_mergeable(queue, submission.asker, policy.mode)
        text = queue_policy.merge_input(turn, submission.text) if turn is not None else None
        if turn is None or text is None:
            return None
        message_count = len(await messages.list_for_turn(tx.connection, turn.id))
        if message_count >= policy.limit:
            raise _queue_full(message_count, policy)
        context = merge_contexts(turn.context, submission.context)
        if not await turn_queue.set_input(
            tx.connection, turn, text, notify=submission.notify, context=context
        ):
            return None
        submitted = Submitted(turn=turn.id, conversation=conversation.id, message=new_id("msg"))
        await self._save(tx, submission, submitted, utc_now())
        await self._route(tx, conversation, submission, turn.id)
        tx.emit(received_event(submission, submitted, merged=True))
        return await self._supersede(tx, policy, submitted)

    async def _append(
        self,
        tx: Transaction,
        conversation: Conversation,
        submission: Submission,
        mode: QueueMode | None,
        waiting: int,
        *,
        is_first: bool = False,
    ) -> Submitted:
        """Queue a message as a turn of its own; `is_first`: no other turn of the conversation is open."""
        submitted = Submitted(turn=new_id("trn"), conversation=conversation.id, message=new_id("msg"))
        now = utc_now()
        await self._save(tx, submission, submitted, now)
        turn = await turns.insert_turn(
            tx.connection,
            Turn(
                id=submitted.turn,
                account=conversation.account,
                conversation=conversation.id,
                agent=conversation.agent,
                trigger="message",
                message=submitted.message,
                asker=submission.asker,
                input=submission.text,
                origin=submission.origin,
                context=await take_carried(tx.connection, conversation, submission.context),
                request=submission.request,
                mode=mode,
                notify=submission.notify,
                created_at=now,
            ),
        )
        await self._route(tx, conversation, submission, submitted.turn)
        self._emit(tx, submission, submitted, waiting)
        first = turn if is_first else None
        tx.wake(WorkQueue.TURN, conversation.id, account=submission.account, first=first)
        return submitted

    @staticmethod
    async def _route(tx: Transaction, conversation: Conversation, submission: Submission, turn: str) -> None:
        if submission.endpoint is None:
            return
        route = Route.to_endpoint(
            account=conversation.account,
            conversation=conversation.id,
            turn=turn,
            endpoint=submission.endpoint,
        )
        routes = await delivery_store.list_routes(tx.connection, conversation.id, turn)
        if not any(one.turn == turn and one.target == route.target for one in routes):
            await delivery_store.add_route(tx.connection, route)

    @staticmethod
    async def _save(tx: Transaction, submission: Submission, submitted: Submitted, now: datetime) -> None:
        if submission.key is not None:
            new = await conversations.record_event(
                tx.connection,
                account=submission.account,
                source=submission.source,
                event_key=submission.key,
                message=submitted.message,
                turn=submitted.turn,
            )
            if not new:
                raise _DuplicateSubmission
        await messages.add_message(
            tx.connection,
            submitted.conversation,
            MessageRow(
                id=submitted.message,
                role="user",
                author=submission.asker,
                text=submission.text,
                turn=submitted.turn,
                attachments=list(submission.attachments),
                platform_id=submission.platform_id or None,
                created_at=now,
            ),
        )

    @staticmethod
    def _emit(tx: Transaction, submission: Submission, submitted: Submitted, waiting: int) -> None:
        queued: dict[str, object] = {"trigger": "message", "attempt": 0, "position": waiting}
        if submission.traceparent is not None:
            queued["traceparent"] = submission.traceparent
        tx.emit(
            received_event(submission, submitted),
            Event.now(EventType.TURN_QUEUED, submitted.conversation, queued, turn=submitted.turn),
        )


def _queue_full(waiting: int, policy: QueuePolicy) -> QueueFull:
    return QueueFull(
        f"{waiting} messages are already waiting in this conversation, which is its limit ({policy.limit})"
    )

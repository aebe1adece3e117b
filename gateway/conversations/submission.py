"""Submissions: one transaction stores the message, its conversation and a queued turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy.exc import IntegrityError

from delivery.broker.port import WorkQueue
from delivery.database.clock import utc_now
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.route import Route
from delivery.deliveries.transactions import Transaction, Transactions
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from gateway.conversations import queue_policy
from gateway.conversations.queue_policy import QueuePolicy
from gateway.conversations.received import received_event
from gateway.conversations.room_context import merge_contexts, take_carried
from gateway.conversations.titles import set_first_title
from gateway.store.accounts import records
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import Conversation, MessageRow
from gateway.store.turn_state import QUEUE_LIMIT, QueueMode
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.turns import Turn


class SubmissionError(Exception):
    """The submission is refused; nothing was changed."""


class UnknownTarget(SubmissionError):
    """The conversation or agent named does not exist in this account."""


class UnknownAgent(UnknownTarget):
    """The agent named does not exist in this account."""


class WrongAgent(SubmissionError):
    """The conversation belongs to another agent."""


class IdempotencyKeyReused(SubmissionError):
    """The idempotency key was used for a different message."""


class QueueFull(SubmissionError):
    """The conversation's queue is full."""


class _DuplicateSubmission(Exception):
    """The same submission was committed between our query and our insert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A message for an agent.

    `conversation` is an id or the caller's own name (created if new; None creates one without a name).
    `key` is an idempotency key of `source`; with `conversation_scoped_key` it is unique only for the asker in
    the conversation. With `is_first` an earlier submission with this key is forgotten. `endpoint` is a
    webhook for this turn's results. `notify`: emit `agent.finished`. `own_turn`: whatever the queue mode,
    the message waits for a turn of its own and cancels none.
    `platform_id` is the message's id on its chat platform, `origin` says who wrote it in a room, `context`
    what was said before it, `request` what a client adds (`ClientRequest`), `traceparent` is its span.
    """

    account: str
    text: str
    asker: str
    asker_name: str = ""
    agent: str | None = None
    conversation: str | None = None
    source: str = "api"
    key: str | None = None
    conversation_scoped_key: bool = False
    is_first: bool = False
    endpoint: str | None = None
    attachments: Sequence[Mapping[str, Any]] = ()
    notify: bool = False
    own_turn: bool = False
    platform_id: str | None = None
    origin: Mapping[str, Any] | None = None
    context: Mapping[str, Any] | None = None
    request: Mapping[str, Any] | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The ids of a submission. `repeated`: it was submitted before, with these ids.

    `superseded` are the turns that are cancelled because of it.
    """

    turn: str
    conversation: str
    message: str
    repeated: bool = False
    superseded: tuple[str, ...] = ()


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
                    conversation = await self.get_or_create_in(tx, submission)
                place = conversation.id if conversation else "-"
                submission = replace(submission, key=f"{place} {submission.asker} {submission.key}")
            known = await self._get_submitted(tx, submission)
            if known is not None:
                return known
            conversation = conversation or await self.get_or_create_in(tx, submission)
            return await self.enqueue(tx, conversation, submission)

    async def get_or_create(self, account: str, name_or_id: str) -> Conversation | None:
        """Return a conversation by id or name; a new name creates one with the default agent."""
        try:
            async with self._transactions.database.begin() as connection:
                submission = Submission(account=account, text="", asker="", conversation=name_or_id)
                return await self.get_or_create_in(Transaction(connection), submission)
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

    async def get_or_create_in(self, tx: Transaction, submission: Submission) -> Conversation:
        """Return the conversation that a submission names, or create it; raises UnknownTarget, WrongAgent."""
        if submission.conversation is not None:
            found = await conversations.get(tx.connection, submission.account, submission.conversation)
            if found is not None:
                return await self._with_agent(tx, found, submission)
            if submission.conversation.startswith("cnv_"):
                raise UnknownTarget(f"there is no conversation {submission.conversation!r}")
        agent = await self._get_agent_id(tx, submission.account, submission.agent)
        return await self.create(tx, account=submission.account, agent=agent, name=submission.conversation)

    async def _with_agent(
        self, tx: Transaction, conversation: Conversation, submission: Submission
    ) -> Conversation:
        if submission.agent is None:
            return conversation
        agent = await self._get_agent_id(tx, submission.account, submission.agent)
        if agent != conversation.agent and not await self._change_agent(tx, conversation, agent):
            raise WrongAgent(f"conversation {conversation.id} belongs to agent {conversation.agent}")
        return replace(conversation, agent=agent)

    @staticmethod
    async def _change_agent(tx: Transaction, conversation: Conversation, agent: str) -> bool:
        """Give an empty conversation to another agent; returns False if it has messages."""
        if not await conversations.change_agent(tx.connection, conversation.id, agent):
            return False
        await outbox.change_agent(tx.connection, conversation=conversation.id, agent=agent)
        return True

    @staticmethod
    async def _get_agent_id(tx: Transaction, account: str, name_or_id: str | None) -> str:
        found = await records.get(tx.connection, account, "agent", name_or_id or "default")
        if found is None:
            raise UnknownAgent(f"there is no agent {name_or_id or 'default'!r}")
        return found.id

    @staticmethod
    async def create(
        tx: Transaction,
        *,
        account: str,
        agent: str,
        name: str | None = None,
        channel: str | None = None,
        address: str | None = None,
        address_key: str | None = None,
        direct: bool | None = None,
    ) -> Conversation:
        """Create a conversation with its event stream."""
        conversation = Conversation(
            id=new_id("cnv"),
            account=account,
            agent=agent,
            name=name,
            channel=channel,
            address=address,
            direct=direct,
            created_at=utc_now(),
        )
        await conversations.insert_conversation(tx.connection, conversation, address_key=address_key)
        await outbox.create_stream(tx.connection, conversation=conversation.id, account=account, agent=agent)
        return conversation

    async def enqueue(self, tx: Transaction, conversation: Conversation, submission: Submission) -> Submitted:
        """Queue a message's turn by the conversation's queue mode; raises QueueFull.

        Call `cancel_superseded` once this is committed.
        """
        # The first statement, because transactions that end turns lock the conversation before its turns.
        await set_first_title(tx.connection, conversation, submission.text, submission.attachments)
        waiting = await turns.count_waiting(tx.connection, conversation.id)
        if not waiting:
            return await self._append(tx, conversation, submission, None, waiting)
        policy = await queue_policy.queue_policy(tx.connection, conversation, limit=self._limit)
        if waiting >= policy.limit:
            raise _queue_full(waiting, policy)
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
    ) -> Submitted:
        """Queue a message as a turn of its own."""
        submitted = Submitted(turn=new_id("trn"), conversation=conversation.id, message=new_id("msg"))
        now = utc_now()
        await self._save(tx, submission, submitted, now)
        await turns.insert_turn(
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
        await conversations.add_message(
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
        tx.wake(WorkQueue.TURN, submitted.conversation, account=submission.account)


def _queue_full(waiting: int, policy: QueuePolicy) -> QueueFull:
    return QueueFull(
        f"{waiting} messages are already waiting in this conversation, which is its limit ({policy.limit})"
    )

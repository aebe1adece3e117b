"""Intake: what somebody says becomes a Message, a Conversation and a queued Turn, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.exc import IntegrityError

from delivery import store as delivery_store
from delivery.event import Event, Kind, new_id
from delivery.ledger import Entry, Ledger
from delivery.port import Queue
from delivery.route import Route
from gateway.store import conversations, records, turns
from gateway.store.conversations import Conversation, Spoken
from gateway.store.turns import Turn
from gateway.turn import QUEUE_LIMIT


class IntakeError(Exception):
    """What was said cannot be taken; nothing was changed."""


class Missing(IntakeError):
    """The conversation or agent named does not exist in this account."""


class WrongAgent(IntakeError):
    """The conversation belongs to another agent."""


class KeyReused(IntakeError):
    """The key belongs to a message that said something else."""


class QueueFull(IntakeError):
    """Too much is waiting in this conversation already."""


class _TakenMeanwhile(Exception):
    """A repetition of the same message was committed between our look and our insert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What somebody says through the API, a socket or the terminal.

    `conversation` is an id or the caller's own name for one (opened when new; None opens a nameless one).
    `key` makes a repetition from the same `source` the same message; with `own_count` it is the asker's own
    count, which begins anew in every conversation. `endpoint` is a webhook that gets this turn's results.
    `notify`: somebody waits for `agent.finished`.
    """

    account: str
    text: str
    asker: str
    agent: str | None = None
    conversation: str | None = None
    source: str = "api"
    key: str | None = None
    own_count: bool = False
    endpoint: str | None = None
    attachments: Sequence[Mapping[str, Any]] = ()
    notify: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What became of it. `repeated`: it was known already, and these are its ids."""

    turn: str
    conversation: str
    message: str
    repeated: bool = False


class Intake:
    """The one place where turns are queued by people."""

    def __init__(self, ledger: Ledger, *, limit: int = QUEUE_LIMIT) -> None:
        self._ledger = ledger
        self._limit = limit

    async def submit(self, submission: Submission) -> Submitted:
        """Take what somebody says; raises Missing, WrongAgent, KeyReused, QueueFull, Unavailable."""
        try:
            return await self._submit(submission)
        except (_TakenMeanwhile, IntegrityError):  # the same key, or the same new name, at the same moment
            return await self._submit(submission)

    async def _submit(self, submission: Submission) -> Submitted:
        async with self._ledger.entry("intake.submit") as entry:
            conversation = None
            if submission.own_count:
                if submission.conversation is not None:
                    conversation = await self._conversation(entry, submission)
                place = conversation.id if conversation else "-"
                submission = replace(submission, key=f"{place} {submission.asker} {submission.key}")
            known = await self._known(entry, submission)
            if known is not None:
                return known
            conversation = conversation or await self._conversation(entry, submission)
            return await self.queue(entry, conversation, submission)

    async def enter(self, account: str, named: str) -> Conversation | None:
        """Return a conversation by id or own name; a new name opens one, with the default agent."""
        try:
            async with self._ledger.database.begin() as connection:
                asked = Submission(account=account, text="", asker="", conversation=named)
                return await self._conversation(Entry(connection), asked)
        except Missing:
            return None

    async def _known(self, entry: Entry, submission: Submission) -> Submitted | None:
        if submission.key is None:
            return None
        found = await conversations.remembered(
            entry.connection,
            account=submission.account,
            source=submission.source,
            event_key=submission.key,
        )
        if found is None or found[0] is None or found[1] is None:
            return None
        turn = await turns.find(entry.connection, submission.account, found[1])
        if turn is None:
            return None
        if turn.input != submission.text:
            raise KeyReused("this id was used for a different message")
        return Submitted(turn=turn.id, conversation=turn.conversation, message=found[0], repeated=True)

    async def _conversation(self, entry: Entry, submission: Submission) -> Conversation:
        if submission.conversation is not None:
            found = await conversations.find(entry.connection, submission.account, submission.conversation)
            if found is not None:
                return await self._with_agent(entry, found, submission)
            if submission.conversation.startswith("cnv_"):
                raise Missing(f"there is no conversation {submission.conversation!r}")
        agent = await self._agent(entry, submission.account, submission.agent)
        return await self.open(entry, account=submission.account, agent=agent, name=submission.conversation)

    async def _with_agent(
        self, entry: Entry, conversation: Conversation, submission: Submission
    ) -> Conversation:
        if submission.agent is None:
            return conversation
        agent = await self._agent(entry, submission.account, submission.agent)
        if agent != conversation.agent and not await self._hand_over(entry, conversation, agent):
            raise WrongAgent(f"conversation {conversation.id} belongs to agent {conversation.agent}")
        return replace(conversation, agent=agent)

    @staticmethod
    async def _hand_over(entry: Entry, conversation: Conversation, agent: str) -> bool:
        """Give a conversation in which nothing was said yet to another agent; False when it is too late."""
        if not await conversations.hand_over(entry.connection, conversation.id, agent):
            return False
        await delivery_store.hand_over_stream(entry.connection, conversation=conversation.id, agent=agent)
        return True

    @staticmethod
    async def _agent(entry: Entry, account: str, name_or_id: str | None) -> str:
        found = await records.find(entry.connection, account, "agent", name_or_id or "default")
        if found is None:
            raise Missing(f"there is no agent {name_or_id or 'default'!r}")
        return found.id

    @staticmethod
    async def open(
        entry: Entry,
        *,
        account: str,
        agent: str,
        name: str | None = None,
        channel: str | None = None,
        address: str | None = None,
        address_key: str | None = None,
    ) -> Conversation:
        """Open a conversation with its stream."""
        conversation = Conversation(
            id=new_id("cnv"),
            account=account,
            agent=agent,
            name=name,
            channel=channel,
            address=address,
            created_at=datetime.now(UTC),
        )
        await conversations.insert_conversation(entry.connection, conversation, address_key=address_key)
        await delivery_store.open_stream(
            entry.connection, conversation=conversation.id, account=account, agent=agent
        )
        return conversation

    async def queue(self, entry: Entry, conversation: Conversation, said: Submission) -> Submitted:
        """Queue the turn a message asks for; raises QueueFull."""
        waiting = await turns.waiting_count(entry.connection, conversation.id)
        if waiting >= self._limit:
            raise QueueFull(
                f"{waiting} messages are waiting in this conversation already; at most {self._limit} may"
            )
        submitted = Submitted(turn=new_id("trn"), conversation=conversation.id, message=new_id("msg"))
        now = datetime.now(UTC)
        await self._keep(entry, said, submitted, now)
        await turns.insert_turn(
            entry.connection,
            Turn(
                id=submitted.turn,
                account=conversation.account,
                conversation=conversation.id,
                agent=conversation.agent,
                trigger="message",
                message=submitted.message,
                asker=said.asker,
                input=said.text,
                notify=said.notify,
                created_at=now,
            ),
        )
        if said.endpoint is not None:
            await delivery_store.add_route(
                entry.connection,
                Route.to_endpoint(
                    account=conversation.account,
                    conversation=conversation.id,
                    turn=submitted.turn,
                    endpoint=said.endpoint,
                ),
            )
        self._tell(entry, said, submitted, waiting)
        return submitted

    @staticmethod
    async def _keep(entry: Entry, said: Submission, submitted: Submitted, now: datetime) -> None:
        if said.key is not None:
            new = await conversations.remember(
                entry.connection,
                account=said.account,
                source=said.source,
                event_key=said.key,
                message=submitted.message,
                turn=submitted.turn,
            )
            if not new:
                raise _TakenMeanwhile
        await conversations.add_message(
            entry.connection,
            submitted.conversation,
            Spoken(
                id=submitted.message,
                role="user",
                author=said.asker,
                text=said.text,
                turn=submitted.turn,
                attachments=list(said.attachments),
                created_at=now,
            ),
        )

    @staticmethod
    def _tell(entry: Entry, said: Submission, submitted: Submitted, waiting: int) -> None:
        entry.tell(
            Event.now(
                Kind.MESSAGE_RECEIVED,
                submitted.conversation,
                {
                    "message": submitted.message,
                    "role": "user",
                    "text": said.text,
                    "author": said.asker,
                    "files": list(said.attachments),
                },
                turn=submitted.turn,
            ),
            Event.now(
                Kind.TURN_QUEUED,
                submitted.conversation,
                {"trigger": "message", "position": waiting},
                turn=submitted.turn,
            ),
        )
        entry.wake(Queue.TURN, submitted.conversation)

"""Intake: what somebody says becomes a Message, a Conversation and a queued Turn, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy.exc import IntegrityError

from delivery.broker.port import Queue
from delivery.database.clock import utc_now
from delivery.deliveries import routes as delivery_store
from delivery.deliveries.route import Route
from delivery.deliveries.transactions import Entry, Ledger
from delivery.events import outbox
from delivery.events.event import Event, Kind, new_id
from gateway.conversations import queue_policy
from gateway.conversations.queue_policy import Policy
from gateway.store.accounts import records
from gateway.store.conversations import conversations, messages
from gateway.store.conversations.conversations import Conversation, Spoken
from gateway.store.turn_state import QUEUE_LIMIT, Mode
from gateway.store.turns import turn_queue, turns
from gateway.store.turns.turns import Turn


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
    `notify`: somebody waits for `agent.finished`. `platform_id` is what a chat platform calls the message.
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
    platform_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What became of it. `repeated`: it was known already, and these are its ids.

    `superseded` are the turns that are to end because of it.
    """

    turn: str
    conversation: str
    message: str
    repeated: bool = False
    superseded: tuple[str, ...] = ()


def _nowhere(_turn: str) -> None:
    """No turn is performed in this process."""


class Intake:
    """The one place where turns are queued by people. `cancel` ends a turn that is performed here."""

    def __init__(
        self, ledger: Ledger, *, limit: int = QUEUE_LIMIT, cancel: Callable[[str], None] = _nowhere
    ) -> None:
        self._ledger = ledger
        self._limit = limit
        self._cancel = cancel

    def end_superseded(self, submitted: Submitted) -> None:
        """End at once what a message supersedes, once that is committed; elsewhere it is looked for."""
        for turn in submitted.superseded:
            self._cancel(turn)

    async def submit(self, submission: Submission) -> Submitted:
        """Take what somebody says; raises Missing, WrongAgent, KeyReused, QueueFull, Unavailable."""
        try:
            submitted = await self._submit(submission)
        except (_TakenMeanwhile, IntegrityError):  # the same key, or the same new name, at the same moment
            submitted = await self._submit(submission)
        self.end_superseded(submitted)
        return submitted

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
        message = await messages.by_id(entry.connection, found[0])
        if message is None or message.text != submission.text:
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
        await outbox.hand_over_stream(entry.connection, conversation=conversation.id, agent=agent)
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
            created_at=utc_now(),
        )
        await conversations.insert_conversation(entry.connection, conversation, address_key=address_key)
        await outbox.open_stream(entry.connection, conversation=conversation.id, account=account, agent=agent)
        return conversation

    async def queue(self, entry: Entry, conversation: Conversation, said: Submission) -> Submitted:
        """Queue the turn a message asks for, as the conversation's queue mode says; raises QueueFull.

        Call `end_superseded` once this is committed.
        """
        waiting = await turns.waiting_count(entry.connection, conversation.id)
        if not waiting:
            return await self._append(entry, conversation, said, None, waiting)
        policy = await queue_policy.policy_of(entry.connection, conversation, limit=self._limit)
        if waiting >= policy.limit:
            raise _full(waiting, policy)
        if policy.mode in {Mode.COLLECT, Mode.INTERRUPT}:
            joined = await self._join(entry, conversation, said, policy)
            if joined is not None:
                return joined
        # What is attached is fetched as a turn begins: a turn that runs already could not take it in.
        own_turn = policy.mode is Mode.STEER and bool(said.attachments)
        mode = Mode.FOLLOWUP if own_turn else policy.mode
        submitted = await self._append(entry, conversation, said, mode, waiting)
        return await self._supersede(entry, policy, submitted)

    @staticmethod
    async def _supersede(entry: Entry, policy: Policy, submitted: Submitted) -> Submitted:
        if policy.mode is not Mode.INTERRUPT:
            return submitted
        standing = await turns.open_turns(entry.connection, submitted.conversation)
        ended = await queue_policy.supersede(entry.connection, standing)
        return replace(submitted, superseded=tuple(ended))

    async def _join(
        self, entry: Entry, conversation: Conversation, said: Submission, policy: Policy
    ) -> Submitted | None:
        """Make a message part of the turn that waits for its asker; None when there is none to join."""
        standing = await turns.open_turns(entry.connection, conversation.id)
        turn = queue_policy.joinable(standing, said.asker, policy.mode)
        text = queue_policy.joined(turn, said.text) if turn is not None else None
        if turn is None or text is None:
            return None
        spoken = len(await messages.of_turn(entry.connection, turn.id))
        if spoken >= policy.limit:
            raise _full(spoken, policy)
        if not await turn_queue.set_input(entry.connection, turn, text, notify=said.notify):
            return None
        submitted = Submitted(turn=turn.id, conversation=conversation.id, message=new_id("msg"))
        await self._keep(entry, said, submitted, utc_now())
        await self._route(entry, conversation, said, turn.id)
        entry.tell(_received(said, submitted, joined=True))
        return await self._supersede(entry, policy, submitted)

    async def _append(
        self, entry: Entry, conversation: Conversation, said: Submission, mode: Mode | None, waiting: int
    ) -> Submitted:
        """Put a message at the end of the line, as a turn of its own."""
        submitted = Submitted(turn=new_id("trn"), conversation=conversation.id, message=new_id("msg"))
        now = utc_now()
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
                mode=mode,
                notify=said.notify,
                created_at=now,
            ),
        )
        await self._route(entry, conversation, said, submitted.turn)
        self._tell(entry, said, submitted, waiting)
        return submitted

    @staticmethod
    async def _route(entry: Entry, conversation: Conversation, said: Submission, turn: str) -> None:
        if said.endpoint is None:
            return
        route = Route.to_endpoint(
            account=conversation.account, conversation=conversation.id, turn=turn, endpoint=said.endpoint
        )
        standing = await delivery_store.routes_for(entry.connection, conversation.id, turn)
        if not any(one.turn == turn and one.target == route.target for one in standing):
            await delivery_store.add_route(entry.connection, route)

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
                platform_id=said.platform_id or None,
                created_at=now,
            ),
        )

    @staticmethod
    def _tell(entry: Entry, said: Submission, submitted: Submitted, waiting: int) -> None:
        entry.tell(
            _received(said, submitted),
            Event.now(
                Kind.TURN_QUEUED,
                submitted.conversation,
                {"trigger": "message", "attempt": 0, "position": waiting},
                turn=submitted.turn,
            ),
        )
        entry.wake(Queue.TURN, submitted.conversation)


def shown(attachment: Mapping[str, Any]) -> dict[str, Any]:
    """Return an attachment as people may see it: without what fetches it from its platform."""
    return {name: value for name, value in attachment.items() if name not in {"ref", "channel"}}


def _received(said: Submission, submitted: Submitted, *, joined: bool = False) -> Event:
    told: dict[str, Any] = {
        "message": submitted.message,
        "role": "user",
        "text": said.text,
        "author": said.asker,
        "files": [shown(one) for one in said.attachments],
    }
    if joined:
        told["joined"] = True
    return Event.now(Kind.MESSAGE_RECEIVED, submitted.conversation, told, turn=submitted.turn)


def _full(waiting: int, policy: Policy) -> QueueFull:
    return QueueFull(
        f"{waiting} messages are waiting in this conversation already; at most {policy.limit} may"
    )

"""Turn claims: which turn of a conversation runs next, and what its attempt starts with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from delivery.broker.keyed_worker import KeyedWorker, ReservedKey
from delivery.broker.port import Lease, Leases, WorkQueue
from delivery.database.clock import utc_now
from delivery.database.engine import Connection
from delivery.deliveries.immediate import ImmediateWork
from delivery.deliveries.transactions import Transaction, Transactions, TurnClaims
from delivery.errors import LeaseLost
from delivery.events.event import Event, EventType
from gateway.accounts.account_reader import AccountCache, AccountReader
from gateway.agents.history import HistoryEntry
from gateway.agents.port import ApprovalDecision
from gateway.conversations import approvals
from gateway.conversations.supplied_history import added_entry
from gateway.files.collection import FileCollector
from gateway.store.accounts.records import Record
from gateway.store.accounts.usage import agent_name
from gateway.store.conversations import messages
from gateway.store.turn_state import (
    DEAD_LETTER_PREFIX,
    QUARANTINE_POINTS,
    Interruption,
    PoisonDecision,
    TurnState,
    decide_poison,
)
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import claims, turn_queue, turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.claims import ClaimedConversation
from gateway.store.turns.turns import Turn
from gateway.turns.histories import History, HistoryCache
from gateway.turns.turn_end import end_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedTurn:
    """A turn to run now, with all that its attempt needs."""

    turn: Turn
    fence: int
    agent: Record
    history: History
    approvals: Sequence[Approval]
    replies_before: int
    conversation: ClaimedConversation
    has_incoming: bool
    """Whether there are attachments, or notes about files, for the agent."""

    interruption: Interruption = Interruption.NONE
    """How the attempt before this one ended, if it was interrupted."""

    @property
    def past(self) -> Sequence[HistoryEntry]:
        """The history as the turn gets it: with what a client has added since; raises UnreadableHistory."""
        entries, added = self.history.get_entries(), added_entry(self.turn.id, self.turn.context)
        return entries if added is None else (*entries, added)

    @property
    def decisions(self) -> dict[str, ApprovalDecision]:
        """Return people's decisions about the turn's tool calls, by call id."""
        return approvals.decisions_by_call(self.approvals)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedUnrun:
    """A turn was settled without being run; there may be another behind it."""

    turn: Turn
    state: TurnState
    fence: int


AGENT_DELETED = (
    "agent {} no longer exists, so this conversation cannot continue: use /new in a chat, elsewhere "
    "a conversation of another name, or delete this conversation"
)
"""Why a turn fails whose agent was deleted, with the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A turn that crashed its process repeatedly; claim it again once no other such turn runs."""

    fence: int
    is_delayed: bool = False


_OTHER_HOLDER = "the conversation has another holder"
MAX_ABANDONED = 1000
"""Turns of which this process remembers that it has claimed them, perhaps, and not begun."""

Claim = ClaimedTurn | EndedUnrun | Quarantined
"""What became of the next turn of a conversation."""


class TurnClaimer:
    """Claims turns under a lease. `worker_id` names this process."""

    def __init__(
        self,
        transactions: Transactions,
        worker_id: str,
        *,
        histories: HistoryCache,
        file_collector: FileCollector | None = None,
    ) -> None:
        self._transactions = transactions
        self._histories = histories
        self._file_collector = file_collector
        self._worker_id = worker_id
        self._agents = AccountCache()
        self._interruptions: dict[str, Interruption] = {}
        """How quarantined turns were interrupted; after a restart of this process that is the cause."""
        self._abandoned: OrderedDict[str, None] = OrderedDict()

    async def next(
        self,
        conversation: str,
        lease: Lease,
        fence: int | None,
        *,
        alone: bool = False,
        may_retry: bool = False,
    ) -> Claim | None:
        """Claim the next turn, or settle it if it need not run; None if there is nothing to do.

        `may_retry`: a turn that waits for a retry is claimed now, because its agent answers again.
        """
        async with self._transactions.begin("turn.claim") as tx:
            lease.ensure_held()
            claim = await self.claim_within(tx, conversation, fence, alone=alone, may_retry=may_retry)
        return claim if claim is None else self.committed(claim)

    async def claim_within(
        self,
        tx: Transaction,
        conversation: str,
        fence: int | None = None,
        *,
        next_turn: Turn | None = None,
        alone: bool = False,
        may_retry: bool = False,
        raise_fence: RaiseFence = claims.raise_fence,
    ) -> Claim | None:
        """Claim the next turn in a transaction; call `committed` with the result after the commit.

        `next_turn`: that turn, if the transaction knows it. While it waits, turns behind it that were
        cancelled are settled.
        """
        turn = next_turn or await turns.next_turn(tx.connection, conversation)
        if turn is not None and _must_wait(turn, may_retry=may_retry):
            turn = await turn_queue.next_cancelled(tx.connection, conversation)
        if turn is None:
            return None
        read = raise_fence if fence is None else claims.read
        claimed = await read(tx.connection, conversation)
        if claimed is None:  # deleted since the turn was read, or not free
            return None
        _ensure_fenced(fence in (None, claimed.fence))
        fence = claimed.fence
        reader = AccountReader(tx.connection, turn.account, self._agents, claimed.revision)
        agent = await reader.get_record("agent", turn.agent)
        interruption = self._interruption(turn)
        poison = decide_poison(
            turn.crashes, interruption, waited_through_crash=self._waited_through_crash(turn)
        )
        end = _end_without_run(turn, dead=poison.dead)
        if agent is None or end is not None:
            state, error = end or (TurnState.FAILED, await _agent_deleted(tx.connection, turn))
            return await self._end_unrun(tx, turn, fence, state, error)
        if poison.alone and not alone:
            return await self._quarantine(tx, turn, fence, poison, interruption)
        claim = await self._begin(tx, turn, claimed, agent, poison.points)
        return replace(claim, interruption=interruption)

    def committed(self, claim: Claim) -> Claim:
        """Keep what a claim has read for the next turn, and return the claim of a turn that may now run."""
        if not isinstance(claim, ClaimedTurn):
            return claim
        self._histories.committed(claim.turn.conversation, claim.history, claim.fence)
        interruption = self._interruptions.pop(claim.turn.id, claim.interruption)
        return replace(claim, interruption=interruption)

    def abandon(self, claim: Claim) -> None:
        """Remember that a turn, if its claim was committed, has not begun to run."""
        if isinstance(claim, ClaimedTurn):
            self._abandoned[claim.turn.id] = None
            if len(self._abandoned) > MAX_ABANDONED:
                self._abandoned.popitem(last=False)

    def _interruption(self, turn: Turn) -> Interruption:
        if turn.state is not TurnState.RUNNING or self._was_abandoned(turn):
            return Interruption.NONE
        return Interruption.LOST if turn.runner == self._worker_id else Interruption.CRASH

    def _was_abandoned(self, turn: Turn) -> bool:
        return turn.id in self._abandoned and turn.attempt == 1

    def _waited_through_crash(self, turn: Turn) -> bool:
        return turn.state is TurnState.QUEUED and turn.runner not in (None, self._worker_id)

    async def _quarantine(
        self, tx: Transaction, turn: Turn, fence: int, poison: PoisonDecision, interruption: Interruption
    ) -> Quarantined:
        moment = utc_now() + timedelta(seconds=poison.wait) if poison.wait else None
        keeps_mark = interruption is Interruption.NONE and not self._waited_through_crash(turn)
        suspected_by = turn.runner if keeps_mark else self._worker_id if poison.wait else None
        _ensure_fenced(
            await turns.quarantine(
                tx.connection,
                turn,
                fence=fence,
                crashes=poison.points,
                suspected_by=suspected_by,
                not_before=moment,
            )
        )
        if interruption is not Interruption.NONE:
            self._interruptions[turn.id] = interruption
        if moment is not None:
            tx.wake_at(WorkQueue.TURN, turn.conversation, moment, account=turn.account)
        return Quarantined(fence=fence, is_delayed=moment is not None)

    async def _end_unrun(
        self, tx: Transaction, turn: Turn, fence: int, state: TurnState, error: str
    ) -> EndedUnrun:
        files = await self._file_collector.list_for_turn(tx.connection, turn) if self._file_collector else ()
        ended = await end_turn(
            tx, turn, fence=fence, histories=self._histories, state=state, error=error, files=files
        )
        _ensure_fenced(ended is not None)
        return EndedUnrun(turn=turn, state=state, fence=fence)

    async def _begin(
        self,
        tx: Transaction,
        turn: Turn,
        claimed: ClaimedConversation,
        agent: Record,
        crashes: int,
    ) -> ClaimedTurn:
        restarted = turn.state is TurnState.RUNNING or crashes >= QUARANTINE_POINTS
        started = await turns.claim(
            tx.connection, turn, fence=claimed.fence, worker_id=self._worker_id, crashes=crashes
        )
        if started is None:
            raise LeaseLost(_OTHER_HOLDER)
        turn = replace(
            turn,
            state=TurnState.RUNNING,
            attempt=turn.attempt + 1,
            crashes=crashes,
            input=started.input,
        )
        _emit_start(tx, turn, restarted=restarted)
        connection, is_retry = tx.connection, turn.attempt > 1
        return ClaimedTurn(
            turn=turn,
            fence=claimed.fence,
            agent=agent,
            conversation=claimed,
            has_incoming=started.has_incoming,
            history=await self._histories.load(connection, turn.conversation, claimed.fence),
            approvals=await approval_store.list_for_turn(connection, turn.id) if is_retry else (),
            replies_before=await messages.count_replies(connection, turn.id) if is_retry else 0,
        )


async def _agent_deleted(connection: Connection, turn: Turn) -> str:
    return AGENT_DELETED.format(await agent_name(connection, turn.account, turn.agent))


RaiseFence = Callable[[Connection, str], Awaitable[ClaimedConversation | None]]
"""Raise a conversation's fence and return what its row says, or None."""

RunFirst = Callable[[Claim, str, Lease], Awaitable[None]]
"""Run a claimed turn of a conversation, and then those that follow it."""


class ImmediateTurn(ImmediateWork):
    """A turn that is claimed by a transaction."""

    step = "turn.claim"

    def __init__(self, place: ReservedKey, claim: Claim, claimer: TurnClaimer, run: RunFirst) -> None:
        self._place = place
        self._claim = claim
        self._claimer = claimer
        self._run = run

    def start(self) -> None:
        """Run the turn."""
        self._place.start(partial(self._run, self._claimer.committed(self._claim)))

    def release(self) -> None:
        """Give the place back; if the turn was claimed after all, nothing has interrupted it."""
        self._claimer.abandon(self._claim)
        self._place.release()


class ImmediateTurns(TurnClaims):
    """Claims turns for a worker of this process, if their leases can be acquired without the broker."""

    def __init__(self, worker: KeyedWorker, leases: Leases, claimer: TurnClaimer, run: RunFirst) -> None:
        self._worker = worker
        self._leases = leases
        self._claimer = claimer
        self._run = run

    async def claim(
        self, tx: Transaction, conversation: str, *, account: str, first: object = None
    ) -> ImmediateWork | None:
        """Claim the next turn of a conversation if none of its turns runs, and a place is free."""
        place = self._worker.reserve(account, conversation, self._leases, f"t:{conversation}")
        if place is None:
            return None
        try:
            next_turn = first if isinstance(first, Turn) else None
            claim = await self._claimer.claim_within(
                tx, conversation, next_turn=next_turn, raise_fence=claims.raise_fence_if_free
            )
        except BaseException:
            place.release()
            raise
        if claim is None:
            place.release()
            return None
        return ImmediateTurn(place, claim, self._claimer, self._run)


def _must_wait(turn: Turn, *, may_retry: bool) -> bool:
    """Return whether a turn waits for approvals or for its next retry."""
    return not turn.cancel and (turn.state is TurnState.WAITING or (turn.is_delayed and not may_retry))


def _end_without_run(turn: Turn, *, dead: bool) -> tuple[TurnState, str] | None:
    """Return the final state and error of a turn that must not run; None for one that may run."""
    if turn.cancel:
        return TurnState.CANCELLED, "cancelled"
    if dead:
        return (
            TurnState.FAILED,
            f"{DEAD_LETTER_PREFIX}this turn was interrupted too often before it finished",
        )
    return None


def _emit_start(tx: Transaction, turn: Turn, *, restarted: bool) -> None:
    kind = EventType.TURN_RESTARTED if restarted else EventType.TURN_STARTED
    tx.emit(Event.now(kind, turn.conversation, {"attempt": turn.attempt}, turn=turn.id))


def _ensure_fenced(written: bool) -> None:  # noqa: FBT001 - the result of a fenced write
    """Raise LeaseLost if the fence rejected a write."""
    if not written:
        raise LeaseLost(_OTHER_HOLDER)

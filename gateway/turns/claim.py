"""Claims: which turn of a conversation is performed next, and what its performance begins with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from delivery.broker.port import Lease
from delivery.database.clock import utc_now
from delivery.deliveries.transactions import Entry, Ledger
from delivery.errors import LeaseLost
from delivery.events.event import Event, Kind
from gateway.agents.port import Decision
from gateway.conversations import approvals
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.turn_state import CRASH_LIMIT, GIVEN_UP, SHARED_CRASHES, TurnState, suspect
from gateway.store.turns import approvals as approval_store
from gateway.store.turns import turns
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.turns.attempt import end_turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A turn to perform now, with all that a performance needs to know."""

    turn: Turn
    fence: int
    agent: Record
    history: bytes | None
    asked: Sequence[Approval]
    said_before: int

    @property
    def decisions(self) -> dict[str, Decision]:
        """What people decided about the calls that the turn asked for."""
        return approvals.decisions(self.asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A turn was ended without being performed; there may be another behind it."""

    turn: Turn
    state: TurnState
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A turn that has crashed its process repeatedly is to be claimed again once no other such turn runs."""

    fence: int


class Claims:
    """Claims turns under a lease. `runner` names this process."""

    def __init__(self, ledger: Ledger, runner: str) -> None:
        self._ledger = ledger
        self._runner = runner

    async def next(
        self, conversation: str, lease: Lease, fence: int | None, *, alone: bool = False
    ) -> Claim | Ended | SetAside | None:
        """Take the turn whose turn it is, or end it if it need not be performed; None: nothing to do."""
        if fence is not None and not await self.is_waited_for(conversation):
            return None
        async with self._ledger.entry("turn.claim") as entry:
            lease.check()
            turn = await turns.first_open(entry.connection, conversation)
            if turn is None or _must_wait(turn):
                return None
            if fence is None:
                fence = await conversations.raise_fence(entry.connection, conversation)
            agent = await records.by_id(entry.connection, turn.agent)
            suspicion = suspect(turn.crashes, again=self._has_crashed(turn))
            refusal = _refusal(turn, dead=suspicion.dead)
            if agent is None or refusal is not None:
                state, error = refusal or (TurnState.FAILED, f"agent {turn.agent} no longer exists")
                _must(await end_turn(entry, turn, fence=fence, state=state, error=error))
                return Ended(turn=turn, state=state, fence=fence)
            if suspicion.alone and not alone:
                _must(await turns.set_aside(entry.connection, turn, fence=fence, crashes=suspicion.crashes))
                return SetAside(fence=fence)
            return await self._begin(entry, turn, fence, agent, suspicion.crashes)

    async def is_waited_for(self, conversation: str) -> bool:
        """Look without writing: after most turns, and for each repeated hint, there is nothing to do."""
        async with self._ledger.database.read() as connection:
            turn = await turns.first_open(connection, conversation)
        return turn is not None and not _must_wait(turn)

    async def _begin(self, entry: Entry, turn: Turn, fence: int, agent: Record, crashes: int) -> Claim:
        restarted = turn.state is TurnState.RUNNING or crashes >= SHARED_CRASHES
        claimed = await turns.claim(entry.connection, turn, fence=fence, runner=self._runner, crashes=crashes)
        _must(claimed is not None)
        turn = replace(
            turn,
            state=TurnState.RUNNING,
            attempt=turn.attempt + 1,
            crashes=crashes,
            input=claimed or "",
        )
        _tell_start(entry, turn, restarted=restarted)
        return await _gather(entry, turn, fence, agent)

    def _has_crashed(self, turn: Turn) -> bool:
        """Say whether a turn's process died; one that only lost the lease here (no broker) did not."""
        return turn.state is TurnState.RUNNING and turn.runner != self._runner


async def _gather(entry: Entry, turn: Turn, fence: int, agent: Record) -> Claim:
    connection = entry.connection
    again = turn.attempt > 1
    return Claim(
        turn=turn,
        fence=fence,
        agent=agent,
        history=await conversations.history(connection, turn.conversation),
        asked=await approval_store.of_turn(connection, turn.id) if again else (),
        said_before=await conversations.said_in(connection, turn.id) if again else 0,
    )


def _must_wait(turn: Turn) -> bool:
    """Say whether a turn waits for people, or for its model's service to come back."""
    early = turn.next_at is not None and turn.next_at > utc_now()
    return not turn.cancel and (turn.state is TurnState.WAITING or early)


def _refusal(turn: Turn, *, dead: bool) -> tuple[TurnState, str] | None:
    """Say how a turn ends that is not performed at all, and why; None for one that is."""
    if turn.cancel:
        return TurnState.CANCELLED, "cancelled"
    if dead:
        return TurnState.FAILED, f"{GIVEN_UP}the gateway died {CRASH_LIMIT} times while working on this"
    return None


def _tell_start(entry: Entry, turn: Turn, *, restarted: bool) -> None:
    kind = Kind.TURN_RESTARTED if restarted else Kind.TURN_STARTED
    entry.tell(Event.now(kind, turn.conversation, {"attempt": turn.attempt}, turn=turn.id))


def _must(changed: bool) -> None:  # noqa: FBT001 - what a fenced write said
    """Raise LeaseLost when the fence let a write through no more."""
    if not changed:
        raise LeaseLost("the conversation has another holder")

"""The turn worker: one lease holder per conversation runs its turns, one at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import structlog

from delivery.broker.keyed_worker import KeyedWorker
from delivery.broker.port import Lease, Leases, WakeUps, WorkQueue
from delivery.chat.drafts import TurnDisplay
from delivery.database.engine import DatabaseUnavailable, is_dangling_reference
from delivery.deliveries.transactions import Transactions
from delivery.errors import DeliveryError
from delivery.events.port import EventStream
from delivery.exhaustion import EXHAUSTED, exhausted_resource
from delivery.fair_gate import FairGate
from delivery.fair_scheduler import PoolSize
from gateway.agents.history import UnreadableHistory
from gateway.agents.port import AgentClosed, AgentError, ConfigurationChanged
from gateway.files.collection import FileCollector
from gateway.records.agent import agent_config, turn_limits
from gateway.schedules.heartbeat import DraftContext, show_turn
from gateway.store.turn_state import RetryPeriods, TurnState
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn
from gateway.turns.agent_runner import AgentRunner
from gateway.turns.attempt import TurnAttempt
from gateway.turns.bounds import Drained, DrainedTurns, TurnBounds, TurnCancelled
from gateway.turns.cancellation import POLL_SECONDS, CancellationWatcher
from gateway.turns.claim import Claim, ClaimedTurn, ImmediateTurns, Quarantined, TurnClaimer
from gateway.turns.deltas import Deltas
from gateway.turns.histories import HistoryCache
from gateway.turns.retrying import retry_later
from gateway.turns.shown_waits import waits_shown
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)

DEFAULT_SIZE = PoolSize(places=64)

INTERNAL_ERROR = "internal error; see the gateway's log for details"
REFERENCE_DELETED = "something that the turn needs was deleted while it ran"

OnTurnEnded = Callable[[Turn, TurnState], None]
"""Called for each turn that ended in this process; must not wait and must not raise."""


def _ignore_end(_turn: Turn, _state: TurnState) -> None:
    """Ignore the end of a turn."""


class TurnWorker:
    """Runs turns; `worker_id` names this process."""

    def __init__(
        self,
        *,
        transactions: Transactions,
        leases: Leases,
        wake_ups: WakeUps,
        stream: EventStream,
        agent_runner: AgentRunner,
        file_collector: FileCollector,
        worker_id: str,
        size: PoolSize = DEFAULT_SIZE,
        lease_ttl: float = 6.0,
        drain_timeout: float = 8.0,
        retry_periods: RetryPeriods | None = None,
        draft_context: DraftContext = lambda _conversation, _turn, _asker: nullcontext(),
        on_turn_ended: OnTurnEnded = _ignore_end,
        cancel_poll_interval: float = POLL_SECONDS,
    ) -> None:
        self._transactions = transactions
        self._leases = leases
        self._stream = stream
        self._agent_runner = agent_runner
        self._file_collector = file_collector
        self._histories = HistoryCache()
        self._claimer = TurnClaimer(
            transactions, worker_id, histories=self._histories, file_collector=file_collector
        )
        self._cancellations = CancellationWatcher(transactions.database, interval=cancel_poll_interval)
        self._on_turn_ended = on_turn_ended
        self._lease_ttl = lease_ttl
        self._drained_turns = DrainedTurns(drain_timeout)
        self._retry_periods = retry_periods or RetryPeriods()
        self._draft_context = draft_context
        self._keyed_worker = KeyedWorker(
            WorkQueue.TURN, wake_ups, self._work_on, wake=transactions.wake_soon, size=size
        )
        self._quarantine_gate = FairGate(PoolSize(places=1))
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Run turns until stopped; running ones get `drain_timeout` seconds, then go back into the queue."""
        self._stop = stop
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cancellations.run(stop))
            group.create_task(self._drained_turns.run(stop))
            group.create_task(self._keyed_worker.run(stop))

    def cancel_local(self, turn: str) -> None:
        """Cancel a turn at once if it runs in this process."""
        self._cancellations.cancel(turn)

    def immediate_turns(self) -> ImmediateTurns:
        """Return the claims of turns that this worker can run at once."""
        return ImmediateTurns(self._keyed_worker, self._leases, self._claimer, self._run_turns)

    async def _work_on(self, conversation: str) -> None:
        async with self._leases.acquire(f"t:{conversation}", ttl=self._lease_ttl) as lease:
            if not self._stop.is_set():
                await self._run_turns(
                    await self._claimer.next(conversation, lease, None), conversation, lease
                )

    async def _run_turns(self, claim: Claim | None, conversation: str, lease: Lease) -> None:
        """Run a claimed turn and those that follow it, until none does or the gateway stops."""
        while claim is not None:
            answered = await self._handle_claim(claim, conversation, lease)
            if answered is None or self._stop.is_set():
                return
            claim = await self._claimer.next(conversation, lease, claim.fence, may_retry=answered)

    async def _handle_claim(self, claim: Claim, conversation: str, lease: Lease) -> bool | None:
        """Run a claimed turn; return whether its agent has answered, or None if no turn follows now."""
        if isinstance(claim, ClaimedTurn):
            attempt = await self._run_turn(claim, lease)
            return attempt.end_state is TurnState.COMPLETED if attempt.has_successor else None
        if isinstance(claim, Quarantined):
            if claim.is_delayed:
                return None
            await self._run_quarantined(conversation, lease, claim.fence)
            return False
        self._on_turn_ended(claim.turn, claim.state)
        return False

    async def _run_quarantined(self, conversation: str, lease: Lease, fence: int) -> None:
        """Run a quarantined turn with no other one beside it, so that a crash counts only against it."""
        async with self._quarantine_gate.hold():
            if self._stop.is_set():
                return
            claim = await self._claimer.next(conversation, lease, fence, alone=True)
            if isinstance(claim, ClaimedTurn):
                await self._run_turn(claim, lease)

    async def _run_turn(self, claim: ClaimedTurn, lease: Lease) -> TurnAttempt:
        """Run one attempt, and return it when it has ended."""
        async with show_turn(claim.turn, self._draft_context) as display:
            deltas = self._deltas(claim.turn, display)
            attempt = self._attempt(claim, lease, deltas, display)
            await self._run_attempt(claim, attempt, lease, deltas)
            if attempt.end_state is not None:
                self._on_turn_ended(claim.turn, attempt.end_state)
            return attempt

    def _deltas(self, turn: Turn, display: TurnDisplay | None) -> Deltas:
        return Deltas(
            turn.conversation,
            turn.id,
            turn.attempt,
            publish_transient=partial(self._stream.publish_transient, account=turn.account),
            on_text=display.show_text if display else None,
        )

    def _attempt(
        self, claim: ClaimedTurn, lease: Lease, deltas: Deltas, display: TurnDisplay | None
    ) -> TurnAttempt:
        return TurnAttempt(
            claim.turn,
            fence=claim.fence,
            lease=lease,
            transactions=self._transactions,
            deltas=deltas,
            replies_before=claim.replies_before,
            histories=self._histories,
            history=claim.history,
            file_collector=self._file_collector,
            show_step=display.show_step if display else None,
        )

    async def _run_attempt(
        self, claim: ClaimedTurn, attempt: TurnAttempt, lease: Lease, deltas: Deltas
    ) -> None:
        """Run an attempt, and end the turn or give it back if the agent does not answer."""
        try:
            async with deltas, waits_shown(attempt):
                await self._run_bounded(claim, attempt, lease)
        except TurnCancelled:
            attempt.keep_partial_text()
            await self._end(attempt, TurnState.CANCELLED, "cancelled")
        except (Drained, AgentClosed, ConfigurationChanged):
            await self._release(attempt)
        except TimeoutError:
            limit = turn_limits(agent_config(claim.agent)).turn_timeout
            error_text = f"the turn timed out after {limit:g} s (limits.turn_timeout)"
            await self._end(attempt, TurnState.FAILED, error_text)
        except (AgentError, SandboxError, UnreadableHistory) as error:
            await self._fail(attempt, error)
        except (DeliveryError, DatabaseUnavailable, asyncio.CancelledError):
            raise  # the turn stays as it is for the next lease holder
        except Exception as error:  # noqa: BLE001 - an error of an agent fails its turn, not the gateway
            await self._fail_unexpectedly(attempt, error)

    async def _run_bounded(self, claim: ClaimedTurn, attempt: TurnAttempt, lease: Lease) -> None:
        """Run the agent until it ends, is cancelled, times out, is drained or the lease is lost."""
        bounds = TurnBounds()
        if timeout := turn_limits(agent_config(claim.agent)).turn_timeout:
            bounds.reach_after(timeout, TimeoutError())
        with self._cancellations.track(claim.turn.id, bounds.cancel), self._drained_turns.track(bounds):
            await bounds.run(self._agent_runner.run(claim, attempt), lease)

    async def _fail_unexpectedly(self, attempt: TurnAttempt, error: Exception) -> None:
        """Fail the turn without details, unless it only waits for a resource of the machine."""
        if exhausted_resource(error) is not None:
            await self._fail(attempt, error)
            return
        if is_dangling_reference(error):
            log.warning("turn.reference_deleted", turn=attempt.turn.id, error=str(error))
            await self._end(attempt, TurnState.FAILED, REFERENCE_DELETED)
            return
        log.error("turn.failed", turn=attempt.turn.id, exc_info=error)
        await self._end(attempt, TurnState.FAILED, INTERNAL_ERROR)

    async def _fail(self, attempt: TurnAttempt, error: Exception) -> None:
        """Fail the turn, or requeue it with a delay if the error is temporary and retries are left."""
        resource = exhausted_resource(error)
        text = EXHAUSTED[resource] if resource else str(error)
        periods = self._retry_periods
        period = periods.job if resource else periods.for_trigger(attempt.turn.trigger)
        if not ((resource or _is_temporary(error)) and await retry_later(attempt, text, period=period)):
            await self._end(attempt, TurnState.FAILED, text)

    @staticmethod
    async def _end(attempt: TurnAttempt, state: TurnState, error: str) -> None:
        await attempt.save_files()
        async with attempt.begin("turn.settle", last=True) as tx:
            await attempt.settle(tx, state, output=attempt.answer, error=error)

    @staticmethod
    async def _release(attempt: TurnAttempt) -> None:
        async with attempt.begin("turn.release", runs_again=True) as tx:
            await turns.requeue(tx.connection, attempt.turn.id, from_state=TurnState.RUNNING)
            tx.wake(WorkQueue.TURN, attempt.turn.conversation, account=attempt.turn.account)


def _is_temporary(error: Exception) -> bool:
    return error.retryable if isinstance(error, AgentError) else getattr(error, "remedy", "") == "retry"

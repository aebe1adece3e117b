"""The conductor: one holder per conversation performs its turns, one at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import structlog

from delivery.database import Unavailable
from delivery.errors import DeliveryError, LeaseLost
from delivery.event import Event, Kind
from delivery.ledger import Entry, Ledger
from delivery.port import Lease, Leases, Queue, Signals, Stream
from delivery.rounds import Rounds
from gateway import approvals
from gateway.agents.port import Agent, AgentError, Decision, Persona, Work
from gateway.deltas import Deltas, Heard
from gateway.jobs import Jobs
from gateway.performance import Performance, end_turn
from gateway.records.agent import agent_config, persona_of
from gateway.store import approvals as approval_store
from gateway.store import conversations, records, turns
from gateway.store.records import Record
from gateway.store.turns import Turn
from gateway.tools.tool import Desk
from gateway.tools.turn_tools import TurnTools
from gateway.turn import CRASH_LIMIT, SHARED_CRASHES, TurnState, retry_after, suspect
from gateway.workbench import Workbench

log = structlog.get_logger(__name__)

CANCEL_LOOK = 0.5
"""Seconds between looks for turns that somebody, perhaps on another replica, wants cancelled."""


class Cancelled(Exception):
    """Somebody wants this turn to end."""


class Released(Exception):
    """The gateway is stopping: the turn goes back into the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A turn to perform now, with all that a performance needs to know."""

    turn: Turn
    fence: int
    agent: Record
    history: bytes | None
    decisions: dict[str, Decision]
    said_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A turn was ended without being performed; there may be another behind it."""

    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """A turn that has crashed its process repeatedly is to be claimed again once no other such turn runs."""

    fence: int


Showing = Callable[[str], AbstractAsyncContextManager[Heard | None]]
"""Show in a conversation's chats what is being said while a turn is performed."""


class Conductor:
    """Performs turns. `agents` finds who performs for a persona; `runner` names this process."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        leases: Leases,
        signals: Signals,
        stream: Stream,
        workbench: Workbench,
        jobs: Jobs,
        agents: Callable[[Persona], Agent],
        runner: str,
        at_most: int = 64,
        lease_ttl: float = 6.0,
        drain: float = 8.0,
        showing: Showing = lambda _conversation: nullcontext(),
    ) -> None:
        self._ledger = ledger
        self._leases = leases
        self._stream = stream
        self._workbench = workbench
        self._jobs = jobs
        self._agents = agents
        self._runner = runner
        self._lease_ttl = lease_ttl
        self._drain = drain
        self._showing = showing
        self._rounds = Rounds(Queue.TURN, signals, self._hold, wake=ledger.signal, at_most=at_most)
        self._suspects = asyncio.Lock()
        self._cancelling: dict[str, asyncio.Event] = {}
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Perform turns until stopped; those in flight get the drain time, then go back into the queue."""
        self._stop = stop
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_cancels(stop))
            group.create_task(self._rounds.run(stop))

    def cancel_here(self, turn: str) -> None:
        """Cancel a turn at once if it is performed in this process."""
        if turn in self._cancelling:
            self._cancelling[turn].set()

    async def _watch_cancels(self, stop: asyncio.Event) -> None:
        while not stop.is_set() or self._cancelling:
            running = list(self._cancelling)
            if running:
                try:
                    async with self._ledger.database.read() as connection:
                        wanted = await turns.cancelled_among(connection, running)
                except Unavailable as error:
                    log.warning("conductor.cancel_look_failed", error=str(error))
                    wanted = []
                for turn in wanted:
                    self.cancel_here(turn)
            await self._pause(stop)

    @staticmethod
    async def _pause(stop: asyncio.Event) -> None:
        if stop.is_set():
            await asyncio.sleep(0.05)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_LOOK):
                await stop.wait()

    async def _hold(self, conversation: str) -> None:
        async with self._leases.hold(f"t:{conversation}", ttl=self._lease_ttl) as lease:
            fence: int | None = None
            while not self._stop.is_set():
                claim = await self._claim(conversation, lease, fence)
                if claim is None:
                    return
                fence = claim.fence
                if isinstance(claim, Claim):
                    await self._perform(claim, lease)
                elif isinstance(claim, SetAside):
                    await self._perform_alone(conversation, lease, fence)

    async def _perform_alone(self, conversation: str, lease: Lease, fence: int) -> None:
        """Perform a suspect with no other suspect beside it: only the guilty one meets the next crash."""
        async with self._suspects:
            if self._stop.is_set():
                return
            claim = await self._claim(conversation, lease, fence, alone=True)
            if isinstance(claim, Claim):
                await self._perform(claim, lease)

    async def _claim(
        self, conversation: str, lease: Lease, fence: int | None, *, alone: bool = False
    ) -> Claim | Ended | SetAside | None:
        """Take the turn whose turn it is, or end it if it need not be performed; None: nothing to do."""
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
                return Ended(fence=fence)
            if suspicion.alone and not alone:
                _must(await turns.set_aside(entry.connection, turn, fence=fence, crashes=suspicion.crashes))
                return SetAside(fence=fence)
            return await self._begin(entry, turn, fence, agent, suspicion.crashes)

    async def _begin(self, entry: Entry, turn: Turn, fence: int, agent: Record, crashes: int) -> Claim:
        restarted = turn.state is TurnState.RUNNING or crashes >= SHARED_CRASHES
        _must(await turns.claim(entry.connection, turn, fence=fence, runner=self._runner, crashes=crashes))
        turn = replace(turn, state=TurnState.RUNNING, attempt=turn.attempt + 1, crashes=crashes)
        _tell_start(entry, turn, restarted=restarted)
        return await self._gather(entry, turn, fence, agent)

    def _has_crashed(self, turn: Turn) -> bool:
        """Say whether a turn's process died; one that only lost the lease here (no broker) did not."""
        return turn.state is TurnState.RUNNING and turn.runner != self._runner

    @staticmethod
    async def _gather(entry: Entry, turn: Turn, fence: int, agent: Record) -> Claim:
        connection = entry.connection
        again = turn.attempt > 1
        return Claim(
            turn=turn,
            fence=fence,
            agent=agent,
            history=await conversations.history(connection, turn.conversation),
            decisions=approvals.decisions(await approval_store.of_turn(connection, turn.id)) if again else {},
            said_before=await conversations.said_in(connection, turn.id) if again else 0,
        )

    async def _perform(self, claim: Claim, lease: Lease) -> None:
        async with self._showing(claim.turn.conversation) as heard:
            await self._perform_heard(claim, lease, heard)

    async def _perform_heard(self, claim: Claim, lease: Lease, heard: Heard | None) -> None:
        turn = claim.turn
        deltas = Deltas(turn.conversation, turn.id, turn.attempt, whisper=self._stream.whisper, heard=heard)
        performance = Performance(
            turn,
            fence=claim.fence,
            lease=lease,
            ledger=self._ledger,
            deltas=deltas,
            said_before=claim.said_before,
        )
        try:
            async with deltas:
                await self._within_bounds(claim, performance, lease)
        except Cancelled:
            await self._end(performance, TurnState.CANCELLED, "cancelled")
        except Released:
            await self._release(performance)
        except TimeoutError:
            limit = persona_of(claim.agent).limits.turn_timeout
            await self._end(performance, TurnState.FAILED, f"the turn took longer than {limit:g} s")
        except AgentError as error:
            await self._fail(performance, error)
        except (DeliveryError, Unavailable, asyncio.CancelledError):
            raise  # the turn stays as it is, for whoever holds the conversation next
        except Exception:  # whatever an agent raises ends its turn visibly, never the gateway
            log.exception("turn.failed", turn=turn.id)
            await self._end(performance, TurnState.FAILED, "an internal error; the log has the details")

    async def _within_bounds(self, claim: Claim, performance: Performance, lease: Lease) -> None:
        """Perform until the end, or until it is cancelled, timed out, drained or no longer ours."""
        cancel = self._cancelling.setdefault(claim.turn.id, asyncio.Event())
        performing = asyncio.create_task(self._play(claim, performance))
        bounds = {
            asyncio.create_task(cancel.wait()): Cancelled(),
            asyncio.create_task(lease.wait_lost()): DeliveryError("the lease was lost"),
            asyncio.create_task(self._drained()): Released(),
        }
        timeout = persona_of(claim.agent).limits.turn_timeout or None
        try:
            done, _ = await asyncio.wait(
                {performing, *bounds}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if performing in done:
                return performing.result()
            raise next((bounds[task] for task in done), TimeoutError())
        finally:
            self._cancelling.pop(claim.turn.id, None)
            await _end_tasks(performing, *bounds)

    async def _drained(self) -> None:
        await self._stop.wait()
        await asyncio.sleep(self._drain)

    async def _play(self, claim: Claim, performance: Performance) -> None:
        turn = claim.turn
        persona = persona_of(claim.agent)
        bench = await self._workbench.bench(claim.agent, turn.conversation)
        tools = TurnTools(
            Desk(turn=turn, bench=bench, workbench=self._workbench, jobs=self._jobs),
            write=performance.write,
            check=performance.check,
            allowed=agent_config(claim.agent).tools,
        )
        work = Work(
            turn=turn.id,
            conversation=turn.conversation,
            attempt=turn.attempt,
            trigger="job" if turn.trigger == "job" else "message",
            input=turn.input,
            persona=persona,
            history=claim.history,
            saved=turn.paused,
            decisions=claim.decisions,
        )
        await performance.play(self._agents(persona), work, tools)

    async def _fail(self, performance: Performance, error: AgentError) -> None:
        """End the turn, or put it back for later when only the model's service is down."""
        wait = retry_after(performance.turn.attempt) if error.retryable else None
        if wait is None:
            await self._end(performance, TurnState.FAILED, str(error))
            return
        log.warning("turn.retries", turn=performance.turn.id, after=wait, error=str(error))
        moment = datetime.now(UTC) + timedelta(seconds=wait)
        async with performance.write("turn.release") as entry:
            await turns.requeue(
                entry.connection, performance.turn.id, was=TurnState.RUNNING, not_before=moment
            )
            entry.wake_at(Queue.TURN, performance.turn.conversation, moment)

    @staticmethod
    async def _end(performance: Performance, state: TurnState, error: str) -> None:
        async with performance.write("turn.settle") as entry:
            await performance.settle(entry, state, error=error)

    @staticmethod
    async def _release(performance: Performance) -> None:
        async with performance.write("turn.release") as entry:
            await turns.requeue(entry.connection, performance.turn.id, was=TurnState.RUNNING)
            entry.wake(Queue.TURN, performance.turn.conversation)


def _must_wait(turn: Turn) -> bool:
    """Say whether a turn waits for people, or for its model's service to come back."""
    early = turn.next_at is not None and turn.next_at > datetime.now(UTC)
    return not turn.cancel and (turn.state is TurnState.WAITING or early)


def _refusal(turn: Turn, *, dead: bool) -> tuple[TurnState, str] | None:
    """Say how a turn ends that is not performed at all, and why; None for one that is."""
    if turn.cancel:
        return TurnState.CANCELLED, "cancelled"
    if dead:
        return TurnState.FAILED, f"given up: the gateway died {CRASH_LIMIT} times while working on this"
    return None


def _tell_start(entry: Entry, turn: Turn, *, restarted: bool) -> None:
    kind = Kind.TURN_RESTARTED if restarted else Kind.TURN_STARTED
    entry.tell(Event.now(kind, turn.conversation, {"attempt": turn.attempt}, turn=turn.id))


def _must(changed: bool) -> None:  # noqa: FBT001 - what a fenced write said
    """Raise LeaseLost when the fence let a write through no more."""
    if not changed:
        raise LeaseLost("the conversation has another holder")


async def _end_tasks(*tasks: asyncio.Task[object] | asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

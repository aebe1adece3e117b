"""The conductor: one holder per conversation performs its turns, one at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from datetime import timedelta
from functools import partial

import structlog

from delivery.broker.keyed_worker import Rounds
from delivery.broker.port import Lease, Leases, Queue, Signals
from delivery.database.clock import utc_now
from delivery.database.engine import Unavailable
from delivery.deliveries.transactions import Ledger
from delivery.errors import DeliveryError
from delivery.events.port import Stream
from gateway.agents.port import Agent, AgentError, Persona, Work
from gateway.conversations.approvals import mark_of_all
from gateway.environments.agent_files import Bundles
from gateway.environments.resolver import Workbench
from gateway.files.attachments import Incoming
from gateway.files.collection import Outgoing
from gateway.jobs.jobs import Jobs
from gateway.records.agent import agent_config, persona_of
from gateway.store.turn_state import TurnState, retry_after
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn
from gateway.tools.executor import TurnTools
from gateway.tools.tool import Desk
from gateway.turns.attempt import Performance
from gateway.turns.cancellation import LOOK, Cancels
from gateway.turns.claim import Claim, Claims, SetAside
from gateway.turns.deltas import Deltas, Heard
from sandbox.errors import SandboxError

log = structlog.get_logger(__name__)


class Cancelled(Exception):
    """Somebody wants this turn to end."""


class Released(Exception):
    """The gateway is stopping: the turn goes back into the queue."""


Showing = Callable[[str, str, str], AbstractAsyncContextManager[Heard | None]]
"""Show in a conversation's chats what is said while a turn (its id, and its asker) is performed."""

Ending = Callable[[Turn, TurnState], None]
"""Hear of turns that have ended here; must not wait and must not fail."""


def _unheard(_turn: Turn, _state: TurnState) -> None:
    """Nobody listens."""


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
        incoming: Incoming,
        outgoing: Outgoing,
        bundles: Bundles,
        agents: Callable[[Persona], Agent],
        runner: str,
        at_most: int = 64,
        lease_ttl: float = 6.0,
        drain: float = 8.0,
        showing: Showing = lambda _conversation, _turn, _asker: nullcontext(),
        ended: Ending = _unheard,
        cancel_look: float = LOOK,
    ) -> None:
        self._ledger = ledger
        self._leases = leases
        self._stream = stream
        self._workbench = workbench
        self._jobs = jobs
        self._incoming = incoming
        self._outgoing = outgoing
        self._bundles = bundles
        self._agents = agents
        self._claims = Claims(ledger, runner)
        self._cancels = Cancels(ledger.database, look=cancel_look)
        self._ended = ended
        self._lease_ttl = lease_ttl
        self._drain = drain
        self._showing = showing
        self._rounds = Rounds(Queue.TURN, signals, self._hold, wake=ledger.signal, at_most=at_most)
        self._suspects = asyncio.Lock()
        self._stop = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Perform turns until stopped; those in flight get the drain time, then go back into the queue."""
        self._stop = stop
        async with asyncio.TaskGroup() as group:
            group.create_task(self._cancels.watch(stop))
            group.create_task(self._rounds.run(stop))

    def cancel_here(self, turn: str) -> None:
        """Cancel a turn at once if it is performed in this process."""
        self._cancels.cancel(turn)

    async def _hold(self, conversation: str) -> None:
        if not await self._claims.is_waited_for(conversation):
            return
        async with self._leases.hold(f"t:{conversation}", ttl=self._lease_ttl) as lease:
            fence: int | None = None
            while not self._stop.is_set():
                claim = await self._claims.next(conversation, lease, fence)
                if claim is None:
                    return
                fence = claim.fence
                if isinstance(claim, Claim):
                    await self._perform(claim, lease)
                elif isinstance(claim, SetAside):
                    await self._perform_alone(conversation, lease, fence)
                else:
                    self._ended(claim.turn, claim.state)

    async def _perform_alone(self, conversation: str, lease: Lease, fence: int) -> None:
        """Perform a suspect with no other suspect beside it: only the guilty one meets the next crash."""
        async with self._suspects:
            if self._stop.is_set():
                return
            claim = await self._claims.next(conversation, lease, fence, alone=True)
            if isinstance(claim, Claim):
                await self._perform(claim, lease)

    async def _perform(self, claim: Claim, lease: Lease) -> None:
        turn = claim.turn
        async with self._showing(turn.conversation, turn.id, turn.asker) as heard:
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
            files=self._outgoing,
        )
        try:
            async with deltas:
                await self._within_bounds(claim, performance, lease)
        except Cancelled:
            performance.keep_half_said()
            await self._end(performance, TurnState.CANCELLED, "cancelled")
        except Released:
            await self._release(performance)
        except TimeoutError:
            limit = persona_of(claim.agent).limits.turn_timeout
            await self._end(performance, TurnState.FAILED, f"the turn took longer than {limit:g} s")
        except (AgentError, SandboxError) as error:
            await self._fail(performance, error)
        except (DeliveryError, Unavailable, asyncio.CancelledError):
            raise  # the turn stays as it is, for whoever holds the conversation next
        except Exception:  # whatever an agent raises ends its turn visibly, never the gateway
            log.exception("turn.failed", turn=turn.id)
            await self._end(performance, TurnState.FAILED, "an internal error; the log has the details")
        if performance.ended is not None:
            self._ended(turn, performance.ended)

    async def _within_bounds(self, claim: Claim, performance: Performance, lease: Lease) -> None:
        """Perform until the end, or until it is cancelled, timed out, drained or no longer ours."""
        with self._cancels.of(claim.turn.id) as cancel:
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
                await _end_tasks(performing, *bounds)

    async def _drained(self) -> None:
        await self._stop.wait()
        await asyncio.sleep(self._drain)

    async def _play(self, claim: Claim, performance: Performance) -> None:
        turn = claim.turn
        persona = await self._bundles.instructed(claim.agent, persona_of(claim.agent))
        benches = await self._workbench.benches(claim.agent, turn.conversation, person=turn.asker)
        bench = next(iter(benches.values()))
        performance.bind(mark_of_all(benches, bench))
        if await performance.renew(claim.asked):
            return
        tools = TurnTools(
            Desk(
                turn=turn,
                bench=bench,
                workbench=self._workbench,
                jobs=self._jobs,
                files=self._outgoing,
                agent=claim.agent,
                bundles=self._bundles,
                skills=await self._bundles.skills(turn.account),
                benches=benches,
            ),
            write=performance.write,
            check=performance.check,
            allowed=agent_config(claim.agent).tools,
        )
        brought = await self._incoming.receive(turn, bench)
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
            hear=performance.hear,
            attached=brought.lines,
            images=brought.images,
        )
        gather = partial(self._outgoing.gather, turn, bench)
        async with AsyncExitStack() as attended:
            for one in benches.values():
                await attended.enter_async_context(
                    self._workbench.attended(one, changed=turn.trigger == "job")
                )
            await performance.play(self._agents(persona), work, tools, gather)

    async def _fail(self, performance: Performance, error: AgentError | SandboxError) -> None:
        """End the turn, or put it back for later when only the model's or the sandboxes' service is down."""
        passing = error.retryable if isinstance(error, AgentError) else error.remedy == "retry"
        wait = retry_after(performance.turn.attempt) if passing else None
        if wait is None:
            await self._end(performance, TurnState.FAILED, str(error))
            return
        log.warning("turn.retries", turn=performance.turn.id, after=wait, error=str(error))
        moment = utc_now() + timedelta(seconds=wait)
        async with performance.write("turn.release") as entry:
            await turns.requeue(
                entry.connection, performance.turn.id, was=TurnState.RUNNING, not_before=moment
            )
            entry.wake_at(Queue.TURN, performance.turn.conversation, moment)

    @staticmethod
    async def _end(performance: Performance, state: TurnState, error: str) -> None:
        async with performance.write("turn.settle", last=True) as entry:
            await performance.settle(entry, state, error=error)

    @staticmethod
    async def _release(performance: Performance) -> None:
        async with performance.write("turn.release") as entry:
            await turns.requeue(entry.connection, performance.turn.id, was=TurnState.RUNNING)
            entry.wake(Queue.TURN, performance.turn.conversation)


async def _end_tasks(*tasks: asyncio.Task[object] | asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""The turn worker: one lease holder per conversation runs its turns, one at a time, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

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
from gateway.accounts.budgets import GetMeteredAgent
from gateway.agents.client_request import ClientRequest
from gateway.agents.history import UnreadableHistory
from gateway.agents.port import AgentClosed, AgentError, AgentSpec, ConfigurationChanged, TurnInput
from gateway.config.setting_types import SHELL
from gateway.conversations.message_frame import RoomPlace, frame_message, with_room_prompt
from gateway.environments.agent_files import AgentFiles
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.files.attachments import AttachmentFetcher
from gateway.files.collection import FileCollector
from gateway.jobs.jobs import Jobs
from gateway.memory.memories import Memories, TurnMemory
from gateway.memory.prompt import with_notes
from gateway.records.agent import OperatorModel, agent_config, agent_spec, turn_limits
from gateway.schedules.heartbeat import DraftContext, show_turn
from gateway.schedules.schedules import Schedules
from gateway.store.turn_state import RetryPeriods, TurnState
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn
from gateway.tools.executor import ToolExecutor
from gateway.tools.external_tools import OpenExternalTools, no_external_tools
from gateway.tools.tool import ToolContext
from gateway.turns.attempt import TurnAttempt
from gateway.turns.bounds import Drained, DrainedTurns, TurnBounds, TurnCancelled
from gateway.turns.cancellation import POLL_SECONDS, CancellationWatcher
from gateway.turns.claim import Claim, ClaimedTurn, ImmediateTurns, Quarantined, TurnClaimer
from gateway.turns.compaction_turn import input_trigger
from gateway.turns.deltas import Deltas
from gateway.turns.file_saving import save_files
from gateway.turns.histories import HistoryCache
from gateway.turns.retrying import retry_later
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
    """Runs turns. `get_agent` returns the agent for a spec; `worker_id` names this process."""

    def __init__(
        self,
        *,
        transactions: Transactions,
        leases: Leases,
        wake_ups: WakeUps,
        stream: EventStream,
        environment_resolver: EnvironmentResolver,
        jobs: Jobs,
        attachments: AttachmentFetcher,
        file_collector: FileCollector,
        agent_files: AgentFiles,
        schedules: Schedules,
        memories: Memories | None = None,
        get_agent: GetMeteredAgent,
        open_external_tools: OpenExternalTools = no_external_tools,
        operator_model: OperatorModel | None = None,
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
        self._environment_resolver = environment_resolver
        self._jobs = jobs
        self._attachments = attachments
        self._file_collector = file_collector
        self._agent_files = agent_files
        self._schedules = schedules
        self._memories = memories
        self._get_agent = get_agent
        self._open_external_tools = open_external_tools
        self._operator_model = operator_model or OperatorModel()
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
        turn = claim.turn
        async with show_turn(turn, self._draft_context) as display:
            return await self._run_attempt(claim, lease, display)

    async def _run_attempt(
        self, claim: ClaimedTurn, lease: Lease, display: TurnDisplay | None
    ) -> TurnAttempt:
        turn = claim.turn
        deltas = Deltas(
            turn.conversation,
            turn.id,
            turn.attempt,
            publish_transient=partial(self._stream.publish_transient, account=turn.account),
            on_text=display.show_text if display else None,
        )
        attempt = TurnAttempt(
            turn,
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
        try:
            async with deltas, attempt.with_waits_shown():
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
        if attempt.end_state is not None:
            self._on_turn_ended(turn, attempt.end_state)
        return attempt

    async def _run_bounded(self, claim: ClaimedTurn, attempt: TurnAttempt, lease: Lease) -> None:
        """Run the agent until it ends, is cancelled, times out, is drained or the lease is lost."""
        bounds = TurnBounds()
        if timeout := turn_limits(agent_config(claim.agent)).turn_timeout:
            bounds.reach_after(timeout, TimeoutError())
        with self._cancellations.track(claim.turn.id, bounds.cancel), self._drained_turns.track(bounds):
            await bounds.run(self._run_agent(claim, attempt), lease)

    async def _run_agent(self, claim: ClaimedTurn, attempt: TurnAttempt) -> None:
        async with AsyncExitStack() as stack:
            await self._run_with(stack, claim, attempt)

    async def _run_with(self, stack: AsyncExitStack, claim: ClaimedTurn, attempt: TurnAttempt) -> None:
        """Run the agent; what its attempt opens is closed by the stack."""
        turn = claim.turn
        spec = await self._agent_files.with_instructions(
            claim.agent, agent_spec(claim.agent, self._operator_model, turn.model)
        )
        input_text: Callable[[Turn], str] = _plain_input
        memory = None
        if spec.models[0] != SHELL:
            input_text = _framed_input
            memory = await self._memories.of_turn(turn, claim.conversation) if self._memories else None
            notes = await memory.notes_for(turn.input) if memory else ""
            spec = replace(spec, instructions=with_notes(spec.instructions, notes))
        environments = await self._environment_resolver.resolve_all(
            claim.agent, turn.conversation, person=turn.asker, revision=claim.conversation.revision
        )
        environment = next(iter(environments.values()))
        attempt.set_environments(environments, environment)
        attempt.set_file_saver(partial(save_files, self._environment_resolver, environments.values(), turn))
        attachments = await self._attachments.fetch(
            turn, environment, claim.approvals, has_incoming=claim.has_incoming
        )
        context = await self._tool_context(claim, environments, memory)
        external = await stack.enter_async_context(self._open_external_tools(context))
        spec = replace(spec, instructions=external.add_notes(spec.instructions))
        input_text = external.with_prompt(turn, input_text)
        attempt.set_input_text(input_text)
        tools = ToolExecutor(
            context,
            begin=attempt.begin,
            check=attempt.ensure_held,
            allowed=agent_config(claim.agent).tool_names,
            show_step=attempt.show_step,
            external=external.tools,
            hooks=external.hooks,
            answer_files=attachments.answers,
        )
        attempt.set_tools(tools)
        if spec.models[0] != SHELL and turn.origin is not None:
            spec = _in_room(claim, spec, turn.origin, environments, tools)
        if await attempt.renew_approvals(claim.approvals):
            return
        request = ClientRequest.parse(turn.request)
        turn_input = TurnInput(
            turn=turn.id,
            conversation=turn.conversation,
            attempt=turn.attempt,
            trigger=input_trigger(turn),
            input=input_text(turn),
            agent=spec,
            history=claim.history.get_entries(),
            checkpoint=turn.paused,
            decisions=claim.decisions,
            read_steering=attempt.take_steering,
            attachment_lines=attachments.lines,
            images=attachments.images,
            answer_images=attachments.answer_images,
            output_format=request.format_for(spec),
            required_tool=request.required_tool,
            required_after=request.required_after,
            client_tools=frozenset(request.tools_by_name),
            single_calls=request.single_calls,
        )
        collect = partial(self._file_collector.collect, turn, environment)
        for one in environments.values():
            use = self._environment_resolver.in_use(one, changed=turn.trigger == "job")
            await stack.enter_async_context(use)
        await attempt.run(
            external.hooks.wrap(self._get_agent(spec, claim.conversation)), turn_input, tools, collect
        )

    async def _tool_context(
        self, claim: ClaimedTurn, environments: Mapping[str, Environment], memory: TurnMemory | None
    ) -> ToolContext:
        return ToolContext(
            turn=claim.turn,
            environment=next(iter(environments.values())),
            environment_resolver=self._environment_resolver,
            jobs=self._jobs,
            files=self._file_collector,
            schedules=self._schedules,
            memory=memory,
            agent=claim.agent,
            agent_files=self._agent_files,
            skills=await self._agent_files.list_skills(claim.turn.account, claim.conversation.revision),
            environments=environments,
            interruption=claim.interruption,
            publish_transient=partial(self._stream.publish_transient, account=claim.turn.account),
        )

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


def _in_room(
    claim: ClaimedTurn,
    spec: AgentSpec,
    origin: Mapping[str, Any],
    environments: Mapping[str, Environment],
    tools: ToolExecutor,
) -> AgentSpec:
    """Return the spec with instructions that say in which room the agent is."""
    place = RoomPlace(
        agent=claim.agent.name,
        platform=str(origin.get("platform", "")),
        room=str(origin.get("room", "")),
        workspaces=[name for name, one in environments.items() if name and one.workspace],
        tools=[tool.name for tool in tools.list()],
    )
    prompt = agent_config(claim.agent).room_prompt
    return replace(spec, instructions=with_room_prompt(spec.instructions, prompt, place))


def _plain_input(turn: Turn) -> str:
    return turn.input


def _framed_input(turn: Turn) -> str:
    """Return a turn's input with its context, and with its author if it was written in a room."""
    return frame_message(turn.id, turn.origin, turn.input, turn.context)


def _is_temporary(error: Exception) -> bool:
    return error.retryable if isinstance(error, AgentError) else getattr(error, "remedy", "") == "retry"

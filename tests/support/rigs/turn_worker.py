"""A turn worker on a real database, without a gateway, a model or a sandbox provider around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

from channels.port import ChannelLimits
from delivery.broker.leases.memory_leases import MemoryLeases
from delivery.broker.memory_events import MemoryEvents
from delivery.broker.port import WorkQueue
from delivery.broker.wake_ups import MemoryWakeUps
from delivery.database.engine import Database
from delivery.deliveries.router import Router
from delivery.deliveries.transactions import Transactions
from delivery.events import outbox
from delivery.events.event import new_id
from delivery.events.relay import Relay
from gateway.accounts import api_keys
from gateway.accounts.vault import Vault, open_vault
from gateway.agents.port import Agent
from gateway.config.file_settings import FileSettings
from gateway.environments.agent_files import AgentFiles
from gateway.environments.resolver import EnvironmentResolver
from gateway.environments.workspaces import directory_workspaces
from gateway.files.attachments import AttachmentFetcher
from gateway.files.collection import FileCollector
from gateway.files.signed_links import SignedLinks
from gateway.files.storage.blob_store import DirectoryBlobStore
from gateway.files.storage.file_store import FileStore
from gateway.files.storage.storage_quota import StorageQuota
from gateway.files.turn_trees import TurnTrees
from gateway.jobs.jobs import Jobs
from gateway.jobs.settlement import JobSettlement
from gateway.memory.memories import Memories, MemorySettings, TurnMemory
from gateway.observability.metrics import Metrics
from gateway.records.records import Records
from gateway.schedules.schedules import Schedules, ScheduleSettings
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.conversations.conversations import Conversation
from gateway.store.turn_state import TurnState
from gateway.store.turns import claims, turns
from gateway.store.turns.turns import Turn
from gateway.tools.executor import ToolExecutor
from gateway.tools.external_tools import ExternalTools, OpenExternalTools, no_external_tools
from gateway.tools.tool import ToolContext
from gateway.turns.agent_runner import AgentRunner
from gateway.turns.worker import TurnWorker


def _no_checkpoint(_name: str) -> None:
    """Pass a fault point."""


@dataclass(kw_only=True)
class TurnWorkerHarness:
    """The parts that run turns, and one account with one agent and one conversation."""

    database: Database
    directory: Path
    agent: Record
    conversation: str
    leases: MemoryLeases = field(default_factory=MemoryLeases)
    wake_ups: MemoryWakeUps = field(default_factory=MemoryWakeUps)
    stream: MemoryEvents = field(default_factory=MemoryEvents)
    open_external_tools: OpenExternalTools = no_external_tools

    def __post_init__(self) -> None:
        """Put the parts together."""
        relay = Relay(self.database, self.stream, _no_checkpoint)
        self.relay = relay
        router = Router(lambda _channel: ChannelLimits(text=4000))
        self.transactions = Transactions(self.database, relay, router, self.wake_ups, _no_checkpoint)
        self.vault = open_vault(self.directory)
        self.environment_resolver = EnvironmentResolver(
            self.database,
            Records(self.vault),
            {},
            workspaces=directory_workspaces(
                self.directory / "workspaces", baselines=self.directory / "baselines", limit=1_000_000
            ),
            host_account=None,
            installation="test",
            missing_runtimes={},
        )
        blobs = DirectoryBlobStore(self.directory / "files")
        file_store = FileStore(self.database, blobs, retention=timedelta(days=1))
        self.file_collector = FileCollector(
            transactions=self.transactions,
            environment_resolver=self.environment_resolver,
            file_store=file_store,
            links=SignedLinks(keys=[b"key"]),
            trees=TurnTrees(self.database, self.environment_resolver.workspaces, file_store, limit=1_000_000),
            settings=FileSettings(),
            checkpoint=_no_checkpoint,
        )
        self.attachments = AttachmentFetcher(
            transactions=self.transactions,
            environment_resolver=self.environment_resolver,
            file_store=file_store,
            find=lambda _channel: None,
            settings=FileSettings(),
            checkpoint=_no_checkpoint,
        )
        self.settlement = JobSettlement(
            self.transactions, self.environment_resolver, file_collector=self.file_collector
        )
        self.jobs = Jobs(
            self.transactions,
            self.environment_resolver,
            self.vault,
            _no_checkpoint,
            settlement=self.settlement,
        )

    def worker(self, agent: Agent) -> TurnWorker:
        """Return a worker in which this agent answers every turn."""
        agent_runner = AgentRunner(
            stream=self.stream,
            environment_resolver=self.environment_resolver,
            jobs=self.jobs,
            attachments=self.attachments,
            file_collector=self.file_collector,
            agent_files=AgentFiles(self.database, self.environment_resolver),
            schedules=Schedules(self.database, ScheduleSettings()),
            memories=memories_of(self.database),
            get_agent=lambda _spec, _claimed: agent,
            open_external_tools=self.open_external_tools,
        )
        return TurnWorker(
            transactions=self.transactions,
            leases=self.leases,
            wake_ups=self.wake_ups,
            stream=self.stream,
            agent_runner=agent_runner,
            file_collector=self.file_collector,
            worker_id="here",
        )

    @asynccontextmanager
    async def running(self, agent: Agent) -> AsyncIterator[TurnWorker]:
        """Run turns until the block ends."""
        stop, worker = asyncio.Event(), self.worker(agent)
        async with asyncio.TaskGroup() as group:
            group.create_task(worker.run(stop))
            group.create_task(self.transactions.run(stop))
            try:
                yield worker
            finally:
                stop.set()

    async def add_turn(self, text: str = "hello", *, running: bool = False, trigger: str = "message") -> Turn:
        """Queue a turn in the conversation; `running` claims it, as a worker that died since did."""
        turn = Turn(
            id=new_id("trn"),
            account=self.agent.account,
            conversation=self.conversation,
            agent=self.agent.id,
            trigger=trigger,
            input=text,
            created_at=datetime.now(UTC),
        )
        async with self.database.begin() as connection:
            await turns.insert_turn(connection, turn)
            if running:
                fence = await conversations.raise_fence(connection, self.conversation)
                await turns.claim(connection, turn, fence=fence, worker_id="dead", crashes=0)
        return turn

    async def wake(self) -> None:
        """Have the worker check the conversation."""
        await self.wake_ups.publish(WorkQueue.TURN, self.conversation, account=self.agent.account)

    async def wait_for_state(self, turn: Turn, *states: TurnState) -> Turn:
        """Wait until a turn is in one of these states, and return it."""
        async with asyncio.timeout(20):
            while True:
                async with self.database.read() as connection:
                    found = await turns.get(connection, turn.account, turn.id)
                if found is not None and found.state in states:
                    return found
                await asyncio.sleep(0.01)

    async def tool_context(self, turn: Turn, memory: TurnMemory | None = None) -> ToolContext:
        """Return the context of a turn's tools."""
        environment = await self.environment_resolver.resolve(self.agent, turn.conversation)
        return ToolContext(
            turn=turn,
            environment=environment,
            environment_resolver=self.environment_resolver,
            jobs=self.jobs,
            files=self.file_collector,
            memory=memory,
            schedules=Schedules(self.database, ScheduleSettings()),
        )

    async def tools(self, turn: Turn, memory: TurnMemory | None = None) -> ToolExecutor:
        """Return the tools of an attempt at a turn; every write of theirs is a plain transaction."""
        context = await self.tool_context(turn, memory)
        return ToolExecutor(context, begin=self.transactions.begin, check=lambda: None, allowed=None)

    @asynccontextmanager
    async def open_tools(
        self, open_external: OpenExternalTools, turn: Turn | None = None
    ) -> AsyncIterator[tuple[ToolExecutor, ExternalTools]]:
        """Open the tools of an attempt at a turn, with further ones; every write is a plain transaction."""
        turn = turn or await self.add_turn(running=True)
        context = replace(await self.tool_context(turn), agent=self.agent)
        async with open_external(context) as external:
            yield (
                ToolExecutor(
                    context,
                    begin=self.transactions.begin,
                    check=lambda: None,
                    allowed=None,
                    external=external.tools,
                ),
                external,
            )


def memories_of(
    database: Database, *, limit: int = 100, context_bytes: int = 4000, stored: int = 0
) -> Memories:
    """Return the notes with limits; `stored` bytes may be stored, 0: any number."""

    async def count(_account: str) -> int:
        return 0

    quota = StorageQuota(count, Metrics(), limit=stored)
    return Memories(database, quota, MemorySettings(limit=limit, context_bytes=context_bytes))


async def memory_of(memories: Memories, database: Database, turn: Turn) -> TurnMemory:
    """Return the notes of a turn, as the claim would in an account with notes."""
    async with database.read() as connection:
        claimed = await claims.read(connection, turn.conversation)
    assert claimed is not None
    return await memories.of_turn(turn, replace(claimed, has_memories=True))


async def open_turn_worker(database: Database, directory: Path, **config: object) -> TurnWorkerHarness:
    """Create an account with one agent of this config and one conversation."""
    async with database.begin() as connection:
        account, _key = await api_keys.create_account(connection, "one")
        saved = await Records(cast("Vault", None)).create(
            connection, account.id, "agent", name="ada", config=config
        )
        conversation = Conversation(
            id=new_id("cnv"), account=account.id, agent=saved.record.id, created_at=datetime.now(UTC)
        )
        await conversations.insert_conversation(connection, conversation)
        await outbox.create_stream(
            connection, conversation=conversation.id, account=account.id, agent=saved.record.id
        )
    return TurnWorkerHarness(
        database=database, directory=directory, agent=saved.record, conversation=conversation.id
    )


async def add_sandbox_record(
    database: Database, account: str, *, name: str = "box", **config: object
) -> Record:
    """Add a sandbox record to an account."""
    async with database.begin() as connection:
        saved = await Records(cast("Vault", None)).create(
            connection, account, "sandbox", name=name, config=config
        )
    return saved.record

"""The workbench: which sandbox an agent works in, and how to get hold of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from delivery.database.engine import Connection, Database
from gateway.environments.stored_workspace import NO_SANDBOX, StoredFiles
from gateway.environments.workspaces import Workspaces
from gateway.records.agent import WorkspaceUse, agent_config
from gateway.records.kinds import WorkspaceConfig
from gateway.records.records import Book
from gateway.store import sandboxes
from gateway.store.accounts import records
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.turns.jobs import Job
from sandbox import registry
from sandbox.config import SandboxConfig
from sandbox.errors import Busy, Refused, SandboxError
from sandbox.labels import Owner, Scope, digest, label_of, namespace, scope_of
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation, Wanted
from sandbox.lifecycle.reserved_sandbox import ReservedSandbox
from sandbox.lifecycle.teardown import Endings
from sandbox.model import Network, SandboxId, Spec
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)

KEEP_ALIVE = 30.0
"""Seconds between signs that a sandbox is still needed while a model thinks."""
LONGEST_PERSON = 200
JOB_PATIENCE = 60.0
"""Seconds that the end of a job waits for its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where an agent's commands run: the sandbox's config, its spec, and whose it is.

    `files_only`: there is no sandbox on it, the workspace's files are read from the store. `lacks` are the
    contract's runtimes that are known to be missing there.
    """

    config: SandboxConfig
    spec: Spec
    owner: Owner
    files_only: bool = False
    lacks: Sequence[str] = ()

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self.config.provider

    @property
    def sandbox_record(self) -> str | None:
        """The id of the sandbox record."""
        return self.owner.record

    @property
    def workspace(self) -> str | None:
        """The id of the workspace."""
        return self.owner.workspace

    @property
    def wanted(self) -> Wanted:
        """What the pool is asked for."""
        return Wanted(
            spec=self.spec, owner=self.owner, provider=self.provider, snapshots=self.config.snapshot
        )


class Workbench:
    """Finds benches and opens their sandboxes, one pool a provider.

    `resident` is the one account that may use providers on this machine; None: every account may.
    """

    def __init__(
        self,
        database: Database,
        book: Book,
        pools: Mapping[str, Pool],
        *,
        workspaces: Workspaces,
        resident: str | None,
        installation: str,
        lacking: Mapping[str, Sequence[str]],
    ) -> None:
        self._database = database
        self._book = book
        self._pools = pools
        self.workspaces = workspaces
        self._resident = resident
        self._installation = installation
        self._lacking = lacking

    async def bench(self, agent: Record, conversation: str, *, person: str = "") -> Bench:
        """Return the bench of an agent in a conversation, for who asks: that of its first workspace."""
        return next(iter((await self.benches(agent, conversation, person=person)).values()))

    async def benches(self, agent: Record, conversation: str, *, person: str = "") -> Mapping[str, Bench]:
        """Return the benches of an agent by the names of its workspaces, its first one first."""
        config = agent_config(agent)
        async with self._database.read() as connection:
            owner = Owner(
                account=agent.account,
                scope=Scope.SESSION,
                conversation=conversation,
                agent=agent.id,
                person=await _known_as(connection, conversation, person),
            )
            found = [
                (use.name if use else "", await self._placed(connection, owner, use, config.sandbox))
                for use in config.workspaces or (None,)
            ]
        return dict(found)

    async def _placed(
        self, connection: Connection, owner: Owner, use: WorkspaceUse | None, otherwise: str | None
    ) -> Bench:
        """Return the bench of one use of a workspace, or of an agent without any."""
        account, wanted = owner.account, (use.sandbox if use else None) or otherwise
        workspace = await _maybe(connection, account, "workspace", use.workspace if use else None)
        sandbox = await _maybe(connection, account, "sandbox", wanted)
        bench = self._assemble(
            replace(owner, workspace=workspace.id if workspace else None),
            sandbox=sandbox,
            read_only=(use.read_only if use else False) or _is_read_only(workspace),
        )
        none = use is not None and "sandbox" in use.model_fields_set and use.sandbox is None
        return replace(bench, files_only=none and bench.spec.workspace is not None)

    def directory(self, account: str, workspace: str) -> Path:
        """Return the directory that is mounted for a workspace, made when new."""
        return self.workspaces.directory(namespace(account, workspace))

    async def sandbox(self, bench: Bench) -> ReservedSandbox:
        """Return the bench's sandbox; it is found, woken or made when it is first used. Raises Refused."""
        if bench.files_only:
            raise Refused(NO_SANDBOX)
        return ReservedSandbox(self._pool(bench.provider), bench.wanted)

    async def files(self, bench: Bench) -> Sandbox:
        """Return what the bench's files are read through: its sandbox, or the store. Raises Refused."""
        if bench.files_only and bench.spec.workspace is not None:
            return StoredFiles(self.workspaces.store, bench.spec.namespace, bench.spec.mount)
        return await self.sandbox(bench)

    async def awake(self, bench: Bench) -> ReservedSandbox:
        """Return the bench's sandbox with its machine found, so that its id is known; raises SandboxError."""
        sandbox = await self.sandbox(bench)
        await sandbox.wake()
        return sandbox

    @asynccontextmanager
    async def attended(self, bench: Bench, *, changed: bool) -> AsyncIterator[None]:
        """Keep the sandbox of a turn awake while the model thinks; afterwards keep what changed in it.

        `changed`: a job has worked in it since. One that is not reserved is let go of.
        """
        pool = self._pools.get(bench.provider)
        if pool is None:
            yield
            return
        pool.begin(bench.spec.label)
        async with pool.attended(bench.wanted, every=KEEP_ALIVE):
            yield
        try:
            await pool.bring_back(bench.wanted)
            await self._settle(pool, bench, changed=changed)
        except Busy:
            log.debug("workbench.in_use", label=bench.spec.label)
        except (SandboxError, OSError) as error:
            log.warning("workbench.not_settled", label=bench.spec.label, error=str(error))

    async def _settle(self, pool: Pool, bench: Bench, *, changed: bool) -> None:
        if bench.spec.persistent:
            await pool.save(bench.wanted, changed=changed)
        elif pool.held(bench.spec.label) is not None and not await self._is_working(pool, bench):
            await Endings(pool.stand, pool.evict).delete(bench.spec.label, why="done")

    async def _is_working(self, pool: Pool, bench: Bench) -> bool:
        row = await pool.stand.register.find(bench.spec.label)
        if row is None:
            return False
        async with self._database.read() as connection:
            return bool(await sandboxes.jobs_running_in(connection, row))

    async def sandbox_of(self, job: Job) -> Sandbox:
        """Return the sandbox a job runs in, as it is; raises Gone and other SandboxErrors."""
        bench = await self._bench_of_job(job)
        return await self._pool(job.provider).reach(SandboxId(job.sandbox), bench.spec)

    async def bring_back(self, job: Job) -> None:
        """Have the workspace store hold what a job that has ended wrote; what fails is tried with a turn."""
        try:
            bench = await self._bench_of_job(job)
            pool = self._pool(job.provider)
            if pool.stand.carrier is not None and bench.workspace is not None:
                async with asyncio.timeout(JOB_PATIENCE):
                    sandbox = await pool.reach(SandboxId(job.sandbox), bench.spec)
                    await pool.carry(sandbox, bench.spec)
        except (SandboxError, OSError) as error:
            log.warning("workbench.job_not_carried", job=job.id, error=str(error))

    async def _bench_of_job(self, job: Job) -> Bench:
        async with self._database.read() as connection:
            sandbox = await _maybe(connection, job.account, "sandbox", job.sandbox_record)
            workspace = await _maybe(connection, job.account, "workspace", job.workspace)
            person = await _known_as(connection, job.conversation, job.asker)
        return self._assemble(
            Owner(
                account=job.account,
                scope=Scope.SESSION,
                conversation=job.conversation,
                agent=job.agent,
                person=person,
                workspace=job.workspace,
            ),
            sandbox=sandbox,
            read_only=_is_read_only(workspace),
        )

    async def bench_of(self, row: Reservation) -> Bench | None:
        """Return the bench a reserved sandbox belongs to, None when its record or workspace is gone."""
        async with self._database.read() as connection:
            sandbox = await _maybe(connection, row.owner.account, "sandbox", row.owner.record)
            workspace = await _maybe(connection, row.owner.account, "workspace", row.owner.workspace)
        if (row.owner.record and sandbox is None) or (row.owner.workspace and workspace is None):
            return None
        bench = self._assemble(row.owner, sandbox=sandbox, read_only=_is_read_only(workspace))
        return replace(bench, spec=replace(bench.spec, label=row.label))

    def _pool(self, provider: str) -> Pool:
        try:
            return self._pools[provider]
        except KeyError:
            raise Refused(
                f"sandbox provider {provider!r} is not open here; open: {', '.join(self._pools) or 'none'}"
            ) from None

    def _check_sharing(self, account: str, provider: str) -> None:
        """Let only the resident account run on this machine, unless the operator lets it be shared."""
        plugin = registry.installed().get(provider)
        if self._resident in (None, account) or plugin is None or not plugin.on_this_machine:
            return
        raise Refused(
            f"commands of further accounts may not run on this machine (provider {provider!r}); "
            "the operator can allow it with --allow-shared-host, or the sandbox can name another provider"
        )

    def _assemble(self, owner: Owner, *, sandbox: Record | None, read_only: bool) -> Bench:
        """Return the bench of an owner; its scope is what the sandbox's config says."""
        config = self._book.sandbox_config(sandbox)
        self._check_sharing(owner.account, config.provider)
        isolation = config.isolation if config.persistent else Scope.SESSION
        scope = scope_of(isolation, workspace=owner.workspace, person=owner.person)
        owner = replace(owner, scope=scope, record=sandbox.id if sandbox else None)
        workspace = owner.workspace
        spec = Spec(
            label=label_of(self._installation, config.provider, owner, persistent=config.persistent),
            namespace=namespace(owner.account, workspace or owner.conversation),
            workspace=self.directory(owner.account, workspace) if workspace else None,
            read_only=read_only,
            network=Network(config.network.mode),
            allow_domains=config.network.allow_domains,
            allow_cidrs=config.network.allow_cidrs,
            memory_mb=config.memory_limit,
            cpus=config.options.cpu or 1.0,
            env=config.env_vars,
            persistent=config.persistent,
            idle_timeout=float(config.lifecycle.idle_timeout),
            max_lifetime=float(config.lifecycle.max_lifetime),
            services_rest=not config.lifecycle.keep_awake,
            options={name: value for name, value in config.options.model_dump().items() if value is not None},
        )
        lacks = self._lacking.get(config.provider, ())
        return Bench(config=config, spec=spec, owner=owner, lacks=lacks)


def _is_read_only(workspace: Record | None) -> bool:
    return workspace is not None and WorkspaceConfig.model_validate(workspace.config).read_only


async def _known_as(connection: Connection, conversation: str, asker: str) -> str:
    """Return whom an id names: the people of one platform are told from those of another, and from keys."""
    talk = await conversations.by_id(connection, conversation) if asker else None
    if talk is None or talk.channel is None:
        return asker
    channel = await records.by_id(connection, talk.channel)
    name = f"{channel.config['kind'] if channel else talk.channel}:{asker}"
    return name if len(name) <= LONGEST_PERSON else digest("person", name)


async def _maybe(
    connection: Connection, account: str, kind: records.Kind, wanted: str | None
) -> Record | None:
    return await records.find(connection, account, kind, wanted) if wanted else None

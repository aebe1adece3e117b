"""Resolve the environment an agent works in, and open its sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from delivery.database.engine import Connection, Database
from gateway.accounts.account_reader import AccountCache, AccountReader
from gateway.accounts.persons import platform_of
from gateway.accounts.view_links import ViewLinks
from gateway.environments.environment import Environment
from gateway.environments.isolation import agent_of, owner_of_job, scope_for
from gateway.environments.job_replicas import ANY_REPLICA, JobReplicas
from gateway.environments.stored_workspace import NO_SANDBOX, StoredWorkspace
from gateway.environments.workspaces import Workspaces
from gateway.records.agent import WorkspaceUse, agent_config
from gateway.records.kinds import WorkspaceConfig
from gateway.records.parsed_configs import ParsedConfigs
from gateway.records.records import Records
from gateway.records.rules.workspace_rules import READER_IN_EXTERNAL
from gateway.store import sandboxes
from gateway.store.accounts.records import Record
from gateway.store.conversations import conversations
from gateway.store.turns.jobs import Job
from sandbox import registry
from sandbox.errors import ProviderRefused, SandboxBusy, SandboxError, SandboxGone
from sandbox.labels import Owner, Scope, key_of, namespace, sandbox_label
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reservations import Reservation, SandboxRequest
from sandbox.lifecycle.reserved_sandbox import ReservedSandbox
from sandbox.lifecycle.teardown import Teardown
from sandbox.model import DEFAULT_PIDS, Network, SandboxId, SandboxSpec
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)

KEEP_ALIVE_SECONDS = 30.0
"""Seconds between keep-alive calls to a sandbox while a model runs."""
MAX_PERSON_LENGTH = 200
SCREEN_PIDS = 1024
"""Processes and threads of a sandbox with a browser."""
JOB_SYNC_TIMEOUT = 60.0
"""Seconds that the end of a job waits for its files to be synced."""
MAX_CACHED_PLATFORMS = 10_000
"""Conversations whose platform is kept in memory."""
MAX_CACHED_ENVIRONMENTS = 1_000
"""People of conversations whose environments are kept while the revision of their account is the same."""
_WORKSPACES = ParsedConfigs(WorkspaceConfig)


class EnvironmentResolver:
    """Resolves environments and opens their sandboxes; there is one pool per provider.

    `host_account` is the only account that may use providers on this machine; None: every account may.
    """

    def __init__(
        self,
        database: Database,
        records: Records,
        pools: Mapping[str, Pool],
        *,
        workspaces: Workspaces,
        host_account: str | None,
        installation: str,
        missing_runtimes: Mapping[str, Sequence[str]],
        job_replicas: JobReplicas = ANY_REPLICA,
    ) -> None:
        self.job_replicas = job_replicas
        self._database = database
        self._records = records
        self._pools = pools
        self.workspaces = workspaces
        self._host_account = host_account
        self._installation = installation
        self._missing_runtimes = missing_runtimes
        self._platforms: dict[str, str | None] = {}
        self._cache = AccountCache()
        self._environments = AccountCache(MAX_CACHED_ENVIRONMENTS)
        self.view_links: ViewLinks | None = None

    async def resolve(self, agent: Record, conversation: str, *, person: str = "") -> Environment:
        """Return the environment of an agent's first workspace in a conversation, for the person who asks."""
        return next(iter((await self.resolve_all(agent, conversation, person=person)).values()))

    async def resolve_all(
        self, agent: Record, conversation: str, *, person: str = "", revision: int | None = None
    ) -> Mapping[str, Environment]:
        """Return the environments of an agent by the names of its workspaces, in the order of its config.

        `revision`: see `AccountReader`.
        """
        load = partial(self._load_all, agent, conversation, person, revision)
        if revision is None:
            return await load()
        key = (agent.account, agent.id, conversation, person)
        found = await self._environments.get(key, revision, load)
        for environment in found.values():
            if environment.workspace is not None:  # its directory may have been deleted since
                self.directory(agent.account, environment.workspace)
        return found

    async def _load_all(
        self, agent: Record, conversation: str, person: str, revision: int | None
    ) -> Mapping[str, Environment]:
        config = agent_config(agent)
        async with self._database.read() as connection:
            reader = AccountReader(connection, agent.account, self._cache, revision)
            owner = Owner(
                account=agent.account,
                scope=Scope.SESSION,
                conversation=conversation,
                agent=agent.id,
                person=await self._person_key(reader, conversation, person),
            )
            found = [
                (use.name if use else "", await self._resolve_use(reader, owner, use, config.sandbox))
                for use in config.workspaces or (None,)
            ]
        return dict(found)

    async def _resolve_use(
        self, reader: AccountReader, owner: Owner, use: WorkspaceUse | None, default_sandbox: str | None
    ) -> Environment:
        """Return the environment of one workspace of an agent, or of an agent without a workspace."""
        account, sandbox_name = owner.account, (use.sandbox if use else None) or default_sandbox
        connection = reader.connection
        workspace = await reader.get_record("workspace", use.workspace if use else None)
        sandbox = await reader.get_record("sandbox", sandbox_name)
        await self._check_ceilings(connection, account, sandbox)
        owner = replace(owner, workspace=workspace.id if workspace else None)
        scope = await scope_for(connection, owner, self._records.sandbox_config(sandbox))
        environment = self._assemble(
            replace(owner, scope=scope),
            sandbox=sandbox,
            read_only=(use.read_only if use else False) or _is_read_only(workspace),
        )
        is_null = use is not None and "sandbox" in use.model_fields_set and use.sandbox is None
        files_only = (is_null or sandbox_name is None) and workspace is not None
        if use is not None and use.read_only and environment.spec.external and not files_only:
            raise ProviderRefused(READER_IN_EXTERNAL)  # the record is older than the rule
        return replace(environment, files_only=files_only)

    def directory(self, account: str, workspace: str) -> Path:
        """Return the directory that is mounted for a workspace; creates it when it is missing."""
        return self.workspaces.directory(namespace(account, workspace))

    async def sandbox(self, environment: Environment) -> ReservedSandbox:
        """Return the environment's sandbox, which is created or resumed by its first use.

        Raises ProviderRefused.
        """
        if environment.files_only:
            raise ProviderRefused(NO_SANDBOX)
        return ReservedSandbox(self._pool(environment.provider), environment.request)

    async def files(self, environment: Environment) -> Sandbox:
        """Return the sandbox or the store that files are read from; raises ProviderRefused."""
        if environment.files_only and environment.spec.workspace is not None:
            return StoredWorkspace(self.workspaces.store, environment.spec.namespace, environment.spec.mount)
        return await self.sandbox(environment)

    async def present_files(self, environment: Environment) -> Sandbox | None:
        """Return where files can be read without starting a sandbox: the open one, else the store."""
        pool = self._pools.get(environment.provider)
        is_open = pool is not None and pool.get_open(environment.spec.label) is not None
        if is_open and not environment.files_only:
            return await self.sandbox(environment)
        if environment.spec.workspace is None:
            return None
        return StoredWorkspace(self.workspaces.store, environment.spec.namespace, environment.spec.mount)

    async def wake(self, environment: Environment) -> ReservedSandbox:
        """Return the environment's sandbox with its instance running, so that its id is known.

        Raises SandboxError.
        """
        sandbox = await self.sandbox(environment)
        await sandbox.wake()
        return sandbox

    @asynccontextmanager
    async def in_use(self, environment: Environment, *, changed: bool) -> AsyncIterator[None]:
        """Keep the sandbox of a turn awake while the model runs; afterwards save the changes in it.

        `changed`: a job has worked in it. A sandbox that is not reserved is deleted.
        """
        pool = self._pools.get(environment.provider)
        if pool is None:
            yield
            return
        pool.mark_stale(environment.spec.label)
        async with pool.keep_alive(environment.request, interval=KEEP_ALIVE_SECONDS):
            yield
        try:
            await pool.sync_back(environment.request)
            await self._save_or_delete(pool, environment, changed=changed)
        except SandboxBusy:
            log.debug("environment.in_use", label=environment.spec.label)
        except (SandboxError, OSError) as error:
            log.warning("environment.save_failed", label=environment.spec.label, error=str(error))

    async def save_files(self, environment: Environment, *, recovered: bool) -> None:
        """Sync the sandbox's files into the workspace store, if it was used since; raises SandboxError.

        `recovered`: an earlier process may have used a remote sandbox and not have synced it.
        """
        pool = self._pools.get(environment.provider)
        spec = environment.spec
        if pool is None or pool.backend.sync_of(spec) is None or spec.workspace is None:
            return
        if not recovered or registry.mounts_workspace(environment.provider, external=spec.external):
            await pool.sync_back(environment.request)
            return
        row = await pool.backend.reservations.get(environment.spec.label)
        if row is None or row.sandbox is None:
            return
        try:
            sandbox = await pool.connect(row.sandbox, environment.spec)
            await pool.sync(sandbox, environment.spec)
        except SandboxGone:
            log.warning("environment.files_lost", label=environment.spec.label)

    async def _save_or_delete(self, pool: Pool, environment: Environment, *, changed: bool) -> None:
        if environment.spec.persistent:
            pool.plan_snapshot(environment.request, changed=changed)
        elif pool.get_open(environment.spec.label) is not None and not await self._has_running_jobs(
            pool, environment
        ):
            await Teardown(pool.backend, pool.evict).delete(environment.spec.label, reason="done")

    async def _has_running_jobs(self, pool: Pool, environment: Environment) -> bool:
        row = await pool.backend.reservations.get(environment.spec.label)
        if row is None:
            return False
        async with self._database.read() as connection:
            return bool(await sandboxes.list_running_jobs(connection, row))

    async def sandbox_of_job(self, job: Job) -> Sandbox:
        """Return the sandbox a job runs in, without creating it; raises RunsElsewhere, SandboxError."""
        self.job_replicas.check(job)
        return await self.local_sandbox_of_job(job)

    async def local_sandbox_of_job(self, job: Job) -> Sandbox:
        """Return what this machine has of a job's sandbox, whichever replica runs it; raises SandboxError."""
        environment = await self._for_job(job)
        return await self._pool(job.provider).connect(SandboxId(job.sandbox), environment.spec)

    async def sync_job_files(self, job: Job) -> None:
        """Sync the files of an ended job into the workspace store; the next turn retries a failure."""
        try:
            environment = await self._for_job(job)
            pool = self._pool(job.provider)
            if pool.backend.sync_of(environment.spec) is not None and environment.workspace is not None:
                async with asyncio.timeout(JOB_SYNC_TIMEOUT):
                    sandbox = await pool.connect(SandboxId(job.sandbox), environment.spec)
                    await pool.sync(sandbox, environment.spec)
        except (SandboxError, OSError) as error:
            log.warning("environment.job_sync_failed", job=job.id, error=str(error))

    async def _for_job(self, job: Job) -> Environment:
        async with self._database.read() as connection:
            reader = AccountReader(connection, job.account, self._cache)
            sandbox = await reader.get_record("sandbox", job.sandbox_record)
            workspace = await reader.get_record("workspace", job.workspace)
            row = await sandboxes.get_by_sandbox(connection, job.provider, job.sandbox)
            person = row.owner.person if row is not None else ""  # as it was when the job began
            if not person:
                person = await self._person_key(reader, job.conversation, job.asker)
            owner = owner_of_job(job, person)
            config = self._records.sandbox_config(sandbox)
            scope = row.owner.scope if row is not None else await scope_for(connection, owner, config)
        return self._assemble(
            replace(owner, scope=scope),
            sandbox=sandbox,
            read_only=_is_read_only(workspace) or row is None or self.is_read_only(row),
        )

    def is_read_only(self, row: Reservation) -> bool:
        """Return whether the sandbox of a reservation belongs to agents that only read the workspace."""
        return row.label == sandbox_label(
            self._installation, row.provider, row.owner, persistent=row.persistent, read_only=True
        )

    async def for_reservation(self, row: Reservation) -> Environment | None:
        """Return the environment of a reservation; None when its record or workspace is deleted."""
        async with self._database.read() as connection:
            reader = AccountReader(connection, row.owner.account, self._cache)
            sandbox = await reader.get_record("sandbox", row.owner.record)
            workspace = await reader.get_record("workspace", row.owner.workspace)
        if (row.owner.record and sandbox is None) or (row.owner.workspace and workspace is None):
            return None
        read_only = _is_read_only(workspace) or self.is_read_only(row)
        environment = self._assemble(row.owner, sandbox=sandbox, read_only=read_only)
        return replace(environment, spec=replace(environment.spec, label=row.label))

    async def request_of(self, row: Reservation) -> SandboxRequest | None:
        """Return the request for the sandbox of a reservation; None when its record is deleted."""
        environment = await self.for_reservation(row)
        return environment.request if environment else None

    def _pool(self, provider: str) -> Pool:
        try:
            return self._pools[provider]
        except KeyError:
            raise ProviderRefused(
                f"sandbox provider {provider!r} is not open here; open: {', '.join(self._pools) or 'none'}"
            ) from None

    async def _check_ceilings(self, connection: Connection, account: str, sandbox: Record | None) -> None:
        """Raise ProviderRefused if the operator does not allow what the record asks for."""
        config = self._records.sandbox_config(sandbox)
        problem = await self._records.ceiling_problem(connection, account, config)
        if problem is not None:
            raise ProviderRefused(f"the sandbox {sandbox.name if sandbox else 'default'!r}: {problem}")

    def _check_sharing(self, account: str, provider: str) -> None:
        """Raise ProviderRefused if an account other than the host account uses this machine."""
        plugin = registry.installed().get(provider)
        if self._host_account in (None, account) or plugin is None or not plugin.on_this_machine:
            return
        raise ProviderRefused(
            f"only one account may run commands on this machine (provider {provider!r}); "
            "start the gateway with --allow-shared-host, or choose another provider for the sandbox"
        )

    async def _person_key(self, reader: AccountReader, conversation: str, asker: str) -> str:
        """Return the key of a person: the same on joined platforms, and distinct from API keys."""
        if not asker:
            return asker
        if conversation not in self._platforms:
            if len(self._platforms) >= MAX_CACHED_PLATFORMS:
                self._platforms.pop(next(iter(self._platforms)))
            talk = await conversations.get_by_id(reader.connection, conversation)
            self._platforms[conversation] = await platform_of(reader.connection, talk)
        platform = self._platforms[conversation]
        if platform is None:
            return asker
        name = await reader.get_subject(platform, asker)
        return name if len(name) <= MAX_PERSON_LENGTH else key_of("person", name)

    def _assemble(self, owner: Owner, *, sandbox: Record | None, read_only: bool) -> Environment:
        """Return the environment of an owner; its scope says who shares the sandbox."""
        config = self._records.sandbox_config(sandbox)
        self._check_sharing(owner.account, config.provider)
        owner = replace(owner, record=sandbox.id if sandbox else None)
        workspace = owner.workspace
        label = sandbox_label(
            self._installation,
            config.provider,
            owner,
            persistent=config.persistent,
            read_only=read_only,
        )
        spec = SandboxSpec(
            label=label,
            namespace=owner.namespace,
            account=owner.account,
            agent=agent_of(owner),
            workspace=self.directory(owner.account, workspace) if workspace else None,
            read_only=read_only,
            network=Network(config.network.mode),
            allow_domains=config.network.allow_domains,
            allow_cidrs=config.network.allow_cidrs,
            memory_mb=config.memory_limit,
            pids=SCREEN_PIDS if config.screens else DEFAULT_PIDS,
            cpus=config.options.cpu or 1.0,
            env=config.env_vars,
            persistent=config.persistent,
            idle_timeout=float(config.lifecycle.idle_timeout),
            max_lifetime=float(config.lifecycle.max_lifetime),
            services_sleep_with_sandbox=not config.lifecycle.keep_awake,
            mounts=config.bind_mounts,
            external=config.external or "",
            options={name: value for name, value in config.options.model_dump().items() if value is not None},
        )
        missing_runtimes = self._missing_runtimes.get(config.provider, ())
        return Environment(config=config, spec=spec, owner=owner, missing_runtimes=missing_runtimes)


def _is_read_only(workspace: Record | None) -> bool:
    return workspace is not None and _WORKSPACES.get(workspace).read_only

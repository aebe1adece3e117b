"""The workbench: which sandbox an agent works in, and how to get hold of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from delivery.database import Connection, Database
from gateway.records.agent import agent_config
from gateway.records.book import Book
from gateway.records.kinds import WorkspaceConfig
from gateway.store import records
from gateway.store.jobs import Job
from gateway.store.records import Record
from sandbox import registry
from sandbox.config import SandboxConfig
from sandbox.errors import Refused
from sandbox.model import Network, SandboxId, Spec
from sandbox.pool import Pool
from sandbox.port import Sandbox
from sandbox.scope import digest, namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where an agent's commands run: the sandbox's config, its spec, and the records they come from."""

    provider: str
    config: SandboxConfig
    spec: Spec
    sandbox_record: str | None
    workspace: str | None


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
        workspaces: Path,
        resident: str | None,
    ) -> None:
        self._database = database
        self._book = book
        self._pools = pools
        self._workspaces = workspaces
        self._resident = resident

    async def bench(self, agent: Record, conversation: str) -> Bench:
        """Return the bench of an agent in a conversation."""
        config = agent_config(agent)
        use = config.workspaces[0] if config.workspaces else None
        async with self._database.read() as connection:
            workspace = await _maybe(connection, agent.account, "workspace", use.workspace if use else None)
            wanted = (use.sandbox if use else None) or config.sandbox
            sandbox = await _maybe(connection, agent.account, "sandbox", wanted)
        return self._assemble(
            account=agent.account,
            sandbox=sandbox,
            workspace=workspace.id if workspace else None,
            conversation=conversation,
            read_only=(use.read_only if use else False) or _is_read_only(workspace),
        )

    def directory(self, account: str, workspace: str) -> Path:
        """Return the directory of a workspace in the workspace store, made when new."""
        path = self._workspaces / namespace(account, workspace)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    async def sandbox(self, bench: Bench) -> Sandbox:
        """Return the bench's sandbox, alive; raises SandboxError."""
        return await self._pool(bench.provider).acquire(bench.spec)

    async def sandbox_of(self, job: Job) -> Sandbox:
        """Return the sandbox a job runs in; raises SandboxError."""
        async with self._database.read() as connection:
            sandbox = await _maybe(connection, job.account, "sandbox", job.sandbox_record)
        bench = self._assemble(
            account=job.account,
            sandbox=sandbox,
            workspace=job.workspace,
            conversation=job.conversation,
            read_only=False,
        )
        return await self._pool(job.provider).acquire(bench.spec, SandboxId(job.sandbox))

    def _pool(self, provider: str) -> Pool:
        try:
            return self._pools[provider]
        except KeyError:
            raise Refused(
                f"sandbox provider {provider!r} is not open here; open: {', '.join(self._pools) or 'none'}"
            ) from None

    def _check_sharing(self, account: str, provider: str) -> None:
        """Let only the resident account run on this machine, unless the operator lets it be shared."""
        if self._resident in (None, account) or not registry.plugin(provider).on_this_machine:
            return
        raise Refused(
            f"commands of further accounts may not run on this machine (provider {provider!r}); "
            "the operator can allow it with --allow-shared-host, or the sandbox can name another provider"
        )

    def _assemble(
        self,
        *,
        account: str,
        sandbox: Record | None,
        workspace: str | None,
        conversation: str,
        read_only: bool,
    ) -> Bench:
        config = self._book.sandbox_config(sandbox) if sandbox else SandboxConfig()
        self._check_sharing(account, config.provider)
        key = (workspace or conversation, sandbox.id if sandbox else "default")
        spec = Spec(
            label=f"dovecote-{digest('sandbox', account, *key)}",
            namespace=namespace(account, workspace or conversation),
            workspace=self.directory(account, workspace) if workspace else None,
            read_only=read_only,
            network=Network(config.network.mode),
            allow_domains=config.network.allow_domains,
            allow_cidrs=config.network.allow_cidrs,
            memory_mb=config.memory_limit,
            cpus=config.options.cpu or 1.0,
            env=config.env_vars,
            persistent=config.persistent,
            options={name: value for name, value in config.options.model_dump().items() if value is not None},
        )
        return Bench(
            provider=config.provider,
            config=config,
            spec=spec,
            sandbox_record=sandbox.id if sandbox else None,
            workspace=workspace,
        )


def _is_read_only(workspace: Record | None) -> bool:
    return workspace is not None and WorkspaceConfig.model_validate(workspace.config).read_only


async def _maybe(
    connection: Connection, account: str, kind: records.Kind, wanted: str | None
) -> Record | None:
    return await records.find(connection, account, kind, wanted) if wanted else None

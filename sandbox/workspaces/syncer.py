"""Sync a workspace's files between the store and a sandbox that cannot mount it.

The baseline of the last sync is stored for each label, so that a removed file is distinguished from a new
one. A new instance begins empty, whatever the label's earlier instance held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    unblocked_paths,
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
        await self._sync(sandbox, spec, into_sandbox=True)

    async def save(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Copy the changes of a sandbox that ends to the store, which may hold more than the sandbox can get.

        Raises SandboxError.
        """
        await self._sync(sandbox, spec, into_sandbox=False)

    async def _sync(self, sandbox: Sandbox, spec: SandboxSpec, *, into_sandbox: bool) -> None:
        if spec.workspace is None:
            return
        try:
            await self.sync_replicas(
                spec.label,
                SyncBaseline(sandbox=str(sandbox.id)),
                self.store.replica(spec.namespace),
                SandboxReplica(sandbox),
                read_only=spec.read_only,
                into_sandbox=into_sandbox,
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
        self,
        key: str,
        initial: SyncBaseline,
        store: Replica,
        sandbox: Replica,
        *,
        read_only: bool,
        into_sandbox: bool = True,
    ) -> SyncBaseline:
        """Make both replicas equal and return the new baseline; `initial` is that of a new instance.

        Without `into_sandbox` the sandbox is not changed, and the stored baseline stays as it is.
        """
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
        if not into_sandbox:
            todo = replace(todo, put=(), removed_inside=())
        chosen = self._choose(sides, todo)
        put = await _copy_to_sandbox(sides, _early(chosen.put, sides.stored, sides.inside))
        if todo.fetched or todo.removed_stored:
            self._checkpoint("workspace.carry.before_store")
        fetched = await _copy_to_store(sides, _early(chosen.fetched, sides.inside, sides.stored))
        await _remove(sides, todo)
        put |= await _copy_to_sandbox(sides, _late(chosen.put, put, sides.inside, todo.removed_inside))
        fetched |= await _copy_to_store(
            sides, _late(chosen.fetched, fetched, sides.stored, todo.removed_stored)
        )
        if todo.fetched or todo.removed_stored:
            self._checkpoint("workspace.carry.after_store")
        after = _next_baseline(sides, todo, put=put, fetched=fetched)
        if into_sandbox and after != last:
            await sandbox.flush()
            await self.baselines.save(key, after)
        return after

    def _choose(self, pair: ReplicaPair, plan: SyncPlan) -> SyncPlan:
        """Return the plan within the limit: the sandbox gets all or nothing, the store's excess waits."""
        if (size := sum(pair.stored[path].size for path in plan.put)) > self._limit:
            raise ProviderRefused(
                f"the workspace holds {size} bytes that the sandbox lacks, and at most {self._limit} are "
                "synced at a time: remove files over HTTP, or raise sandbox.sync_limit_mb"
            )
        chosen = tuple(fit_within(plan.fetched, pair.inside, limit=self._limit))
        if len(chosen) < len(plan.fetched):
            left = sorted(set(plan.fetched) - set(chosen))
            log.warning("workspace.files_deferred", files=len(left), first=left[0], limit=self._limit)
        return replace(plan, fetched=chosen)


def _early(paths: Sequence[str], source: FileListing, target: FileListing) -> Sequence[str]:
    """Return the files and links that can be written before anything is removed."""
    return list(unblocked_paths((path for path in paths if not source[path].is_directory), target))


def _late(
    paths: Sequence[str], written: dict[str, FileStat], target: FileListing, removed: Sequence[str]
) -> Sequence[str]:
    """Return what is left when files are removed: directories, and what stood in the way of something."""
    left = [path for path in paths if path not in written]
    gone = set(removed)
    return list(
        unblocked_paths(left, {path: seen for path, seen in target.items() if path not in gone} | written)
    )


async def _copy_to_sandbox(pair: ReplicaPair, paths: Sequence[str]) -> dict[str, FileStat]:
    """Copy files of the store into the sandbox; return their descriptions there."""
    if not paths:
        return {}
    return {**await pair.sandbox.write(pair.store.read({path: pair.stored[path] for path in paths}))}


async def _copy_to_store(pair: ReplicaPair, paths: Sequence[str]) -> dict[str, FileStat]:
    """Copy files of the sandbox into the store; return their descriptions there."""
    if not paths:
        return {}
    return {**await pair.store.write(pair.sandbox.read({path: pair.inside[path] for path in paths}))}


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

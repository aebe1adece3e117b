"""Working copies, for a provider that mounts local directories while the store is a bucket.

One directory per namespace. It is synced before a turn first uses it and after each call that changed it, so
a call's changes are in the bucket before its result is returned. Other changes (a job that writes, a gateway
that died) are synced by the next call or the next periodic check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sandbox.errors import ProviderRefused
from sandbox.model import SandboxSpec
from sandbox.port import Sandbox
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.directory_replica import DirectoryReplica
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.removal import remove_tree
from sandbox.workspaces.sync_plan import SyncBaseline
from sandbox.workspaces.syncer import WorkspaceSync, no_checkpoint

UNBOUNDED = 1 << 62
"""The most bytes of one sync: a working copy is limited by its quota, as a store's directory is."""
MAX_CACHED_BASELINES = 1000
"""The most workspaces whose baseline is kept in memory; others are on disk."""


class WorkingCopies(WorkspaceSync):
    """Syncs the store and directories below `root`, each by one task at a time."""

    def __init__(
        self,
        store: WorkspaceStore,
        root: Path,
        baselines: LocalBaselineStore,
        *,
        checkpoint: Callable[[str], None] = no_checkpoint,
    ) -> None:
        super().__init__(store, baselines, limit=UNBOUNDED, checkpoint=checkpoint)
        self._local_baselines = baselines
        self._root = root
        self._cached_baselines: dict[str, SyncBaseline] = {}
        self._sync_locks: dict[str, asyncio.Lock] = {}

    def directory(self, namespace: str) -> Path:
        """Return a working copy's directory; a newly created one has an empty baseline."""
        path = self._root / namespace
        if not path.is_dir():
            self._cached_baselines.pop(namespace, None)
            self._local_baselines.delete_now(namespace)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    async def sync(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Sync bucket and working copy. A mount keeps read-only files; the copy serves all sandboxes."""
        del sandbox
        if spec.workspace is not None:
            await self.refresh(spec.namespace)

    async def save(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Sync bucket and working copy, which stays when a sandbox ends."""
        await self.sync(sandbox, spec)

    async def push(self, spec: SandboxSpec) -> None:
        """Sync if the working copy differs from the baseline."""
        if spec.workspace is not None and not spec.read_only:
            await self.push_changes(spec.namespace)

    async def delete_baseline(self, label: str) -> None:
        """Do nothing: the baseline belongs to the workspace, not to a sandbox."""

    async def push_changes(self, namespace: str) -> None:
        """Sync the changes of a working copy since the last time; raises SandboxError."""
        baseline = self._cached_baselines.get(namespace)
        if baseline is not None and baseline.inside == await _list_files(self.directory(namespace)):
            return
        await self.refresh(namespace)

    async def refresh(self, namespace: str) -> None:
        """Sync bucket and working copy; raises SandboxError."""
        async with self._sync_locks.setdefault(namespace, asyncio.Lock()):
            directory = self.directory(namespace)
            try:
                baseline = await self.sync_replicas(
                    namespace,
                    SyncBaseline(sandbox=_identity(directory)),
                    self.store.replica(namespace),
                    DirectoryReplica(directory, durable=False),
                    read_only=False,
                )
            except OSError as error:
                raise ProviderRefused(f"the workspace's files could not be synced: {error}") from error
            self._cached_baselines.pop(namespace, None)
            self._cached_baselines[namespace] = baseline
            if len(self._cached_baselines) > MAX_CACHED_BASELINES:
                self._cached_baselines.pop(next(iter(self._cached_baselines)))

    def list_synced(self) -> Sequence[str]:
        """Return the namespaces that this process has synced lately."""
        return list(self._cached_baselines)

    def list_existing(self) -> Sequence[str]:
        """Return the namespaces that have a working copy; one that was never filled does not count."""
        with suppress(FileNotFoundError):
            return sorted(path.name for path in self._root.iterdir() if self._is_filled(path))
        return []

    def _is_filled(self, path: Path) -> bool:
        return path.is_dir() and (self._local_baselines.exists(path.name) or any(path.iterdir()))

    async def delete(self, namespace: str) -> None:
        """Remove the working copy of a deleted workspace."""
        async with self._sync_locks.setdefault(namespace, asyncio.Lock()):
            self._cached_baselines.pop(namespace, None)
            await self.baselines.delete(namespace)
            await asyncio.to_thread(remove_tree, self._root / namespace)


async def _list_files(directory: Path) -> object:
    try:
        return await DirectoryReplica(directory).list()
    except OSError as error:
        raise ProviderRefused(f"the workspace's files could not be read: {error}") from error


def _identity(directory: Path) -> str:
    """Return an identifier that distinguishes this directory from one created in its place."""
    return f"inode {directory.stat().st_ino}"

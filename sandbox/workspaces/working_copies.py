"""Working copies: where a provider of this machine mounts directories and the store is a bucket.

A directory for each namespace, carried in before a turn first uses it and out after each call that changed
it: what a call says it did is in the bucket before anybody hears of it. What was not carried by then (a job
that writes, a gateway that died) is carried by the next call or by the next look.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from sandbox.errors import ProviderRefused
from sandbox.model import SandboxSpec
from sandbox.port import Sandbox
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.directory_replica import DirectoryReplica
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.sync_plan import SyncBaseline
from sandbox.workspaces.syncer import WorkspaceSync, no_checkpoint

UNBOUNDED = 1 << 62
"""Bytes that are carried at a time: a working copy is bounded by its quota, as a store's directory is."""
MAX_CACHED_BASELINES = 1000
"""Workspaces of which it is in memory what was agreed on; of others it is on the disk."""


class WorkingCopies(WorkspaceSync):
    """Carries between the store and directories below `root`, each by one task at a time."""

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
        """Return a working copy's directory; one that has to be made has held nothing before."""
        path = self._root / namespace
        if not path.is_dir():
            self._cached_baselines.pop(namespace, None)
            self._local_baselines.delete_now(namespace)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    async def sync(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Make bucket and working copy the same. A mount keeps what is read-only; the copy is for all."""
        del sandbox
        if spec.workspace is not None:
            await self.refresh(spec.namespace)

    async def push(self, spec: SandboxSpec) -> None:
        """Carry when the working copy is not what was agreed on."""
        if spec.workspace is not None and not spec.read_only:
            await self.push_changes(spec.namespace)

    async def delete_baseline(self, label: str) -> None:
        """Keep what is known: it is the workspace's, and no sandbox's."""

    async def push_changes(self, namespace: str) -> None:
        """Carry what changed in a working copy since the last time; raises SandboxError."""
        agreed = self._cached_baselines.get(namespace)
        if agreed is not None and agreed.inside == await _list_files(self.directory(namespace)):
            return
        await self.refresh(namespace)

    async def refresh(self, namespace: str) -> None:
        """Make bucket and working copy the same; raises SandboxError."""
        async with self._sync_locks.setdefault(namespace, asyncio.Lock()):
            directory = self.directory(namespace)
            try:
                agreed = await self.sync_replicas(
                    namespace,
                    SyncBaseline(sandbox=_identity(directory)),
                    self.store.replica(namespace),
                    DirectoryReplica(directory, durable=False),
                    read_only=False,
                )
            except OSError as error:
                raise ProviderRefused(f"the workspace's files could not be carried: {error}") from error
            self._cached_baselines.pop(namespace, None)
            self._cached_baselines[namespace] = agreed
            if len(self._cached_baselines) > MAX_CACHED_BASELINES:
                self._cached_baselines.pop(next(iter(self._cached_baselines)))

    def list_synced(self) -> Sequence[str]:
        """Return the namespaces that this process has carried lately."""
        return list(self._cached_baselines)

    def list_existing(self) -> Sequence[str]:
        """Return the namespaces that have a working copy; one that was never filled is none."""
        with suppress(FileNotFoundError):
            return sorted(path.name for path in self._root.iterdir() if self._is_filled(path))
        return []

    def _is_filled(self, path: Path) -> bool:
        return path.is_dir() and (self._local_baselines.exists(path.name) or any(path.iterdir()))

    async def delete(self, namespace: str) -> None:
        """Remove a working copy: its workspace is gone."""
        async with self._sync_locks.setdefault(namespace, asyncio.Lock()):
            self._cached_baselines.pop(namespace, None)
            await self.baselines.delete(namespace)
            await asyncio.to_thread(shutil.rmtree, self._root / namespace, ignore_errors=True)


async def _list_files(directory: Path) -> object:
    try:
        return await DirectoryReplica(directory).list()
    except OSError as error:
        raise ProviderRefused(f"the workspace's files could not be read: {error}") from error


def _identity(directory: Path) -> str:
    """Return what tells this directory from one that was made in its place."""
    return f"inode {directory.stat().st_ino}"

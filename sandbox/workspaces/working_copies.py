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

from sandbox.errors import Refused
from sandbox.model import Spec
from sandbox.port import Sandbox
from sandbox.workspaces.baselines import LocalBases
from sandbox.workspaces.directory_replica import Folder
from sandbox.workspaces.port import Store
from sandbox.workspaces.sync_plan import Base
from sandbox.workspaces.syncer import Carrier, unnoticed

UNBOUNDED = 1 << 62
"""Bytes that are carried at a time: a working copy is bounded by its quota, as a store's directory is."""
REMEMBERED = 1000
"""Workspaces of which it is in memory what was agreed on; of others it is on the disk."""


class Copies(Carrier):
    """Carries between the store and directories below `root`, each by one task at a time."""

    def __init__(
        self, store: Store, root: Path, bases: LocalBases, *, checkpoint: Callable[[str], None] = unnoticed
    ) -> None:
        super().__init__(store, bases, limit=UNBOUNDED, checkpoint=checkpoint)
        self._local = bases
        self._root = root
        self._agreed: dict[str, Base] = {}
        self._carrying: dict[str, asyncio.Lock] = {}

    def directory(self, namespace: str) -> Path:
        """Return a working copy's directory; one that has to be made has held nothing before."""
        path = self._root / namespace
        if not path.is_dir():
            self._agreed.pop(namespace, None)
            self._local.drop(namespace)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    async def carry(self, sandbox: Sandbox, spec: Spec) -> None:
        """Make bucket and working copy the same. A mount keeps what is read-only; the copy is for all."""
        del sandbox
        if spec.workspace is not None:
            await self.renew(spec.namespace)

    async def kept(self, spec: Spec) -> None:
        """Carry when the working copy is not what was agreed on."""
        if spec.workspace is not None and not spec.read_only:
            await self.look(spec.namespace)

    async def forget(self, label: str) -> None:
        """Keep what is known: it is the workspace's, and no sandbox's."""

    async def look(self, namespace: str) -> None:
        """Carry what changed in a working copy since the last time; raises SandboxError."""
        agreed = self._agreed.get(namespace)
        if agreed is not None and agreed.inside == await _listing(self.directory(namespace)):
            return
        await self.renew(namespace)

    async def renew(self, namespace: str) -> None:
        """Make bucket and working copy the same; raises SandboxError."""
        async with self._carrying.setdefault(namespace, asyncio.Lock()):
            directory = self.directory(namespace)
            try:
                agreed = await self.between(
                    namespace,
                    Base(sandbox=_identity(directory)),
                    self.store.side(namespace),
                    Folder(directory, durable=False),
                    read_only=False,
                )
            except OSError as error:
                raise Refused(f"the workspace's files could not be carried: {error}") from error
            self._agreed.pop(namespace, None)
            self._agreed[namespace] = agreed
            if len(self._agreed) > REMEMBERED:
                self._agreed.pop(next(iter(self._agreed)))

    def used(self) -> Sequence[str]:
        """Return the namespaces that this process has carried lately."""
        return list(self._agreed)

    def known(self) -> Sequence[str]:
        """Return the namespaces that have a working copy; one that was never filled is none."""
        with suppress(FileNotFoundError):
            return sorted(path.name for path in self._root.iterdir() if self._is_filled(path))
        return []

    def _is_filled(self, path: Path) -> bool:
        return path.is_dir() and (self._local.has(path.name) or any(path.iterdir()))

    async def drop(self, namespace: str) -> None:
        """Remove a working copy: its workspace is gone."""
        async with self._carrying.setdefault(namespace, asyncio.Lock()):
            self._agreed.pop(namespace, None)
            await self.bases.forget(namespace)
            await asyncio.to_thread(shutil.rmtree, self._root / namespace, ignore_errors=True)


async def _listing(directory: Path) -> object:
    try:
        return await Folder(directory).listing()
    except OSError as error:
        raise Refused(f"the workspace's files could not be read: {error}") from error


def _identity(directory: Path) -> str:
    """Return what tells this directory from one that was made in its place."""
    return f"inode {directory.stat().st_ino}"

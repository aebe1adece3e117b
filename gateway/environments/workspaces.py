"""The workspace store that the settings name, and what carries files between it and sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from gateway.config.setting_types import Role
from gateway.infra.backing_services import Ground
from gateway.infra.data_dir import DataDirLock
from sandbox.errors import Refused, SandboxError, Unreachable
from sandbox.port import Feature
from sandbox.s3 import Bucket, opened
from sandbox.workspaces.baselines import LocalBases
from sandbox.workspaces.directory_store import DirectoryStore
from sandbox.workspaces.port import Store
from sandbox.workspaces.s3_baselines import BucketBases
from sandbox.workspaces.s3_store import S3Store
from sandbox.workspaces.syncer import Carrier, unnoticed
from sandbox.workspaces.working_copies import Copies

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """The one door to workspaces' files.

    `carrier` is for providers elsewhere; `copies` for those that mount directories, where the store is none.
    """

    store: Store
    root: Path
    carrier: Carrier
    copies: Copies | None = None
    bucket: S3Store | None = None

    def directory(self, namespace: str) -> Path:
        """Return the directory that is mounted for a workspace: the store's own, or a working copy."""
        if self.copies is not None:
            return self.copies.directory(namespace)
        path = self.root / namespace
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def carrier_for(self, features: frozenset[Feature]) -> Carrier | None:
        """Return what brings files to sandboxes of a provider and back; None: they see the store itself."""
        return self.copies if Feature.MOUNTS_WORKSPACE in features else self.carrier

    async def forget(self, namespace: str) -> None:
        """Remove a workspace's files; what the store refuses now, the next look finds."""
        if self.copies is not None:
            await self.copies.drop(namespace)
        try:
            await self.store.forget(namespace)
        except SandboxError as error:
            log.warning("workspace.not_forgotten", namespace=namespace, error=str(error))


def on_disk(
    root: Path, *, carried: Path, limit: int, checkpoint: Callable[[str], None] = unnoticed
) -> Workspaces:
    """Return workspaces as directories of this machine."""
    store = DirectoryStore(root)
    carrier = Carrier(store, LocalBases(carried), limit=limit, checkpoint=checkpoint)
    return Workspaces(store=store, root=root, carrier=carrier)


async def open_workspaces(ground: Ground, installation: str, stack: AsyncExitStack) -> Workspaces:
    """Open the store; raises Refused when a bucket cannot be used, DataDirBusy."""
    settings, limit = ground.settings, ground.settings.sandbox.sync_limit_mb * 1024 * 1024
    checkpoint = ground.faults.checkpoint
    root, carried = settings.data_dir / "workspaces", settings.data_dir / "carried"
    if settings.workspaces.store == "directory":
        return on_disk(root, carried=carried, limit=limit, checkpoint=checkpoint)
    bucket = Bucket(**settings.workspaces.s3.opened())
    bucket = replace(bucket, prefix=f"{bucket.prefix}{installation}/")
    if ground.alone_since is None and Role.TURNS in settings.roles:
        stack.enter_context(DataDirLock(root))  # copies are carried by one process: another needs its own
    client = await stack.enter_async_context(opened(bucket, "workspaces"))
    objects = S3Store(client, bucket)
    await _proven(objects)
    return Workspaces(
        store=objects,
        root=root,
        carrier=Carrier(objects, BucketBases(client, bucket), limit=limit, checkpoint=checkpoint),
        copies=Copies(objects, root, LocalBases(carried), checkpoint=checkpoint),
        bucket=objects,
    )


async def _proven(store: S3Store) -> None:
    """Raise Refused when the bucket refuses: it would refuse every turn. It may be away for a while."""
    try:
        await store.prove()
    except Unreachable as error:
        log.warning("workspaces.unreachable", error=str(error))
    except SandboxError as error:
        named = f"workspaces.s3.bucket = {store.bucket.bucket!r} cannot be used: {error}"
        raise Refused(
            f"{named}; make the bucket, or correct workspaces.s3 and what its keys may do"
        ) from error

"""The workspace store that the settings name, and what carries files between it and sandboxes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from gateway.config.setting_types import Role
from gateway.infra.backing_services import BackingServices
from gateway.infra.data_dir import DataDirLock
from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxError
from sandbox.port import Feature
from sandbox.s3 import Bucket, open_client
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.directory_store import DirectoryWorkspaceStore
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.s3_baselines import S3BaselineStore
from sandbox.workspaces.s3_store import S3WorkspaceStore
from sandbox.workspaces.syncer import WorkspaceSync, no_checkpoint
from sandbox.workspaces.working_copies import WorkingCopies

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """The one door to workspaces' files.

    `carrier` is for providers elsewhere; `copies` for those that mount directories, where the store is none.
    """

    store: WorkspaceStore
    root: Path
    syncer: WorkspaceSync
    working_copies: WorkingCopies | None = None
    bucket: S3WorkspaceStore | None = None

    def directory(self, namespace: str) -> Path:
        """Return the directory that is mounted for a workspace: the store's own, or a working copy."""
        if self.working_copies is not None:
            return self.working_copies.directory(namespace)
        path = self.root / namespace
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def syncer_for(self, features: frozenset[Feature]) -> WorkspaceSync | None:
        """Return what brings files to sandboxes of a provider and back; None: they see the store itself."""
        return self.working_copies if Feature.MOUNTS_WORKSPACE in features else self.syncer

    async def delete(self, namespace: str) -> None:
        """Remove a workspace's files; what the store refuses now, the next look finds."""
        if self.working_copies is not None:
            await self.working_copies.delete(namespace)
        try:
            await self.store.delete(namespace)
        except SandboxError as error:
            log.warning("workspace.delete_failed", namespace=namespace, error=str(error))


def directory_workspaces(
    root: Path, *, baselines: Path, limit: int, checkpoint: Callable[[str], None] = no_checkpoint
) -> Workspaces:
    """Return workspaces as directories of this machine."""
    store = DirectoryWorkspaceStore(root)
    carrier = WorkspaceSync(store, LocalBaselineStore(baselines), limit=limit, checkpoint=checkpoint)
    return Workspaces(store=store, root=root, syncer=carrier)


async def open_workspaces(backing: BackingServices, installation: str, stack: AsyncExitStack) -> Workspaces:
    """Open the store; raises Refused when a bucket cannot be used, DataDirBusy."""
    settings, limit = backing.settings, backing.settings.sandbox.sync_limit_mb * 1024 * 1024
    checkpoint = backing.fault_points.checkpoint
    root, carried = settings.data_dir / "workspaces", settings.data_dir / "carried"
    if settings.workspaces.store == "directory":
        return directory_workspaces(root, baselines=carried, limit=limit, checkpoint=checkpoint)
    bucket = Bucket(**settings.workspaces.s3.with_secrets())
    bucket = replace(bucket, prefix=f"{bucket.prefix}{installation}/")
    if backing.sole_process_since is None and Role.TURNS in settings.roles:
        stack.enter_context(DataDirLock(root))  # copies are carried by one process: another needs its own
    client = await stack.enter_async_context(open_client(bucket, "workspaces"))
    objects = S3WorkspaceStore(client, bucket)
    await _check_access(objects)
    return Workspaces(
        store=objects,
        root=root,
        syncer=WorkspaceSync(objects, S3BaselineStore(client, bucket), limit=limit, checkpoint=checkpoint),
        working_copies=WorkingCopies(objects, root, LocalBaselineStore(carried), checkpoint=checkpoint),
        bucket=objects,
    )


async def _check_access(store: S3WorkspaceStore) -> None:
    """Raise Refused when the bucket refuses: it would refuse every turn. It may be away for a while."""
    try:
        await store.check_access()
    except ProviderUnreachable as error:
        log.warning("workspaces.store_unreachable", error=str(error))
    except SandboxError as error:
        named = f"workspaces.s3.bucket = {store.bucket.bucket!r} cannot be used: {error}"
        raise ProviderRefused(
            f"{named}; make the bucket, or correct workspaces.s3 and what its keys may do"
        ) from error

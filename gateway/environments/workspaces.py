"""Open the configured workspace store, and sync files between it and sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gateway.config.setting_types import Role
from gateway.infra.backing_services import BackingServices
from gateway.infra.data_dir import DataDirLock
from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxError
from sandbox.port import Feature
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.directory_store import DirectoryWorkspaceStore
from sandbox.workspaces.port import WorkspaceStore
from sandbox.workspaces.syncer import WorkspaceSync, no_checkpoint
from sandbox.workspaces.working_copies import WorkingCopies

if TYPE_CHECKING:
    from sandbox.workspaces.s3.store import S3WorkspaceStore

CHECK_SECONDS = 10.0
"""Seconds for which the gateway's start waits for the bucket."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspaces:
    """All access to workspaces' files.

    `syncer` is for remote providers; `working_copies` for providers that mount directories, where the store
    is a bucket.
    """

    store: WorkspaceStore
    root: Path
    syncer: WorkspaceSync
    working_copies: WorkingCopies | None = None
    bucket: S3WorkspaceStore | None = None

    def directory(self, namespace: str) -> Path:
        """Return the directory that is mounted for a workspace: of the store, or a working copy."""
        if self.working_copies is not None:
            return self.working_copies.directory(namespace)
        path = self.root / namespace
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def syncer_for(self, features: frozenset[Feature]) -> WorkspaceSync | None:
        """Return how files are synced with a provider's sandboxes; None: they mount the store itself."""
        return self.working_copies if Feature.MOUNTS_WORKSPACE in features else self.syncer

    async def delete(self, namespace: str) -> None:
        """Delete a workspace's files; the janitor retries a failure."""
        try:
            if self.working_copies is not None:
                await self.working_copies.delete(namespace)
            await self.store.delete(namespace)
        except (SandboxError, OSError) as error:
            log.warning("workspace.delete_failed", namespace=namespace, error=str(error))


def directory_workspaces(
    root: Path, *, baselines: Path, limit: int, checkpoint: Callable[[str], None] = no_checkpoint
) -> Workspaces:
    """Return workspaces that are stored as directories of this machine."""
    store = DirectoryWorkspaceStore(root)
    syncer = WorkspaceSync(store, LocalBaselineStore(baselines), limit=limit, checkpoint=checkpoint)
    return Workspaces(store=store, root=root, syncer=syncer)


async def open_workspaces(backing: BackingServices, installation: str, stack: AsyncExitStack) -> Workspaces:
    """Open the store; raises ProviderRefused when the bucket cannot be used, and DataDirBusy."""
    settings, limit = backing.settings, backing.settings.sandbox.sync_limit_mb * 1024 * 1024
    checkpoint = backing.fault_points.checkpoint
    root, synced = settings.data_dir / "workspaces", settings.data_dir / "carried"
    if settings.workspaces.store == "directory":
        return directory_workspaces(root, baselines=synced, limit=limit, checkpoint=checkpoint)
    from sandbox.s3 import Bucket, open_client  # only a gateway with a bucket needs its client
    from sandbox.workspaces.s3.baselines import S3BaselineStore
    from sandbox.workspaces.s3.store import S3WorkspaceStore

    bucket = Bucket(**settings.workspaces.s3.with_secrets())
    bucket = replace(bucket, prefix=f"{bucket.prefix}{installation}/")
    if backing.sole_process_since is None and Role.TURNS in settings.roles:
        stack.enter_context(DataDirLock(root))  # one process syncs the copies: another needs its own
    client = await stack.enter_async_context(open_client(bucket, "workspaces"))
    objects = S3WorkspaceStore(client, bucket)
    await check_access(objects)
    return Workspaces(
        store=objects,
        root=root,
        syncer=WorkspaceSync(objects, S3BaselineStore(client, bucket), limit=limit, checkpoint=checkpoint),
        working_copies=WorkingCopies(objects, root, LocalBaselineStore(synced), checkpoint=checkpoint),
        bucket=objects,
    )


async def check_access(store: S3WorkspaceStore, *, timeout: float = CHECK_SECONDS) -> None:
    """Raise ProviderRefused when the bucket denies access. An unreachable bucket is only logged."""
    try:
        async with asyncio.timeout(timeout):
            await store.check_access()
    except TimeoutError:
        log.warning("workspaces.store_unreachable", error=f"no answer within {timeout:g} seconds")
    except ProviderUnreachable as error:
        log.warning("workspaces.store_unreachable", error=str(error))
    except SandboxError as error:
        problem = f"workspaces.s3.bucket = {store.bucket.bucket!r} cannot be used: {error}"
        raise ProviderRefused(
            f"{problem}; create the bucket, or correct workspaces.s3 and the permissions of its keys"
        ) from error

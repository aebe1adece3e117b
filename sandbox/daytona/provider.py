"""The Daytona provider: sandboxes of one organisation at the service, found again by our label."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

from daytona import AsyncDaytona, AsyncSandbox, CreateSandboxFromSnapshotParams, DaytonaConfig
from daytona import ListSandboxesQuery as Query

from sandbox.config import LOADERS, NAME
from sandbox.daytona.errors import folded
from sandbox.daytona.sandbox import DaytonaSandbox, Machine
from sandbox.daytona.settings import DaytonaSettings
from sandbox.errors import Gone, Refused, Unauthorized
from sandbox.exec.background_jobs import Callback
from sandbox.model import Network, SandboxId, Spec
from sandbox.port import Provider, Sandbox, Surroundings

MARK = "dovecote"
LABEL = "dovecote-label"
ENDED = frozenset({"destroyed", "destroying", "build_failed"})
PAGE = 100


class DaytonaProvider(Provider):
    """Makes sandboxes at the service and finds them again."""

    def __init__(
        self, client: AsyncDaytona | None, settings: DaytonaSettings, surroundings: Surroundings
    ) -> None:
        self._named = client
        self._settings = settings
        self._surroundings = surroundings

    @property
    def _client(self) -> AsyncDaytona:
        if self._named is None:
            raise Unauthorized("no key for daytona: set DAYTONA_API_KEY or [sandbox.daytona] api_key")
        return self._named

    async def create(self, spec: Spec) -> Sandbox:
        """Return the sandbox of the label, made when there is none; the label is on it from the beginning."""
        self._check(spec)
        standing = await self._of_label(spec.label)
        if standing:
            return await self._opened(standing[0], spec)
        self._surroundings.checkpoint("sandbox.create")
        with folded():
            made = await self._client.create(self._order(spec), timeout=self._settings.start_timeout)
        return await self._only(made, spec)

    async def _only(self, made: AsyncSandbox, spec: Spec) -> Sandbox:
        """Keep one sandbox a label when two processes made one at the same moment: the older one."""
        standing = await self._of_label(spec.label)
        if not standing or standing[0].id == made.id:
            return await self._opened(made, spec)
        await self.destroy(SandboxId(made.id))
        return await self._opened(standing[0], spec)

    async def connect(self, sandbox_id: SandboxId, spec: Spec) -> Sandbox:
        """Return an existing sandbox, started when it was stopped or archived; raises Gone."""
        self._check(spec)
        return await self._opened(await self._get(sandbox_id), spec)

    async def _get(self, sandbox_id: SandboxId) -> AsyncSandbox:
        if not sandbox_id.isascii() or not sandbox_id.replace("-", "").isalnum():
            raise Gone(f"{sandbox_id!r} is no sandbox of this provider")
        with folded():
            found = await self._client.get(sandbox_id)
        if MARK not in found.labels or str(found.state) in ENDED:
            raise Gone(f"{sandbox_id!r} is no sandbox of this provider any more")
        return found

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a sandbox, stopped or not; one that is gone is no error."""
        try:
            found = await self._get(sandbox_id)
            with folded():
                await found.delete(timeout=self._settings.start_timeout, wait=True)
        except Gone:
            return

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return our sandboxes, whatever their state."""
        found = await self._all({MARK: "sandbox"})
        labels = [(SandboxId(one.id), one.labels.get(LABEL, "")) for one in found]
        return sorted((number, label) for number, label in labels if label.startswith(label_prefix))

    async def _of_label(self, label: str) -> Sequence[AsyncSandbox]:
        found = [one for one in await self._all({LABEL: label}) if one.labels.get(LABEL) == label]
        return sorted(found, key=lambda one: (one.created_at or "", one.id))

    async def _all(self, labels: Mapping[str, str]) -> Sequence[AsyncSandbox]:
        with folded():
            async with aclosing(
                cast("Any", self._client.list(Query(labels=dict(labels), limit=PAGE)))
            ) as pages:
                return [one async for one in pages if str(one.state) not in ENDED]

    async def _opened(self, machine: AsyncSandbox, spec: Spec) -> DaytonaSandbox:
        handle = Machine(
            machine, stop_after=_minutes(spec.idle_timeout), patience=self._settings.start_timeout
        )
        await handle.wake()
        sandbox = DaytonaSandbox(handle, spec, await handle.home(), self._callback(spec))
        await sandbox.prepare()
        return sandbox

    def _order(self, spec: Spec) -> CreateSandboxFromSnapshotParams:
        archive = spec.options.get("auto_archive_seconds")
        minutes = self._settings.archive_minutes if archive is None else math.ceil(float(archive) / 60)
        wanted = {
            "snapshot": spec.options.get("snapshot") or self._settings.snapshot,
            "labels": {MARK: "sandbox", LABEL: spec.label},
            "public": False,
            "auto_stop_interval": _minutes(spec.idle_timeout),
            "auto_archive_interval": minutes,
            "auto_delete_interval": -1 if spec.persistent else 0,
            "ttl_minutes": max(1, math.ceil(spec.max_lifetime / 60)),
            **network_of(spec, self._callback(spec)),
        }
        return CreateSandboxFromSnapshotParams(**cast("Any", wanted))

    def _callback(self, spec: Spec) -> Callback:
        reachable = spec.network is not Network.DENY_ALL
        return Callback(url=self._surroundings.callback_url if reachable else "")

    def _check(self, spec: Spec) -> None:
        snapshot = spec.options.get("snapshot")
        if snapshot is not None and snapshot not in {self._settings.snapshot, *self._settings.snapshots}:
            names = ", ".join(filter(None, (self._settings.snapshot, *self._settings.snapshots))) or "none"
            raise Refused(f"the snapshot {snapshot!r} is not one the operator allows: {names}")
        if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
            raise Refused("the namespace must be one plain path component")
        for name, value in spec.env.items():
            if not NAME.match(name) or LOADERS.match(name) or "\0" in value:
                raise Refused(f"the variable {name!r} is not allowed in a sandbox")


def network_of(spec: Spec, callback: Callback) -> Mapping[str, Any]:
    """Return what the service is told of the network: nothing, all, or what is listed and the callback."""
    if spec.network is Network.ALLOW_ALL:
        return {"network_block_all": False}
    if spec.network is Network.DENY_ALL:
        return {"network_block_all": True}
    host = urlsplit(callback.url).hostname
    domains = [*spec.allow_domains, *([host] if host else [])]
    told = {"domain_allow_list": ",".join(domains), "network_allow_list": ",".join(spec.allow_cidrs)}
    return {"network_block_all": False} | {name: value for name, value in told.items() if value}


def _minutes(seconds: float) -> int:
    """Return after how many idle minutes the service stops a sandbox by itself: later than we would."""
    return max(2, math.ceil(seconds * 2 / 60))


@asynccontextmanager
async def open_provider(settings: DaytonaSettings, surroundings: Surroundings) -> AsyncIterator[Provider]:
    """Yield the provider, with the SDK's client open meanwhile."""
    if settings.api_key is None:
        yield DaytonaProvider(None, settings, surroundings)
        return
    config = DaytonaConfig(
        api_key=settings.api_key.get_secret_value(), api_url=settings.api_url, target=settings.target
    )
    async with AsyncDaytona(config) as client:
        yield DaytonaProvider(client, settings, surroundings)

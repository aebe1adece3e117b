"""The Daytona provider: sandboxes of one organisation, found again by our label."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from daytona import AsyncDaytona, AsyncSandbox, CreateSandboxFromSnapshotParams, DaytonaConfig
from daytona import ListSandboxesQuery as Query

from sandbox.config import LOADER_VARIABLES, VARIABLE_NAME
from sandbox.daytona.errors import translate_creation_errors, translate_errors
from sandbox.daytona.sandbox import DaytonaHandle, DaytonaSandbox
from sandbox.daytona.settings import DaytonaSettings
from sandbox.errors import ProviderRefused, ProviderUnauthorized, SandboxGone
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.model import Network, SandboxId, SandboxSpec, external_id
from sandbox.port import Provider, ProviderContext, Sandbox, create_one_of_label

MARKER_LABEL = "dovecote"
LABEL = "dovecote-label"
ENDED_STATES = frozenset({"destroyed", "destroying", "build_failed"})
PAGE_SIZE = 100


class DaytonaProvider(Provider):
    """Creates sandboxes at Daytona and connects to existing ones."""

    def __init__(
        self, client: AsyncDaytona | None, settings: DaytonaSettings, context: ProviderContext
    ) -> None:
        self._optional_client = client
        self._settings = settings
        self._context = context

    @property
    def _client(self) -> AsyncDaytona:
        if self._optional_client is None:
            raise ProviderUnauthorized("no key for daytona: set DAYTONA_API_KEY or [sandbox.daytona] api_key")
        return self._optional_client

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of the label; create it with the label if there is none."""
        self._check(spec)
        return await create_one_of_label(partial(self._find_or_create, spec))

    async def _find_or_create(self, spec: SandboxSpec) -> Sandbox:
        existing = await self._list_by_label(spec.label)
        if existing:
            return await self._open(existing[0], spec)
        self._context.checkpoint("sandbox.create")
        with translate_creation_errors():
            made = await self._client.create(self._create_params(spec), timeout=self._settings.start_timeout)
        return await self._deduplicate(made, spec)

    async def _deduplicate(self, created: AsyncSandbox, spec: SandboxSpec) -> Sandbox:
        """Keep the older sandbox of a label if two processes created one at the same time."""
        existing = await self._list_by_label(spec.label)
        if not existing or existing[0].id == created.id:
            return await self._open(created, spec)
        await self.destroy(SandboxId(created.id))
        return await self._open(existing[0], spec)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox, started if it was stopped or archived; raises SandboxGone."""
        self._check(spec)
        return await self._open(await self._get(sandbox_id), spec)

    async def attach(self, spec: SandboxSpec) -> Sandbox:
        """Return a sandbox of the organisation that Dovecote did not create; a stopped one is started."""
        with translate_errors():
            found = await self._client.get(spec.external)
        if MARKER_LABEL in found.labels:
            raise ProviderRefused(f"{spec.external!r} is a sandbox of a gateway, not an external one")
        sandbox = await self._open(found, spec)
        sandbox.id = external_id(spec.external, str(found.id))
        return sandbox

    async def _get(self, sandbox_id: SandboxId) -> AsyncSandbox:
        if not sandbox_id.isascii() or not sandbox_id.replace("-", "").isalnum():
            raise SandboxGone(f"{sandbox_id!r} is not a sandbox of this provider")
        with translate_errors():
            found = await self._client.get(sandbox_id)
        if MARKER_LABEL not in found.labels or str(found.state) in ENDED_STATES:
            raise SandboxGone(f"{sandbox_id!r} is no longer a sandbox of this provider")
        return found

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a sandbox, stopped or not. Idempotent."""
        try:
            found = await self._get(sandbox_id)
            with translate_errors():
                await found.delete(timeout=self._settings.start_timeout, wait=True)
        except SandboxGone:
            return

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return our sandboxes in every state."""
        found = await self._list({MARKER_LABEL: "sandbox"})
        labels = [(SandboxId(one.id), one.labels.get(LABEL, "")) for one in found]
        return sorted((number, label) for number, label in labels if label.startswith(label_prefix))

    async def _list_by_label(self, label: str) -> Sequence[AsyncSandbox]:
        found = [one for one in await self._list({LABEL: label}) if one.labels.get(LABEL) == label]
        return sorted(found, key=lambda one: (one.created_at or "", one.id))

    async def _list(self, labels: Mapping[str, str]) -> Sequence[AsyncSandbox]:
        with translate_errors():
            async with aclosing(
                cast("Any", self._client.list(Query(labels=dict(labels), limit=PAGE_SIZE)))
            ) as pages:
                return [one async for one in pages if str(one.state) not in ENDED_STATES]

    async def _open(self, vendor_sandbox: AsyncSandbox, spec: SandboxSpec) -> DaytonaSandbox:
        handle = DaytonaHandle(
            vendor_sandbox,
            autostop_minutes=None if spec.external else _minutes(spec.idle_timeout),
            timeout=self._settings.start_timeout,
        )
        await handle.ensure_started()
        sandbox = DaytonaSandbox(handle, spec, await handle.home(), self._callback(spec))
        await sandbox.prepare()
        return sandbox

    def _create_params(self, spec: SandboxSpec) -> CreateSandboxFromSnapshotParams:
        archive = spec.options.get("auto_archive_seconds")
        minutes = self._settings.archive_minutes if archive is None else math.ceil(float(archive) / 60)
        parameters = {
            "snapshot": spec.options.get("snapshot") or self._settings.snapshot,
            "labels": {MARKER_LABEL: "sandbox", LABEL: spec.label},
            "public": False,
            "auto_stop_interval": _minutes(spec.idle_timeout),
            "auto_archive_interval": minutes,
            "auto_delete_interval": -1 if spec.persistent else 0,
            "ttl_minutes": max(1, math.ceil(spec.max_lifetime / 60)),
            **network_options(spec, self._callback(spec)),
        }
        return CreateSandboxFromSnapshotParams(**cast("Any", parameters))

    def _callback(self, spec: SandboxSpec) -> CompletionCallback:
        reachable = spec.network is not Network.DENY_ALL
        return CompletionCallback(url=self._context.callback_url if reachable else "")

    def _check(self, spec: SandboxSpec) -> None:
        snapshot = spec.options.get("snapshot")
        if snapshot is not None and snapshot not in {self._settings.snapshot, *self._settings.snapshots}:
            names = ", ".join(filter(None, (self._settings.snapshot, *self._settings.snapshots))) or "none"
            raise ProviderRefused(f"the snapshot {snapshot!r} is not one the operator allows: {names}")
        if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
            raise ProviderRefused("the namespace must be one plain path component")
        for name, value in spec.env.items():
            if not VARIABLE_NAME.match(name) or LOADER_VARIABLES.match(name) or "\0" in value:
                raise ProviderRefused(f"the variable {name!r} is not allowed in a sandbox")


def network_options(spec: SandboxSpec, callback: CompletionCallback) -> Mapping[str, Any]:
    """Return Daytona's network settings: nothing, everything, or the listed addresses and the callback."""
    if spec.network is Network.ALLOW_ALL:
        return {"network_block_all": False}
    if spec.network is Network.DENY_ALL:
        return {"network_block_all": True}
    host = urlsplit(callback.url).hostname
    domains = [*spec.allow_domains, *([host] if host else [])]
    allowed = {"domain_allow_list": ",".join(domains), "network_allow_list": ",".join(spec.allow_cidrs)}
    return {"network_block_all": False} | {name: value for name, value in allowed.items() if value}


def _minutes(seconds: float) -> int:
    """Return the idle minutes until Daytona stops a sandbox itself; later than the gateway does."""
    return max(2, math.ceil(seconds * 2 / 60))


@asynccontextmanager
async def open_provider(settings: DaytonaSettings, context: ProviderContext) -> AsyncIterator[Provider]:
    """Yield the provider with an open SDK client."""
    if settings.api_key is None:
        yield DaytonaProvider(None, settings, context)
        return
    config = DaytonaConfig(
        api_key=settings.api_key.get_secret_value(), api_url=settings.api_url, target=settings.target
    )
    async with AsyncDaytona(config) as client:
        yield DaytonaProvider(client, settings, context)

"""The E2B provider: sandboxes of one account, found again by our label in their metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import structlog
from e2b import AsyncSandbox, SandboxQuery

from sandbox.config import LOADER_VARIABLES, VARIABLE_NAME
from sandbox.e2b.errors import translate_errors
from sandbox.e2b.sandbox import E2bHandle, E2bSandbox
from sandbox.e2b.settings import E2bSettings
from sandbox.errors import ProviderRefused, ProviderUnauthorized, SandboxGone
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.model import Network, SandboxId, SandboxSpec, external_id
from sandbox.port import Provider, ProviderContext, Sandbox, create_one_of_label

LABEL = "dovecote-label"
ALL_ADDRESSES = "0.0.0.0/0"
PAGE_SIZE = 100

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class E2bSandboxInfo:
    """A sandbox at E2B with a label of ours."""

    id: SandboxId
    label: str
    started: datetime


class E2bProvider(Provider):
    """Creates sandboxes at E2B and connects to existing ones."""

    def __init__(self, settings: E2bSettings, context: ProviderContext) -> None:
        self._settings = settings
        self._context = context

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the sandbox of the label; create it with the label if there is none."""
        self._check(spec)
        return await create_one_of_label(partial(self._find_or_create, spec))

    async def _find_or_create(self, spec: SandboxSpec) -> Sandbox:
        existing = await self._list_by_label(spec.label)
        if existing:
            try:
                return await self.connect(existing[0].id, spec)
            except SandboxGone:
                log.info("e2b.sandbox_lost", sandbox=existing[0].id)
        self._context.checkpoint("sandbox.create")
        with translate_errors():
            created = await AsyncSandbox.create(
                template=str(spec.options.get("template") or self._settings.template),
                timeout=self._timeout(spec),
                metadata={LABEL: spec.label},
                lifecycle={"on_timeout": "pause" if spec.persistent else "kill"},
                **network_options(spec, self._callback(spec)),
                **self._endpoints(),
            )
        return await self._deduplicate(await self._open(created, spec), spec)

    async def _deduplicate(self, sandbox: E2bSandbox, spec: SandboxSpec) -> Sandbox:
        """Keep the older sandbox of a label if two processes created one at the same time."""
        existing = await self._list_by_label(spec.label)
        if not existing or existing[0].id == sandbox.id:
            return sandbox
        await self.destroy(sandbox.id)
        return await self.connect(existing[0].id, spec)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox, resumed if it was paused; raises SandboxGone."""
        self._check(spec)
        _check_id(sandbox_id)
        with translate_errors():
            found = await AsyncSandbox.connect(sandbox_id, timeout=self._timeout(spec), **self._endpoints())
        return await self._open(found, spec)

    async def attach(self, spec: SandboxSpec) -> Sandbox:
        """Return an external sandbox of the operator's account; a paused one is resumed."""
        _check_id(spec.external)
        with translate_errors():
            info = await AsyncSandbox.get_info(spec.external, **self._endpoints())
            if LABEL in (info.metadata or {}):
                raise ProviderRefused(f"{spec.external!r} is a sandbox of a gateway, not an external one")
            found = await AsyncSandbox.connect(
                spec.external, timeout=self._timeout(spec), **self._endpoints()
            )
        sandbox = await self._open(found, spec)
        sandbox.id = external_id(spec.external)
        return sandbox

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Kill a sandbox, paused or not. Idempotent."""
        _check_id(sandbox_id)
        with translate_errors():
            await AsyncSandbox.kill(sandbox_id, **self._endpoints())

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return our sandboxes, running and paused."""
        found = [(one.id, one.label) async for one in self._list(SandboxQuery())]
        return sorted((number, label) for number, label in found if label.startswith(label_prefix))

    async def _list_by_label(self, label: str) -> Sequence[E2bSandboxInfo]:
        query = SandboxQuery(metadata={LABEL: label})
        found = [one async for one in self._list(query) if one.label == label]
        return sorted(found, key=lambda one: (one.started, one.id))

    async def _list(self, query: SandboxQuery) -> AsyncIterator[E2bSandboxInfo]:
        with translate_errors():
            pages = AsyncSandbox.list(query=query, limit=PAGE_SIZE, **self._endpoints())
            while pages.has_next:
                for found in await pages.next_items():
                    if LABEL in (found.metadata or {}):
                        yield E2bSandboxInfo(
                            id=SandboxId(found.sandbox_id),
                            label=found.metadata[LABEL],
                            started=found.started_at,
                        )

    async def _open(self, vendor_sandbox: AsyncSandbox, spec: SandboxSpec) -> E2bSandbox:
        sandbox = E2bSandbox(
            E2bHandle(
                vendor_sandbox,
                timeout=self._timeout(spec),
                user=self._settings.user,
                options=self._endpoints(),
            ),
            spec,
            self._callback(spec),
        )
        await sandbox.prepare()
        return sandbox

    def _timeout(self, spec: SandboxSpec) -> int:
        """Return the unused seconds until E2B ends a sandbox itself; later than the gateway does."""
        return max(60, min(int(spec.idle_timeout * 2) + 60, self._settings.longest))

    def _callback(self, spec: SandboxSpec) -> CompletionCallback:
        reachable = spec.network is not Network.DENY_ALL
        return CompletionCallback(url=self._context.callback_url if reachable else "")

    def _endpoints(self) -> dict[str, Any]:
        settings = self._settings
        if settings.api_key is None:
            raise ProviderUnauthorized("no key for e2b: set E2B_API_KEY or [sandbox.e2b] api_key")
        named = {
            "api_key": settings.api_key.get_secret_value(),
            "domain": settings.domain,
            "api_url": settings.api_url,
            "sandbox_url": settings.sandbox_url,
            "http_version": settings.http_version,
            "request_timeout": settings.request_timeout,
        }
        return {name: value for name, value in named.items() if value is not None}

    def _check(self, spec: SandboxSpec) -> None:
        template = spec.options.get("template")
        allowed = {self._settings.template, *self._settings.templates}
        if template is not None and template not in allowed:
            names = ", ".join(sorted(allowed))
            raise ProviderRefused(f"the template {template!r} is not one the operator allows: {names}")
        if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
            raise ProviderRefused("the namespace must be one plain path component")
        for name, value in spec.env.items():
            if not VARIABLE_NAME.match(name) or LOADER_VARIABLES.match(name) or "\0" in value:
                raise ProviderRefused(f"the variable {name!r} is not allowed in a sandbox")


def network_options(spec: SandboxSpec, callback: CompletionCallback) -> Mapping[str, Any]:
    """Return E2B's network settings: nothing, everything, or the listed addresses and the callback."""
    if spec.network is Network.ALLOW_ALL:
        return {"allow_internet_access": True}
    if spec.network is Network.DENY_ALL:
        return {"allow_internet_access": False}
    host = urlsplit(callback.url).hostname
    allowed = [*spec.allow_domains, *spec.allow_cidrs, *([host] if host else [])]
    return {"network": {"allow_out": allowed, "deny_out": [ALL_ADDRESSES]}}


def _check_id(sandbox_id: str) -> None:
    if not sandbox_id.isascii() or not sandbox_id.replace("-", "").isalnum():
        raise SandboxGone(f"{sandbox_id!r} is not a sandbox of this provider")


@asynccontextmanager
async def open_provider(settings: E2bSettings, context: ProviderContext) -> AsyncIterator[Provider]:
    """Yield the provider; the SDK manages its connections and closes them with the process."""
    yield E2bProvider(settings, context)

"""The E2B provider: sandboxes of one account at the service, found again by our label in their metadata."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import structlog
from e2b import AsyncSandbox, SandboxQuery

from sandbox.config import LOADERS, NAME
from sandbox.e2b.errors import folded
from sandbox.e2b.sandbox import E2bSandbox, Machine
from sandbox.e2b.settings import E2bSettings
from sandbox.errors import Gone, Refused, Unauthorized
from sandbox.exec.background_jobs import Callback
from sandbox.model import Network, SandboxId, Spec
from sandbox.port import Provider, Sandbox, Surroundings

LABEL = "dovecote-label"
EVERYWHERE = "0.0.0.0/0"
PAGE = 100

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A sandbox at the service that carries a label of ours."""

    id: SandboxId
    label: str
    started: datetime


class E2bProvider(Provider):
    """Makes sandboxes at the service and finds them again."""

    def __init__(self, settings: E2bSettings, surroundings: Surroundings) -> None:
        self._settings = settings
        self._surroundings = surroundings

    async def create(self, spec: Spec) -> Sandbox:
        """Return the sandbox of the label, made when there is none; the label is on it from the beginning."""
        self._check(spec)
        standing = await self._of_label(spec.label)
        if standing:
            try:
                return await self.connect(standing[0].id, spec)
            except Gone:
                log.info("e2b.vanished", sandbox=standing[0].id)
        self._surroundings.checkpoint("sandbox.create")
        with folded():
            made = await AsyncSandbox.create(
                template=str(spec.options.get("template") or self._settings.template),
                timeout=self._patience(spec),
                metadata={LABEL: spec.label},
                lifecycle={"on_timeout": "pause" if spec.persistent else "kill"},
                **network_of(spec, self._callback(spec)),
                **self._endpoints(),
            )
        return await self._only(await self._opened(made, spec), spec)

    async def _only(self, sandbox: E2bSandbox, spec: Spec) -> Sandbox:
        """Keep one sandbox a label when two processes made one at the same moment: the older one."""
        standing = await self._of_label(spec.label)
        if not standing or standing[0].id == sandbox.id:
            return sandbox
        await self.destroy(sandbox.id)
        return await self.connect(standing[0].id, spec)

    async def connect(self, sandbox_id: SandboxId, spec: Spec) -> Sandbox:
        """Return an existing sandbox, woken when it was paused; raises Gone."""
        self._check(spec)
        _plain(sandbox_id)
        with folded():
            found = await AsyncSandbox.connect(sandbox_id, timeout=self._patience(spec), **self._endpoints())
        return await self._opened(found, spec)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Kill a sandbox, paused or not; one that is gone is no error."""
        _plain(sandbox_id)
        with folded():
            await AsyncSandbox.kill(sandbox_id, **self._endpoints())

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return our sandboxes, running and paused."""
        found = [(one.id, one.label) async for one in self._all(SandboxQuery())]
        return sorted((number, label) for number, label in found if label.startswith(label_prefix))

    async def _of_label(self, label: str) -> Sequence[Found]:
        query = SandboxQuery(metadata={LABEL: label})
        found = [one async for one in self._all(query) if one.label == label]
        return sorted(found, key=lambda one: (one.started, one.id))

    async def _all(self, query: SandboxQuery) -> AsyncIterator[Found]:
        with folded():
            pages = AsyncSandbox.list(query=query, limit=PAGE, **self._endpoints())
            while pages.has_next:
                for found in await pages.next_items():
                    if LABEL in (found.metadata or {}):
                        yield Found(
                            id=SandboxId(found.sandbox_id),
                            label=found.metadata[LABEL],
                            started=found.started_at,
                        )

    async def _opened(self, machine: AsyncSandbox, spec: Spec) -> E2bSandbox:
        sandbox = E2bSandbox(
            Machine(
                machine, patience=self._patience(spec), user=self._settings.user, options=self._endpoints()
            ),
            spec,
            self._callback(spec),
        )
        await sandbox.prepare()
        return sandbox

    def _patience(self, spec: Spec) -> int:
        """Return after how many unused seconds the service pauses or kills: later than we would."""
        return max(60, min(int(spec.idle_timeout * 2) + 60, self._settings.longest))

    def _callback(self, spec: Spec) -> Callback:
        reachable = spec.network is not Network.DENY_ALL
        return Callback(url=self._surroundings.callback_url if reachable else "")

    def _endpoints(self) -> dict[str, Any]:
        settings = self._settings
        if settings.api_key is None:
            raise Unauthorized("no key for e2b: set E2B_API_KEY or [sandbox.e2b] api_key")
        named = {
            "api_key": settings.api_key.get_secret_value(),
            "domain": settings.domain,
            "api_url": settings.api_url,
            "sandbox_url": settings.sandbox_url,
            "http_version": settings.http_version,
            "request_timeout": settings.request_timeout,
        }
        return {name: value for name, value in named.items() if value is not None}

    def _check(self, spec: Spec) -> None:
        template = spec.options.get("template")
        allowed = {self._settings.template, *self._settings.templates}
        if template is not None and template not in allowed:
            names = ", ".join(sorted(allowed))
            raise Refused(f"the template {template!r} is not one the operator allows: {names}")
        if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
            raise Refused("the namespace must be one plain path component")
        for name, value in spec.env.items():
            if not NAME.match(name) or LOADERS.match(name) or "\0" in value:
                raise Refused(f"the variable {name!r} is not allowed in a sandbox")


def network_of(spec: Spec, callback: Callback) -> Mapping[str, Any]:
    """Return what the service is told of the network: nothing, all, or what is listed and the callback."""
    if spec.network is Network.ALLOW_ALL:
        return {"allow_internet_access": True}
    if spec.network is Network.DENY_ALL:
        return {"allow_internet_access": False}
    host = urlsplit(callback.url).hostname
    allowed = [*spec.allow_domains, *spec.allow_cidrs, *([host] if host else [])]
    return {"network": {"allow_out": allowed, "deny_out": [EVERYWHERE]}}


def _plain(sandbox_id: str) -> None:
    if not sandbox_id.isascii() or not sandbox_id.replace("-", "").isalnum():
        raise Gone(f"{sandbox_id!r} is no sandbox of this provider")


@asynccontextmanager
async def open_provider(settings: E2bSettings, surroundings: Surroundings) -> AsyncIterator[Provider]:
    """Yield the provider; the SDK keeps its connections to itself and closes them with the process."""
    yield E2bProvider(settings, surroundings)

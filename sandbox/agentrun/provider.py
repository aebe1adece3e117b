"""The AgentRun provider: sandboxes of one cloud account, whose ids are made from our labels."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import structlog

from sandbox.agentrun.api import (
    ENDED_STATES,
    FAILED_STATES,
    READY,
    AgentRunApi,
    AgentRunSandboxInfo,
    open_api,
)
from sandbox.agentrun.execution import AgentRunHandle
from sandbox.agentrun.sandbox import AgentRunSandbox, prepare
from sandbox.agentrun.settings import AgentRunSettings
from sandbox.config import LOADER_VARIABLES, VARIABLE_NAME
from sandbox.errors import (
    FeatureUnsupported,
    ProviderRefused,
    ProviderUnreachable,
    SandboxGone,
    SandboxOutdated,
    repeatable,
)
from sandbox.exec.background_jobs import CompletionCallback
from sandbox.model import Network, SandboxId, SandboxSpec
from sandbox.port import Provider, ProviderContext, Sandbox, create_one_of_label

PREFIX = "dovecote-sandbox-"
MAX_ID_LENGTH = 128
NONCE_LENGTH = 8
POLL_SECONDS = 0.5
_ESCAPED = re.compile(r"[^a-z0-9-]")
_ESCAPE = re.compile(r"_([0-9a-f]+)_")
_ID = re.compile(rf"{PREFIX}[a-z0-9_-]+-[0-9a-f]{{{NONCE_LENGTH}}}")

log = structlog.get_logger(__name__)


class AgentRunProvider(Provider):
    """Creates sandboxes at AgentRun and connects to existing ones."""

    def __init__(self, api: AgentRunApi, settings: AgentRunSettings, context: ProviderContext) -> None:
        self._api = api
        self._settings = settings
        self._context = context

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the oldest sandbox of the label; create one if there is none with the right template."""
        return await create_one_of_label(partial(self._find_or_create, self._check(spec), spec))

    async def _find_or_create(self, template: str, spec: SandboxSpec) -> Sandbox:
        """Delete a sandbox whose start failed: it would stand in the way of each later one."""
        for one in await self._list_by_label(spec.label):
            if one.template != template or one.status in FAILED_STATES:
                await self._api.delete(one.id)
                continue
            try:
                return await self._open(one.id, spec)
            except SandboxGone:
                log.info("agentrun.sandbox_lost", sandbox=one.id)
        self._context.checkpoint("sandbox.create")
        return await self._deduplicate(await self._create(template, spec), template, spec)

    async def _create(self, template: str, spec: SandboxSpec) -> SandboxId:
        idle_seconds = max(60, min(int(spec.idle_timeout * 2) + 60, self._settings.longest))
        sandbox_id = new_id(spec.label)
        try:
            await self._api.create(sandbox_id, template=template, idle_seconds=idle_seconds)
        except ProviderUnreachable:
            try:
                await self._api.get(sandbox_id)
            except SandboxGone:  # it was not made; else only the answer was lost
                pass
            else:
                return sandbox_id
            raise
        return sandbox_id

    async def _deduplicate(self, sandbox_id: SandboxId, template: str, spec: SandboxSpec) -> Sandbox:
        """Keep the older sandbox of a label if two processes created one at the same time."""
        found = [one.id for one in await self._list_by_label(spec.label) if one.template == template]
        if not found or found[0] == sandbox_id:
            return await self._open(sandbox_id, spec)
        await self._api.delete(sandbox_id)
        return await self._open(found[0], spec)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox; raises SandboxGone, SandboxOutdated."""
        template = self._check(spec)
        if not _ID.fullmatch(sandbox_id):
            raise SandboxGone(f"{sandbox_id!r} is not a sandbox of this provider")
        if (await self._api.get(sandbox_id)).template != template and not spec.as_created:
            raise SandboxOutdated("the sandbox was made with another template")
        return await self._open(sandbox_id, spec)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a sandbox. Idempotent."""
        if _ID.fullmatch(sandbox_id):
            await self._api.delete(sandbox_id)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return our sandboxes; others of the cloud account have ids of another form."""
        found = [(one.id, label_of(one.id)) async for one in self._api.list() if _ID.fullmatch(one.id)]
        return sorted((number, label) for number, label in found if label.startswith(label_prefix))

    async def _list_by_label(self, label: str) -> Sequence[AgentRunSandboxInfo]:
        """Return the sandboxes of a label, the oldest first."""
        found = [one async for one in self._api.list() if _ID.fullmatch(one.id) and label_of(one.id) == label]
        return sorted(found, key=lambda one: (one.created, one.id))

    async def _open(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        await self._wait_until_ready(sandbox_id)
        handle = AgentRunHandle(self._api, sandbox_id, wait_seconds=self._settings.wait_seconds)
        with repeatable():
            user = await prepare(handle, spec)
        return AgentRunSandbox(handle, self._api, spec, user, self._callback(spec))

    async def _wait_until_ready(self, sandbox_id: SandboxId) -> None:
        deadline = time.monotonic() + self._settings.start_timeout
        while (status := (await self._api.get(sandbox_id)).status) != READY:
            if status in ENDED_STATES:
                raise SandboxGone(f"agentrun: the sandbox is {status}")
            if status in FAILED_STATES:
                raise ProviderRefused(f"agentrun: the sandbox is {status}: check its template")
            if time.monotonic() > deadline:
                raise ProviderUnreachable(
                    f"agentrun: the sandbox is {status} after {self._settings.start_timeout:g} seconds"
                )
            await asyncio.sleep(POLL_SECONDS)

    def _callback(self, spec: SandboxSpec) -> CompletionCallback:
        reachable = spec.network is not Network.DENY_ALL
        return CompletionCallback(url=self._context.callback_url if reachable else "")

    def _check(self, spec: SandboxSpec) -> str:
        """Return the template for a sandbox; raises FeatureUnsupported, ProviderRefused."""
        if spec.network is Network.RESTRICTED:
            raise FeatureUnsupported("agentrun has no network of named domains: use deny-all or allow-all")
        if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
            raise ProviderRefused("the namespace must be one plain path component")
        for name, value in spec.env.items():
            if not VARIABLE_NAME.match(name) or LOADER_VARIABLES.match(name) or "\0" in value:
                raise ProviderRefused(f"the variable {name!r} is not allowed in a sandbox")
        return template_for(self._settings, spec.network)


def template_for(settings: AgentRunSettings, network: Network) -> str:
    """Return the template of a network mode; raises ProviderRefused if it is not set."""
    field = "template" if network is Network.ALLOW_ALL else "private_template"
    name: str | None = getattr(settings, field)
    if name is None:
        raise ProviderRefused(
            f"no template for network.mode {network.value!r}: set [sandbox.agentrun] {field} to a template"
            f" whose network mode is {'PUBLIC' if network is Network.ALLOW_ALL else 'PRIVATE'}"
        )
    return name


def new_id(label: str) -> SandboxId:
    """Return a new id for a label's sandbox, from which `label_of` returns the label.

    Each sandbox has an id of its own: the baseline of synced files belongs to one instance, and files that a
    new and empty one lacks were not removed.
    """
    escaped = _ESCAPED.sub(lambda found: f"_{ord(found[0]):x}_", label)
    sandbox_id = f"{PREFIX}{escaped}-{secrets.token_hex(NONCE_LENGTH // 2)}"
    if len(sandbox_id) > MAX_ID_LENGTH:
        raise ProviderRefused(f"the label {label[:80]!r} is too long for an id at agentrun")
    return SandboxId(sandbox_id)


def label_of(sandbox_id: SandboxId) -> str:
    """Return the label that an id was made from; an id of another form has the empty label."""
    escaped = sandbox_id.removeprefix(PREFIX)[: -NONCE_LENGTH - 1]
    try:
        return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), escaped)
    except (ValueError, OverflowError):
        return ""


@asynccontextmanager
async def open_provider(settings: AgentRunSettings, context: ProviderContext) -> AsyncIterator[Provider]:
    """Yield the provider with an open session."""
    async with open_api(settings) as api:
        yield AgentRunProvider(api, settings, context)

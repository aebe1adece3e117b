"""Use sandboxes that Dovecote did not create: never create, suspend, relabel or delete them.

`open_provider` wraps every provider, so a provider cannot be asked to end a sandbox that is not its own,
neither by the reaper, nor by a deleted record or account, nor by a quota. The ids of such sandboxes
have a form that no provider gives to its own ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sandbox.config import EXTERNAL_NAME, LOADER_VARIABLES, VARIABLE_NAME
from sandbox.errors import FeatureUnsupported, ProviderRefused, SandboxGone
from sandbox.model import (
    BackgroundJob,
    ExecRequest,
    ExecResult,
    JobReport,
    SandboxId,
    SandboxSpec,
    external_name,
    is_external,
)
from sandbox.port import Feature, Provider, ProviderContext, ProviderPlugin, Sandbox


class ExternalSandbox(Sandbox):
    """An external sandbox: commands, jobs and files work, its life and its state stay as they are."""

    def __init__(self, sandbox: Sandbox, sandbox_id: SandboxId) -> None:
        self.id = sandbox_id
        self._sandbox = sandbox

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script."""
        return await self._sandbox.run(command)

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job."""
        await self._sandbox.spawn(job)

    async def report(self, job_id: str) -> JobReport:
        """Return the report of a job."""
        return await self._sandbox.report(job_id)

    async def stop(self, job_id: str) -> None:
        """Stop a job."""
        await self._sandbox.stop(job_id)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file."""
        return await self._sandbox.read(path, limit=limit)

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file."""
        await self._sandbox.write(path, content)

    async def suspend(self) -> None:
        """Refuse: Dovecote did not create the sandbox."""
        raise ProviderRefused("an external sandbox is not suspended: it belongs to who created it")

    async def expose(self, port: int) -> str:
        """Return a URL that reaches a port inside."""
        return await self._sandbox.expose(port)


class ExternalProvider(Provider):
    """A provider whose external sandboxes are attached, and never reach its `create` and `destroy`."""

    def __init__(self, provider: Provider, plugin: ProviderPlugin) -> None:
        self._provider = provider
        self._plugin = plugin

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Create a sandbox, or attach to the external one; raises ProviderRefused if that is gone."""
        if not spec.external:
            return await self._provider.create(spec)
        try:
            return await self.attach(spec)
        except SandboxGone as error:
            raise ProviderRefused(
                f"the external sandbox {spec.external!r} does not exist on {self._plugin.name} ({error}): "
                "start it again under this name, or name another one in the sandbox record"
            ) from error

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing sandbox; raises SandboxGone if the spec now names another one.

        With `as_created` it is the one of the id, whatever the spec names: a job may run in it.
        """
        if spec.as_created:
            spec = replace(spec, external=external_name(sandbox_id) if is_external(sandbox_id) else "")
        if not spec.external and not is_external(sandbox_id):
            return await self._provider.connect(sandbox_id, spec)
        if not spec.external:
            raise SandboxGone("the sandbox record no longer names an external sandbox")
        sandbox = await self.attach(spec)
        if sandbox.id != sandbox_id:
            raise SandboxGone("the sandbox record names another sandbox, or its name has been taken over")
        return sandbox

    async def attach(self, spec: SandboxSpec) -> Sandbox:
        """Return the external sandbox of a spec, without the calls that would change its life."""
        if Feature.EXTERNAL not in self._plugin.features:
            raise FeatureUnsupported(f"{self._plugin.name} cannot use a sandbox that Dovecote did not create")
        _check(spec)
        sandbox = await self._provider.attach(spec)
        return ExternalSandbox(sandbox, sandbox.id)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """Delete a sandbox of ours; an external one stays. Idempotent."""
        if not is_external(sandbox_id):
            await self._provider.destroy(sandbox_id)

    async def list(self, label_prefix: str = "") -> Sequence[tuple[SandboxId, str]]:
        """Return our sandboxes."""
        return await self._provider.list(label_prefix)


def _check(spec: SandboxSpec) -> None:
    """Raise ProviderRefused for a spec that cannot be attached."""
    if not EXTERNAL_NAME.fullmatch(spec.external):
        raise ProviderRefused(f"{spec.external[:80]!r} is not the name of an external sandbox")
    if not spec.namespace or "/" in spec.namespace or spec.namespace.startswith("."):
        raise ProviderRefused("the namespace must be one plain path component")
    for name, value in spec.env.items():
        if not VARIABLE_NAME.match(name) or LOADER_VARIABLES.match(name) or "\0" in value:
            raise ProviderRefused(f"the variable {name!r} is not allowed in a sandbox")


@asynccontextmanager
async def open_provider(
    plugin: ProviderPlugin, settings: Any, context: ProviderContext
) -> AsyncIterator[Provider]:
    """Open a provider with the rules about external sandboxes."""
    async with plugin.open(settings, context) as provider:
        yield ExternalProvider(provider, plugin)

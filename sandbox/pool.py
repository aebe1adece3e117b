"""Getting hold of a sandbox: the open one, else the one we know of, else a new one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandbox.errors import Gone
from sandbox.model import SandboxId, Spec
from sandbox.port import Provider, Sandbox

Returned = TypeVar("Returned")


class Pool:
    """The sandboxes this process has open, by label, all of one provider."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._open: dict[str, tuple[Spec, Sandbox]] = {}

    async def acquire(self, spec: Spec, known: SandboxId | None = None) -> Sandbox:
        """Return a sandbox for `spec`: the open one, the one called `known`, or a new one.

        A spec that changed since (variables, limits) is never served by the sandbox opened for the old one.
        """
        held = self._open.get(spec.label)
        if held is not None and held[0] == spec:
            return held[1]
        sandbox = await self._reconnect(spec, held[1].id if held else known)
        self._open[spec.label] = (spec, sandbox)
        return sandbox

    def evict(self, label: str) -> None:
        """Forget the open sandbox of this label; the provider's is left alone."""
        self._open.pop(label, None)

    async def with_sandbox(
        self, spec: Spec, function: Callable[[Sandbox], Awaitable[Returned]], known: SandboxId | None = None
    ) -> Returned:
        """Run `function` on a sandbox; when that turns out to be gone, exactly once more on a new one."""
        sandbox = await self.acquire(spec, known)
        try:
            return await function(sandbox)
        except Gone:
            self.evict(spec.label)
        return await function(await self.acquire(spec))

    async def destroy(self, label: str, sandbox_id: SandboxId) -> None:
        """Destroy a sandbox and forget it."""
        self.evict(label)
        await self._provider.destroy(sandbox_id)

    async def _reconnect(self, spec: Spec, known: SandboxId | None) -> Sandbox:
        if known is not None:
            try:
                return await self._provider.connect(known, spec)
            except Gone:
                self.evict(spec.label)
        return await self._provider.create(spec)

"""The sandboxes of `memory_sandboxes`, with ports: each is at the address in EXPOSED_URL."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import memory_sandboxes
from memory_sandboxes import MemoryProvider, MemorySandbox
from sandbox.model import SandboxId, SandboxSpec
from sandbox.port import Feature, Provider, Sandbox


class ExposedSandbox(MemorySandbox):
    """An instance with ports."""

    async def expose(self, port: int) -> str:
        """Return the address of the test's server, whatever the port is."""
        assert port
        return os.environ["EXPOSED_URL"]


class ExposedProvider(MemoryProvider):
    """Machines in a dictionary, with ports."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Return the instance of this label, created if missing."""
        return ExposedSandbox((await super().create(spec)).id, self.instances)

    async def connect(self, sandbox_id: SandboxId, spec: SandboxSpec) -> Sandbox:
        """Return an existing instance."""
        return ExposedSandbox((await super().connect(sandbox_id, spec)).id, self.instances)


@asynccontextmanager
async def _open(_settings: Any, _context: Any) -> AsyncIterator[Provider]:
    yield ExposedProvider()


plugin = replace(
    memory_sandboxes.plugin,
    name="exposed",
    features=memory_sandboxes.plugin.features | {Feature.EXPOSE},
    open=_open,
)

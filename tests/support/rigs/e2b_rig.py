"""Open the E2B provider in a test: the vendor's SDK on a simulator of the service on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2b import AsyncSandbox

from e2b_service import API_KEY
from sandbox.e2b.settings import E2bSettings
from sandbox.registry import built_in
from sandbox.testing.rig import OutsideSandbox, ProviderRig
from sandbox_rigs import RigFactory
from service_processes import service_url


def _loopback(directory: Path) -> ProviderRig:
    url = service_url("e2b_service")
    settings = E2bSettings.model_validate(
        {"api_key": API_KEY, "api_url": url, "sandbox_url": url, "http_version": "1.1"}
    )
    return ProviderRig(
        name="loopback",
        plugin=built_in()["e2b"],
        settings=settings,
        directory=directory,
        runs_on="a loopback service written from the vendor's documents, called by the vendor's own SDK",
        outside=lambda: outside_sandbox(url),
    )


@dataclass(kw_only=True)
class OutsideE2bSandbox(OutsideSandbox):
    """A sandbox of the vendor's SDK, which no provider created."""

    name: str
    options: dict[str, Any]

    async def state(self) -> object:
        """Return what the service says about its life, but for its end, which use puts off."""
        info = await AsyncSandbox.get_info(self.name, **self.options)
        return (info.sandbox_id, info.metadata, str(info.state), info.started_at)

    async def remove(self) -> None:
        """Kill it."""
        await AsyncSandbox.kill(self.name, **self.options)


@asynccontextmanager
async def outside_sandbox(url: str) -> AsyncIterator[OutsideE2bSandbox]:
    """Create a sandbox that is none of a provider's, and kill it afterwards."""
    options: dict[str, Any] = {"api_key": API_KEY, "api_url": url, "sandbox_url": url, "http_version": "1.1"}
    made = await AsyncSandbox.create(timeout=600, metadata={"owner": "somebody-else"}, **options)
    outside = OutsideE2bSandbox(name=made.sandbox_id, options=options)
    try:
        yield outside
    finally:
        await outside.remove()


VARIANTS: dict[str, RigFactory] = {"loopback": _loopback}

"""Open the Daytona provider in a test: the vendor's SDK on a simulator of the service on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams, DaytonaConfig
from daytona.common.errors import DaytonaNotFoundError

from daytona_service import API_KEY
from sandbox.daytona.settings import DaytonaSettings
from sandbox.registry import built_in
from sandbox.testing.rig import OutsideSandbox, ProviderRig
from sandbox_rigs import RigFactory
from service_processes import service_url


def _loopback(directory: Path) -> ProviderRig:
    settings = DaytonaSettings.model_validate({"api_key": API_KEY, "api_url": service_url("daytona_service")})
    return ProviderRig(
        name="loopback",
        plugin=built_in()["daytona"],
        settings=settings,
        directory=directory,
        runs_on="a loopback service written from the vendor's documents, called by the vendor's own SDK",
        outside=outside_sandbox,
    )


def _client() -> AsyncDaytona:
    return AsyncDaytona(DaytonaConfig(api_key=API_KEY, api_url=service_url("daytona_service")))


@dataclass(kw_only=True)
class OutsideDaytonaSandbox(OutsideSandbox):
    """A sandbox of the vendor's SDK, which no provider created."""

    name: str

    async def state(self) -> object:
        """Return what the service says about its life."""
        async with _client() as client:
            found = await client.get(self.name)
            timers = (found.auto_stop_interval, found.auto_archive_interval, found.auto_delete_interval)
            return (found.id, found.name, found.labels, str(found.state), timers)

    async def remove(self) -> None:
        """Delete it, unless it is gone."""
        async with _client() as client:
            with suppress(DaytonaNotFoundError):
                await (await client.get(self.name)).delete()


@asynccontextmanager
async def outside_sandbox() -> AsyncIterator[OutsideDaytonaSandbox]:
    """Create a sandbox that is none of a provider's, and delete it afterwards."""
    wanted = CreateSandboxFromSnapshotParams(labels={"owner": "somebody-else"}, auto_stop_interval=77)
    async with _client() as client:
        made = await client.create(wanted)
    outside = OutsideDaytonaSandbox(name=made.id)
    try:
        yield outside
    finally:
        await outside.remove()


VARIANTS: dict[str, RigFactory] = {"loopback": _loopback}

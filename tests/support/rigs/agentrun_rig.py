"""Open the AgentRun provider in a test: its own client on a simulator of the service on loopback."""

from __future__ import annotations

from pathlib import Path

from agentrun_service import settings_for
from sandbox.agentrun.settings import AgentRunSettings
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import RigFactory
from service_processes import service_url


def _loopback(directory: Path) -> ProviderRig:
    settings = AgentRunSettings.model_validate(settings_for(service_url("agentrun_service")))
    return ProviderRig(
        name="loopback",
        plugin=built_in()["agentrun"],
        settings=settings,
        directory=directory,
        runs_on="a loopback service written from the vendor's documents, called by the provider's own client",
    )


VARIANTS: dict[str, RigFactory] = {"loopback": _loopback}

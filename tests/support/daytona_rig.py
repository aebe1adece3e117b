"""Open the Daytona provider in a test: the vendor's SDK on a simulator of the service on loopback."""

from __future__ import annotations

from pathlib import Path

from daytona_service import API_KEY
from sandbox.daytona.settings import DaytonaSettings
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import RigFactory
from service_processes import service_url


def _loopback(directory: Path) -> ProviderRig:
    settings = DaytonaSettings.model_validate({"api_key": API_KEY, "api_url": service_url("daytona_service")})
    return ProviderRig(name="loopback", plugin=built_in()["daytona"], settings=settings, directory=directory)


VARIANTS: dict[str, RigFactory] = {"loopback": _loopback}

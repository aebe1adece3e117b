"""Open the E2B provider in a test: the vendor's SDK on a simulator of the service on loopback."""

from __future__ import annotations

from pathlib import Path

from e2b_service import API_KEY
from sandbox.e2b.settings import E2bSettings
from sandbox.registry import built_in
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import RigFactory
from service_processes import service_url


def _loopback(directory: Path) -> ProviderRig:
    url = service_url("e2b_service")
    settings = E2bSettings.model_validate(
        {"api_key": API_KEY, "api_url": url, "sandbox_url": url, "http_version": "1.1"}
    )
    return ProviderRig(name="loopback", plugin=built_in()["e2b"], settings=settings, directory=directory)


VARIANTS: dict[str, RigFactory] = {"loopback": _loopback}

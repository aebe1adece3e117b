"""The provider keeps the contract of sandbox providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.registry import plugin
from sandbox.testing.rig import ProviderRig
from sandbox.testing.suite import ProviderContract


class TestDirectory(ProviderContract):
    """The contract, on directories below the test's own."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> ProviderRig:
        """Return the provider as the gateway finds it."""
        installed = plugin("directory")
        settings = installed.settings()
        return ProviderRig(
            name="default", plugin=installed, settings=settings, directory=tmp_path, isolated=False
        )

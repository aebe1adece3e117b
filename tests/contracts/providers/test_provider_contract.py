"""Every built-in provider keeps the contract of `sandbox.testing`, in each of its variants."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.testing.rig import ProviderRig
from sandbox.testing.suite import ProviderContract
from sandbox_rigs import all_rigs


class TestProviderContract(ProviderContract):
    """The contract, for each built-in provider and variant."""

    @pytest.fixture(params=list(all_rigs()))
    def rig(self, request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
        """Return each provider's rig in turn."""
        return all_rigs()[request.param](tmp_path)

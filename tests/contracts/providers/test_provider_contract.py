"""Every built-in provider keeps the contract of `sandbox.testing`, in each of its variants.

`.ci/exhaustive` also runs it on the host without control groups and without isolation. The gate tests in
tests/faults what differs there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from repetitions import in_gate
from sandbox.testing.rig import ProviderRig
from sandbox.testing.suite import ProviderContract
from sandbox_rigs import all_rigs

IN_GATE = set(all_rigs()) - {"host-rlimits", "host-plain"}


class TestProviderContract(ProviderContract):
    """The contract, for each built-in provider and variant."""

    @pytest.fixture(params=in_gate(all_rigs(), IN_GATE))
    def rig(self, request: pytest.FixtureRequest, tmp_path: Path) -> ProviderRig:
        """Return each provider's rig in turn."""
        return all_rigs()[request.param](tmp_path)

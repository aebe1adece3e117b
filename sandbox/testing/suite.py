"""The contract of a provider: a test class to subclass, which needs the fixture `rig`, a ProviderRig."""

from __future__ import annotations

from sandbox.testing.external import ExternalContract
from sandbox.testing.features import ProviderFeatureContract
from sandbox.testing.jobs import JobContract
from sandbox.testing.life import LifeContract
from sandbox.testing.running import RunContract

__all__ = ["ProviderContract"]


class ProviderContract(RunContract, LifeContract, JobContract, ProviderFeatureContract, ExternalContract):
    """What every provider promises. Background jobs are tested where the provider declares JOBS."""

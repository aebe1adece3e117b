"""The environment of an agent's commands and files: a sandbox's config, its spec, and its owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sandbox.config import SandboxConfig
from sandbox.labels import Owner
from sandbox.lifecycle.reservations import SandboxRequest
from sandbox.model import SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where an agent's commands run: the sandbox's config, its spec, and its owner.

    `files_only`: there is no sandbox, and the workspace's files are read from the store. `missing_runtimes`
    are runtimes of the contract that the provider is known to lack.
    """

    config: SandboxConfig
    spec: SandboxSpec
    owner: Owner
    files_only: bool = False
    missing_runtimes: Sequence[str] = ()

    @property
    def provider(self) -> str:
        """The provider's name."""
        return self.config.provider

    @property
    def sandbox_record(self) -> str | None:
        """The id of the sandbox record."""
        return self.owner.record

    @property
    def workspace(self) -> str | None:
        """The id of the workspace."""
        return self.owner.workspace

    @property
    def request(self) -> SandboxRequest:
        """The request to the pool for this sandbox."""
        snapshots = self.config.snapshot and not self.spec.external
        return SandboxRequest(spec=self.spec, owner=self.owner, provider=self.provider, snapshots=snapshots)

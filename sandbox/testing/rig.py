"""The rig of a provider: its settings, and the directories and specs of one test."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pytest

from sandbox.errors import FeatureUnsupported, SandboxError
from sandbox.lifecycle.external import open_provider
from sandbox.model import SandboxSpec
from sandbox.port import EgressProxies, Feature, Provider, ProviderContext, ProviderPlugin
from sandbox.testing.callbacks import CallbackServer

TOKEN = "the-job-token-that-nobody-sees"
"""The token of the suite's jobs."""


class OutsideSandbox(Protocol):
    """A sandbox that a test made with the vendor's own interface, behind the provider's back."""

    name: str

    @abstractmethod
    async def state(self) -> object:
        """Return all that the vendor says about its life: its state, labels and timers."""

    @abstractmethod
    async def remove(self) -> None:
        """Delete it, as its owner may at any time."""


@dataclass(kw_only=True)
class ProviderRig:
    """A provider as a test opens it; opening a rig twice gives the same provider with the same sandboxes.

    `directory` is a temporary directory of the test. `isolated` is False for a provider that does not
    protect the machine from its commands.
    """

    name: str
    plugin: ProviderPlugin
    settings: Any
    directory: Path
    isolated: bool = True
    egress: EgressProxies = field(default_factory=EgressProxies)
    """The gateway's proxies for restricted networks; by default none listens."""
    outside: Callable[[], AbstractAsyncContextManager[OutsideSandbox]] | None = None
    """Makes a sandbox that is none of the provider's, for a provider with the feature EXTERNAL."""
    runs_on: str = ""
    """In words, whether commands run on a real engine and which, or on a loopback service."""
    refusals: list[str] = field(default_factory=list)
    """What the provider said in this test when it refused a feature that it does not have."""
    label: str = field(default_factory=lambda: f"label-{secrets.token_hex(4)}")

    @property
    def provider_context(self) -> ProviderContext:
        """The context that the gateway would give the provider."""
        return ProviderContext(
            state=self.directory / "state",
            callbacks=self.callback_server,
            allow_unsandboxed=not self.isolated,
            egress=self.egress,
        )

    @property
    def mounts(self) -> bool:
        """Whether the workspace is mounted from this machine."""
        return Feature.MOUNTS_WORKSPACE in self.plugin.features

    @property
    def reserves(self) -> bool:
        """Whether a sandbox can be reserved."""
        return Feature.PERSISTENT in self.plugin.features

    @property
    def workspace(self) -> Path:
        """The directory of the workspace."""
        return self.directory / "workspace"

    @cached_property
    def callback_server(self) -> CallbackServer:
        """The gateway's side of the callback sockets; it listens only while `listening` is open."""
        return CallbackServer(root=self.directory / "callbacks")

    def spec(self, **changes: Any) -> SandboxSpec:
        """Return a small sandbox with a workspace."""
        fields = {
            "label": self.label,
            "namespace": "space",
            "workspace": self.workspace,
            "memory_mb": 256,
            "pids": 64,
        }
        return SandboxSpec(**{**fields, **changes})

    @contextmanager
    def refuses(
        self, error: type[SandboxError] = FeatureUnsupported, match: str | None = None
    ) -> Iterator[None]:
        """Expect that a feature is refused, and keep the words for the table of providers."""
        with pytest.raises(error, match=match) as raised:
            yield
        assert str(raised.value), "a refusal says in words what the provider does not have"
        self.refusals.append(str(raised.value))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Provider]:
        """Open the provider."""
        async with open_provider(self.plugin, self.settings, self.provider_context) as provider:
            yield provider

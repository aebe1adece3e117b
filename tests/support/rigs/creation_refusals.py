"""What each provider in a cloud does if its service refuses to create a sandbox."""

from __future__ import annotations

from typing import Protocol

import pytest

from sandbox.errors import ProviderRefused, ProviderUnreachable
from sandbox.model import SandboxSpec
from sandbox.port import Provider

SPEC = SandboxSpec(label="dovecote-1", namespace="space", persistent=True)


class RefusingService(Protocol):
    """A simulated service that answers each creation with the status `refusal`, unless that is None."""

    refusal: int | None


class CreationRefusals:
    """Tests of a module with the fixtures `provider` and `service`."""

    @pytest.mark.parametrize("status", [400, 402, 403, 404, 422])
    async def test_a_refused_creation_is_the_operators(
        self, provider: Provider, service: RefusingService, status: int
    ) -> None:
        """What the service will not create however often it is asked is not called unreachable, or gone."""
        service.refusal = status
        with pytest.raises(ProviderRefused, match="not for this team"):
            await provider.create(SPEC)

    @pytest.mark.parametrize("status", [429, 500])
    async def test_a_creation_that_may_succeed_later_is_retried(
        self, provider: Provider, service: RefusingService, status: int
    ) -> None:
        """A limit of the rate or of running sandboxes, and an error of the service, pass."""
        service.refusal = status
        with pytest.raises(ProviderUnreachable):
            await provider.create(SPEC)

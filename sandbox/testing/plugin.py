"""A pytest plugin: readable assertions in the suite, and the fixtures that follow from `rig`.

pytest loads it by entry point wherever Dovecote is installed, so it imports nothing until a test needs it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sandbox.port import Provider, Sandbox
    from sandbox.testing.rig import ProviderRig

pytest.register_assert_rewrite(
    *(f"sandbox.testing.{name}" for name in ("external", "features", "jobs", "life", "running"))
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the table of the suite's promises."""
    parser.getgroup("dovecote").addoption(
        "--provider-table",
        metavar="FILE",
        help="write a Markdown table of the promises of sandbox providers and how each test of them ended",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the table if it is asked for, in each process."""
    if path := config.getoption("--provider-table"):
        from sandbox.testing.provider_table import ProviderTable

        command = [str(word) for word in config.invocation_params.args]
        config.pluginmanager.register(ProviderTable(Path(path), command))


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Return the rig's provider, open; its sandboxes are destroyed afterwards."""
    async with rig.open() as provider:
        yield provider
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


@pytest.fixture
async def sandbox(provider: Provider, rig: ProviderRig) -> Sandbox:
    """Return a sandbox with the rig's workspace."""
    return await provider.create(rig.spec())


@pytest.fixture
def sleep_seconds() -> str:
    """Return how many seconds a command sleeps; no other process of this machine uses the number."""
    from sandbox.testing.processes import unique_sleep_seconds

    return unique_sleep_seconds()


@pytest.fixture
def declares_jobs(rig: ProviderRig) -> None:
    """Skip the test for a provider without background jobs."""
    from sandbox.port import Feature

    if Feature.JOBS not in rig.plugin.features:
        pytest.skip("the provider does not declare jobs")

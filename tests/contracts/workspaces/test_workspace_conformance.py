"""The agent library's own rules for workspaces, on sandboxes of the host.

`.ci/exhaustive` also runs them on docker and on the simulators of other providers, which read and write files
by the commands of tests/contracts/exec/test_shell_files.py.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from gateway.agents.model.workspace import SandboxWorkspace
from repetitions import in_gate
from sandbox.model import SandboxId
from sandbox.port import Provider
from sandbox.testing.rig import ProviderRig
from sandbox_rigs import all_rigs

IN_GATE = {"host-control_groups"}
VARIANTS = {*IN_GATE, "docker-engine", "e2b-loopback", "daytona-loopback", "kubernetes-pods"}
PIDS = 512
"""What hundreds of commands in a row leave counts until the machine's first process has buried it."""

RIGS = in_gate((name for name in all_rigs() if name in VARIANTS), IN_GATE)


@pytest.fixture(params=RIGS, scope="module")
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderRig]:
    """Return each provider, or a simulator of its service; one sandbox is enough for nearly all rules."""
    rig = all_rigs()[request.param](tmp_path_factory.mktemp("rig"))
    yield rig
    asyncio.run(_clean(rig))


async def _clean(rig: ProviderRig) -> None:
    async with rig.open() as provider:
        for sandbox_id, _ in await provider.list(rig.label):
            await provider.destroy(sandbox_id)


@pytest.fixture
async def provider(rig: ProviderRig) -> AsyncIterator[Provider]:
    """Return the provider."""
    async with rig.open() as provider:
        yield provider


RULES = {
    name: value
    for name, value in vars(WorkspaceBackendSuite).items()
    if not name.startswith("__") and name != "pytestmark"
}
"""The library's rules without its mark for another runner of asynchronous tests: one loop does for all."""

Rules = type("Rules", (), RULES)


class TestConformance(Rules):  # type: ignore[misc,valid-type]
    """Every rule but those that want more than the port promises."""

    @pytest.fixture
    def backend(self, rig: ProviderRig, provider: Provider) -> WorkspaceBackend:
        """Return a workspace on a sandbox of its own."""
        return SandboxWorkspace(rig.name, provider, rig.spec(pids=PIDS))

    @pytest.fixture
    def fresh_backend(self, rig: ProviderRig, provider: Provider) -> Callable[[], WorkspaceBackend]:
        """Return how another one is made."""
        spec = rig.spec(label=f"{rig.label}:{secrets.token_hex(4)}", pids=PIDS)
        return lambda: SandboxWorkspace(rig.name, provider, spec)

    @pytest.fixture
    def attach_backend(
        self, rig: ProviderRig, provider: Provider
    ) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        """Return how a second one is attached."""
        spec = rig.spec(pids=PIDS)
        return lambda ref: SandboxWorkspace(rig.name, provider, spec, ref)

    @pytest.fixture
    def destroy_environment(self, provider: Provider) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        """Return how the sandbox behind one is destroyed."""

        async def destroy(backend: WorkspaceBackend) -> None:
            if backend.ref is not None:
                await provider.destroy(SandboxId(backend.ref.id))

        return destroy

    @pytest.fixture
    def can_detect_exit_with_inherited_output_pipes(self) -> bool:
        """What a command leaves in the background ends with it, so that there is nothing to detect."""
        return False

    async def test_a_backend_attached_by_ref_reaches_a_detached_process(self) -> None:
        """Nothing outlives a run of ours: jobs do."""
        pytest.skip("a run leaves nothing behind by the port's own promise; jobs outlive it")

    async def test_large_file_round_trip(self, rig: ProviderRig, backend: WorkspaceBackend) -> None:
        """Three hundred commands behave the same on every provider: the fastest one is tested."""
        if rig.plugin.name != "host":
            pytest.skip("hundreds of commands of one kind are run on the host alone")
        await RULES["test_large_file_round_trip"](self, backend)

    async def test_cancellation_stops_foreground_work(
        self, rig: ProviderRig, backend: WorkspaceBackend, has_real_posix_shell: bool
    ) -> None:
        """The rule asks for a process by its number, which on the host is another one in each run."""
        if rig.plugin.name == "host":
            pytest.skip("each run has process numbers of its own; the provider contract looks from outside")
        await RULES["test_cancellation_stops_foreground_work"](self, backend, has_real_posix_shell)

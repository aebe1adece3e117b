"""docs/guide/sandboxes/writing-a-provider.md: a provider needs an entry point and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import registry
from sandbox.config import SandboxConfig, problems
from sandbox.model import ExecRequest, SandboxSpec
from sandbox.port import CallbackDirectories, ProviderContext

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "sandboxes" / "writing-a-provider.md"


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[None]:
    """Install a distribution that has an entry point, as pip would leave it."""
    about = tmp_path / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[dovecote.sandboxes]\nmemory = memory_sandboxes:plugin\n")
    sys.path.append(str(tmp_path))
    registry.installed.cache_clear()
    yield
    sys.path.remove(str(tmp_path))
    registry.installed.cache_clear()


@pytest.mark.usefixtures("installed")
async def test_a_provider_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """It is installed, judges records that name it, and makes sandboxes, with no line of ours changed."""
    plugin = registry.plugin("memory")
    wrong = SandboxConfig(provider="memory", network={"mode": "allow-all"})  # type: ignore[arg-type]  # as JSON says it
    assert [problem.pointer for problem in problems(wrong, plugin)] == ["/network/mode"]
    assert not problems(SandboxConfig(provider="memory", persistent=True), plugin)
    context = ProviderContext(
        state=tmp_path / "state", callbacks=CallbackDirectories(root=tmp_path / "callbacks")
    )
    async with plugin.open(plugin.settings(), context) as provider:
        sandbox = await provider.create(SandboxSpec(label="dovecote-here-one", namespace="space"))
        assert (
            await provider.create(SandboxSpec(label="dovecote-here-one", namespace="space"))
        ).id == sandbox.id
        assert (await sandbox.run(ExecRequest(script="echo pigeon"))).stdout == b"pigeon\n"
        assert await provider.list("dovecote-here-") == [(sandbox.id, "dovecote-here-one")]


def test_the_page_names_what_there_is() -> None:
    """Every file the page names exists, and the plugin it shows is the one that is tested."""
    text = PAGE.read_text()
    for name in ("sandbox/port.py", "sandbox/errors.py", "tests/support/memory_sandboxes.py"):
        assert name in text
        assert (PAGE.parents[3] / name).is_file()
    assert 'dovecote.sandboxes"]\nmemory = ' in text

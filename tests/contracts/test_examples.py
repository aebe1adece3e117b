"""The example packages keep their contracts, and no installed adapter joins the project's own runs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import channels.registry
import sandbox.registry
from example_packages import CONTRACT_EXAMPLES, EXAMPLES, ROOT, add_distribution, environment, install
from sandbox.testing import provider_table

COLLECTED = [
    "tests/contracts/platforms/test_channel_contract.py",
    "tests/contracts/providers/test_provider_contract.py",
]


def run_pytest(folder: Path, *arguments: str, paths: tuple[Path, ...]) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, in an environment where `paths` are installed."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", *arguments],
        cwd=folder,
        env=environment(*paths),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_keeps_its_contract(example: str, tmp_path: Path) -> None:
    """The tests of an example, a whole contract for an adapter, pass when it is installed beside Dovecote."""
    if example == "agent-langgraph" and find_spec("langgraph") is None:
        pytest.skip("langgraph is not installed: it is a dependency of examples/agent-langgraph alone")
    folder = install(example, tmp_path)
    page = tmp_path / "providers.md"
    options = [f"--provider-table={page}"] if example == "provider-example" else []
    done = run_pytest(folder, f"--basetemp={tmp_path / 'base'}", *options, paths=(tmp_path, folder))
    assert done.returncode == 0, done.stdout + done.stderr
    if options:
        shown = page.read_text()
        assert provider_table.rows_and_columns(shown) == (provider_table.expected_rows(), ["directory"])
        assert "| passed |" in shown
        assert "| refused (" in shown
        assert "| failed (" not in shown
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > (20 if example in CONTRACT_EXAMPLES else 1)


def test_an_installed_adapter_does_not_join_our_tests(tmp_path: Path) -> None:
    """The suites of this repository cover the built-in adapters only, also when another one is broken."""
    others = {"other": "memory_sandboxes:plugin", "broken": "module_that_is_not_there:plugin"}
    add_distribution(tmp_path, "other-adapters", {"dovecote.channels": others, "dovecote.sandboxes": others})
    done = run_pytest(ROOT, "--collect-only", *COLLECTED, paths=(tmp_path,))
    assert done.returncode == 0, done.stdout + done.stderr
    collected = set(re.findall(r"test_\w+\[(\w+)", done.stdout))
    assert {*channels.registry.built_in(), *sandbox.registry.built_in()} <= collected
    assert not set(others) & collected

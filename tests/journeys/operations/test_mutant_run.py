"""The mutation run reports a fault as killed only by tests that pass without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.mutant_table import Mutant
from bench.mutants import failure_without_faults, run_mutant

MUTANT = Mutant(
    name="one is two", file="numbers_of_ours.py", old="ONE = 1", new="ONE = 2", tests=("test_numbers.py",)
)
IMPORT = "from numbers_of_ours import ONE\n"


@pytest.fixture(autouse=True)
def without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of the trees need none of the installed plugins, which take two seconds to load."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def make_tree(tree: Path, test: str) -> Path:
    """Write a module and a test of it."""
    (tree / MUTANT.file).write_text("ONE = 1\n")
    (tree / "test_numbers.py").write_text(f"{IMPORT}def test_one() -> None:\n    assert {test}\n")
    return tree


@pytest.mark.parametrize(("test", "result"), [("ONE == 1", "killed"), ("ONE > 0", "survived")])
def test_a_fault_is_killed_by_a_failing_test(tmp_path: Path, test: str, result: str) -> None:
    """The tests of a fault decide about it, and the file is restored."""
    tree = make_tree(tmp_path, test)
    assert run_mutant(tree, MUTANT).result == result
    assert (tree / MUTANT.file).read_text() == "ONE = 1\n"


def test_tests_that_fail_without_a_fault_are_reported(tmp_path: Path) -> None:
    """Their output is returned, because they would report every fault as killed."""
    assert "test_numbers.py::test_one" in failure_without_faults(make_tree(tmp_path, "ONE == 3"), [MUTANT])
    assert failure_without_faults(make_tree(tmp_path, "ONE == 1"), [MUTANT, MUTANT]) == ""

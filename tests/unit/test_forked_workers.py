"""Tests that run in forked workers are reported as if they ran in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"
APART = ("-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider")
CONFTEST = """
from forked_workers import ForkedWorkers

def pytest_configure(config):
    config.pluginmanager.register(ForkedWorkers(3))
"""
FIRST = """
import os
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def made():
    with Path("made").open("a") as file:
        file.write("x")
    yield

def test_passes(made, tmp_path):
    assert list(tmp_path.iterdir()) == []

def test_fails(made):
    print("what it printed")
    assert "left" == "right"

def test_is_skipped(made):
    pytest.skip("no reason")

def test_dies(made):
    os._exit(7)

def test_comes_after_the_death(made):
    pass
"""
SECOND = """
import warnings
import pytest

@pytest.fixture
def broken():
    yield
    raise ValueError("in the end")

def test_ends_badly(broken):
    pass

def test_warns():
    warnings.warn("a remark")

@pytest.mark.parametrize("number", range(20))
def test_one_of_many(number):
    assert number >= 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two files of tests."""
    folder = tmp_path_factory.mktemp("forked")
    for name, text in {"conftest": CONFTEST, "test_first": FIRST, "test_second": SECOND}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder without this repository's plugins and settings."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", *APART, *options],
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SUPPORT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_every_outcome_is_reported(folder: Path) -> None:
    """Failures, their output, errors, skips and warnings arrive; a death fails its test and no other."""
    result = run_pytest(folder)
    assert result.returncode == pytest.ExitCode.TESTS_FAILED, result.stdout
    for line in (
        "FAILED test_first.py::test_fails - AssertionError",
        "FAILED test_first.py::test_dies - a worker ended with code 7",
        "ERROR test_second.py::test_ends_badly - ValueError: in the end",
        "UserWarning: a remark",
        "what it printed",
        "no reason",
    ):
        assert line in result.stdout, result.stdout
    assert "2 failed, 24 passed, 1 skipped, 1 warning, 1 error" in result.stdout, result.stdout


def test_a_file_is_run_by_one_worker(folder: Path) -> None:
    """The fixture of a module is made once."""
    (folder / "made").unlink(missing_ok=True)
    result = run_pytest(folder, "-k", "passes or skipped")
    assert result.returncode == pytest.ExitCode.OK, result.stdout
    assert (folder / "made").read_text() == "x"


def test_no_test_begins_after_as_many_failures_as_are_allowed(folder: Path) -> None:
    """`--exitfirst` ends the workers after what they run: of the tests that pass, the last does not begin."""
    result = run_pytest(folder, "--exitfirst", "test_first.py")
    assert result.returncode != pytest.ExitCode.OK
    assert "FAILED test_first.py::test_fails" in result.stdout
    assert " 1 passed" in result.stdout

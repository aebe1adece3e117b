"""What holds for every test run: its shared session, its examples, and that it leaves no process behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

from gateway_process import discard_logs, last_logs, unattributed_lines
from leftovers import Leftover, end_jobs, left_behind
from postgres import end_shared
from product_loggers import log_plain_tracebacks, restored_logging, silent_loggers
from run_order import shared_order
from session import Session

SESSION = pytest.StashKey[Session]()
LEFT = pytest.StashKey[list[Leftover]]()

MOST_WORKERS = 4
"""Workers of a run of directories: each one collects all tests of the run."""

# No example is judged by how long it takes, which says more of the machine.
# The gate asks for the profile `ci`, and .ci/exhaustive for many examples.
settings.register_profile("quick", deadline=None, max_examples=10)
settings.register_profile("ci", deadline=None, max_examples=40)
settings.register_profile("exhaustive", deadline=None, max_examples=400)
settings.load_profile("quick")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run whole directories in one worker per processor; `-n`, `--pdb` and `-s` decide otherwise."""
    option = config.option
    decided = getattr(option, "numprocesses", 0) is not None or option.tx
    if decided or hasattr(config, "workerinput") or option.usepdb or option.capture == "no":
        return
    if all(Path(given).is_dir() for given in config.args):
        option.numprocesses = min(len(os.sched_getaffinity(0)), MOST_WORKERS)
        option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    """Begin the session, in the first process."""
    log_plain_tracebacks()
    if not hasattr(config, "workerinput"):
        config.stash[SESSION] = Session()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would never again look at what is kept until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests of a run with several workers."""
    if hasattr(config, "workerinput"):
        items[:] = shared_order(items, config.workerinput["workercount"])


@pytest.fixture(autouse=True)
def logging_of_one_test() -> Generator[None, None, None]:
    """Let no test inherit the logging that another one has set up."""
    with restored_logging():
        yield


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail a test after which a logger is silent (a library may set levels) or whose log lacks an account."""
    assert not (silent := silent_loggers()), f"these loggers drop errors: {silent}"
    assert not (lines := unattributed_lines()), f"these log lines do not name the account: {lines}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of its gateways with a test that fails."""
    report = yield
    if report.failed:
        report.sections += last_logs()
    if report.when == "teardown":
        discard_logs()
    return report


def pytest_runtest_logfinish() -> None:
    """End the jobs of gateways that ended with the test."""
    end_jobs()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that left processes behind, and end them."""
    shared = session.config.stash.get(SESSION, None)
    if shared is None:
        return
    end_shared()
    shared.end()
    base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    left = session.config.stash[LEFT] = left_behind([shared.mark, f"{base}/"])
    for process in left:
        process.kill()
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the processes that were left behind."""
    for process in config.stash.get(LEFT, []):
        terminalreporter.write_line(f"LEFT BEHIND {process}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's directory."""
    shared = config.stash.get(SESSION, None)
    if shared is not None:
        shared.remove()

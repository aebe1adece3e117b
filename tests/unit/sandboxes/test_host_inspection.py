"""The host provider's inspection of this machine, which the gateway runs while it starts."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from sandbox import registry
from sandbox.host.isolation import bubblewrap, root_filesystem
from sandbox.host.isolation.repeated_probe import RepeatedProbe
from sandbox.host.provider import find_network
from sandbox.host.settings import HostSettings

THREADS = 4


def test_the_network_is_tested_once_by_all_threads_that_inspect_the_host(tmp_path: Path) -> None:
    """A helper that fails is run once, and each thread and `open` get its failure."""
    runs, helper = tmp_path / "runs", tmp_path / "pasta"
    helper.write_text(f"#!/bin/sh\necho run >> '{runs}'\nsleep 0.2\nexit 1\n")
    helper.chmod(0o755)
    settings = HostSettings(network_helper=helper)
    with ThreadPoolExecutor(THREADS + 1) as pool:
        opened = pool.submit(find_network, settings)
        for inspected in [pool.submit(registry.plugin("host").inspect, settings) for _ in range(THREADS)]:
            assert inspected.result() is None
    found = opened.result()
    assert not found.isolated
    if "Operation not permitted" in found.detail:
        pytest.skip("root may make no namespace here, as in a container without CAP_SYS_ADMIN")
    assert runs.read_text() == "run\n"


def test_a_failure_is_tested_again_after_a_while_and_a_success_is_kept() -> None:
    """A test that took two seconds is repeated after ten more, until it succeeds."""
    now, outcomes = [100.0], iter([False, False, True])

    def tested(_: str) -> bool:
        now[0] += 2
        return next(outcomes)

    test = RepeatedProbe(tested, works=bool, clock=lambda: now[0])
    assert [test("bwrap"), test("bwrap")] == [False, False]
    assert now == [102.0]
    now[0] += 10
    assert not test("bwrap")
    assert now == [114.0]
    now[0] += 10
    assert [test("bwrap"), test("bwrap")] == [True, True]
    assert now == [126.0]


def test_the_probe_mounts_what_a_sandbox_mounts_and_no_more(tmp_path: Path) -> None:
    """A mount of "/" would fail whenever a container of Docker ends, and all sandboxes would be refused."""
    probed = mounted(bubblewrap.probe_command(Path("bwrap")))
    used = mounted([*root_filesystem.program_arguments(tmp_path), *root_filesystem.kernel_arguments()])
    assert "/usr" in probed
    assert set(probed) <= set(used)


def mounted(arguments: Sequence[str]) -> list[str]:
    """Return the directories of this machine that bubblewrap's arguments mount."""
    return [source for option, source in pairwise(arguments) if option == "--ro-bind"]

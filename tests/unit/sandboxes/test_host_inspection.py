"""The host provider's inspection of this machine, which the gateway runs while it starts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox import registry
from sandbox.host.provider import find_network
from sandbox.host.settings import HostSettings

THREADS = 4


def test_the_network_is_tested_once_by_all_threads_that_inspect_the_host(tmp_path: Path) -> None:
    """A helper that fails is run once, and each thread and `open` get its failure."""
    runs, helper = tmp_path / "runs", tmp_path / "pasta"
    helper.write_text(f"#!/bin/sh\necho run >> '{runs}'\nsleep 0.2\nexit 1\n")
    helper.chmod(0o755)
    settings = HostSettings(network_helper=helper)
    with ThreadPoolExecutor(THREADS) as pool:
        for inspected in [pool.submit(registry.plugin("host").inspect, settings) for _ in range(THREADS)]:
            assert inspected.result() is None
    found = find_network(settings)
    assert not found.isolated
    if "Operation not permitted" in found.detail:
        pytest.skip("root may make no namespace here, as in a container without CAP_SYS_ADMIN")
    assert runs.read_text() == "run\n"

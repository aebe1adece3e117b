"""The simulated cloud providers: when a sandbox is reported as ended, none of its processes is left."""

from __future__ import annotations

from pathlib import Path

from process_hosts import ProcessHost
from sandbox.testing.processes import processes_with

PROCESSES = 200


async def test_no_process_is_left_when_an_instance_is_stopped(tmp_path: Path, sleep_seconds: str) -> None:
    """The instance has ended when its last process has, also if it has many."""
    host = ProcessHost(tmp_path / "host", "/home/user")
    await host.start()
    script = f"for _ in $(seq {PROCESSES}); do sleep {sleep_seconds} & done; echo started; wait"
    running = host.run(["/bin/sh", "-c", script], env={"PATH": "/usr/bin"})
    async for answer in running:
        if "stdout" in answer:
            break
    await host.terminate()
    await running.aclose()
    assert processes_with(sleep_seconds) == []

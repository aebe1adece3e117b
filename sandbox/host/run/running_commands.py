"""The commands that run in this process's sandboxes, to end them when a sandbox is destroyed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.host.run.execution import Run
from sandbox.model import SandboxId


class RunningCommands:
    """Runs by sandbox. Control groups do not find all of them: a host may have none."""

    def __init__(self) -> None:
        self._runs: defaultdict[SandboxId, set[Run]] = defaultdict(set)

    @contextmanager
    def track(self, sandbox_id: SandboxId, run: Run) -> Iterator[None]:
        """Know a run until the block ends."""
        self._runs[sandbox_id].add(run)
        try:
            yield
        finally:
            self._runs[sandbox_id].discard(run)
            if not self._runs[sandbox_id]:
                del self._runs[sandbox_id]

    async def kill(self, sandbox_id: SandboxId) -> None:
        """Kill the runs of a sandbox and wait until they have ended."""
        runs = tuple(self._runs.get(sandbox_id, ()))
        for run in runs:
            run.kill()
        for run in runs:
            await run.main_process.ended.wait()

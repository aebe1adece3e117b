"""The commands that this process runs in its sandboxes: they end when a sandbox is destroyed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from sandbox.host.run.execution import Run, wait_until_killed
from sandbox.model import SandboxId


class RunningCommands:
    """Runs by sandbox. Control groups do not find all of them: a host may have none."""

    def __init__(self) -> None:
        self._runs: defaultdict[SandboxId, set[Run]] = defaultdict(set)

    @contextmanager
    def track(self, sandbox_id: SandboxId, run: Run) -> Iterator[None]:
        """Track a run until the block ends."""
        self._runs[sandbox_id].add(run)
        try:
            yield
        finally:
            self._runs[sandbox_id].discard(run)
            if not self._runs[sandbox_id]:
                del self._runs[sandbox_id]

    async def kill(self, sandbox_id: SandboxId) -> None:
        """Kill the runs of a sandbox and wait until they have ended; raises ProviderUnreachable after 5 s."""
        runs = tuple(self._runs.get(sandbox_id, ()))
        for run in runs:
            run.kill()
        await wait_until_killed([run.main_process for run in runs])

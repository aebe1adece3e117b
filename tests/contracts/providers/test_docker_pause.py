"""A command of a container that ended while the gateway was paused has its exit code."""

from __future__ import annotations

import time
from pathlib import Path

from docker_rig import engine_rig
from sandbox.exec.command_timeout import PAUSE_SECONDS
from sandbox.model import ExecRequest

LIMIT_SECONDS = 2.0


async def test_a_command_that_ends_in_a_pause_is_not_late(tmp_path: Path) -> None:
    """The gateway learns of the end and of the time-out at once: the exit code counts."""
    pauses = iter([LIMIT_SECONDS + 2 * PAUSE_SECONDS])

    def pause(_stream: str, _content: bytes) -> None:
        time.sleep(next(pauses, 0.0))

    script = "echo said; head -c 100000 /dev/zero; exit 3"
    rig = engine_rig("pause", tmp_path)
    async with rig.open() as provider:
        sandbox = await provider.create(rig.spec())
        try:
            result = await sandbox.run(ExecRequest(script=script, timeout=LIMIT_SECONDS, on_output=pause))
        finally:
            await provider.destroy(sandbox.id)
    assert (result.timed_out, result.exit_code, len(result.stdout)) == (False, 3, 65_536)

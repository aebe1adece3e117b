"""M21: a process whose event loop is blocked ends itself; one that was only frozen or is slow does not."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gateway.observability.event_loop_watchdog import BLOCKED_EXIT_CODE
from gateway_process import GatewayProcess
from turn_requests import is_finished, poll_until, start_turn

ROOT = Path(__file__).parents[2]
BLOCKABLE = ROOT / "tests" / "support" / "blockable"
WITHIN = 60.0

WATCHED = """
import asyncio, re, signal, sys, threading, time
from gateway.observability.event_loop_watchdog import event_loop_watched

def work(how):
    if how == "sleep":
        time.sleep(600)
    if how == "pattern":
        re.match("(a+)+$", "a" * 64 + "b")
    if how == "python":
        while True:
            pass
    if how == "elsewhere":
        (watchdog,) = [one for one in threading.enumerate() if one.name == "event-loop-watchdog"]
        signal.pthread_kill(watchdog.ident, signal.SIGPROF)
        time.sleep(600)

async def main(how, limit):
    with event_loop_watched(limit):
        for beat in range(10_000):
            print(beat, flush=True)
            await asyncio.sleep(0.05)
            if beat == 5:
                work(how)

asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""


@asynccontextmanager
async def watched(how: str, limit: float) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a loop that prints its beats and does some work after five of them."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WATCHED, how, str(limit)),
        env={"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()


@pytest.mark.parametrize(
    ("how", "code", "shown"),
    [
        ("sleep", BLOCKED_EXIT_CODE, "in work"),
        ("python", BLOCKED_EXIT_CODE, "event_loop.blocked"),
        ("pattern", -signal.SIGPROF, "in work"),
        ("elsewhere", -signal.SIGPROF, "in work"),
    ],
    ids=["sleep", "python", "pattern", "elsewhere"],
)
async def test_a_blocked_loop_ends_the_process(how: str, code: int, shown: str) -> None:
    """Sleeping, Python code and code that holds the interpreter's lock end it, and the stack is shown.

    The kernel may give the signal to any thread.
    """
    async with watched(how, 0.5) as child, asyncio.timeout(WITHIN):
        assert child.stdout is not None
        printed = (await child.stdout.read()).decode()
        assert await child.wait() == code, printed
    assert shown in printed


async def test_a_frozen_process_is_not_a_blocked_one() -> None:
    """A process that was stopped for longer than the limit continues its beats."""
    async with watched("nothing", 1.0) as child, asyncio.timeout(WITHIN):
        assert child.stdout is not None
        await child.stdout.readline()
        child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(3.0)
        child.send_signal(signal.SIGCONT)
        for _ in range(30):
            assert (await child.stdout.readline()).strip().isdigit()


async def test_a_watchdog_that_is_switched_off_ends_nothing() -> None:
    """With 0 a loop may be blocked: the process is there until the test ends it."""
    async with watched("sleep", 0) as child:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await child.wait()


async def test_m21_a_blocked_gateway_ends_and_continues_its_work(tmp_path: Path) -> None:
    """A gateway whose main thread sleeps ends with its code and its stack in the log; the next one works."""
    path = os.pathsep.join([str(BLOCKABLE), str(ROOT)])
    env = {"DOVECOTE_LEASE_TTL": "2", "DOVECOTE_WATCHDOG_TIMEOUT": "3", "PYTHONPATH": path}
    process = GatewayProcess(tmp_path / "data", env=env, started=True)
    try:
        await process.start()
        turn = await start_turn(process, "!sleep 1; echo continued")
        os.kill(process.pid, signal.SIGUSR1)
        assert await process.wait_for_exit(WITHIN) == BLOCKED_EXIT_CODE
        log = "\n".join(process.log)
        assert "event_loop.blocked" in log
        assert "time.sleep(3600)" in log
        await process.start()
        ended = await poll_until(process, f"/status/{turn['turnId']}", is_finished)
        assert "continued" in ended["output"]
    finally:
        await process.stop()

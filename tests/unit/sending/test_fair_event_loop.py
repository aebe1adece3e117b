"""The time of the event loop is shared fairly by account."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

import pytest

from delivery.fair_event_loop import MAX_TRACKED, FairEventLoop, FairTimeScheduler
from delivery.fair_gate import ahead_of_accounts, scheduling_account, working_for
from delivery.fair_scheduler import SYSTEM


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a fair event loop."""
    with asyncio.Runner(loop_factory=FairEventLoop) as runner:
        runner.run(main)


def work_for(seconds: float) -> None:
    """Use the processor for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


async def keep_busy() -> None:
    """Have a callback of a millisecond ready at any time."""
    while True:
        work_for(0.001)
        await asyncio.sleep(0)


def serve(scheduler: FairTimeScheduler[str], seconds: dict[str, float]) -> str:
    """Do the next work, which takes as long as the account's work does; returns the work."""
    account, work = scheduler.start_next()
    scheduler.finish(account, seconds[work])
    return work


def test_accounts_get_equal_time_and_not_equally_many_starts() -> None:
    """Work that takes ten times as long is started a tenth as often."""
    scheduler = FairTimeScheduler[str](head_start=0.0)
    for _ in range(1000):
        scheduler.add("long", "long")
        scheduler.add("short", "short")
    served = Counter(serve(scheduler, {"long": 0.01, "short": 0.001}) for _ in range(550))
    assert served["long"] == pytest.approx(50, abs=2)


def test_an_account_that_begins_is_served_before_those_that_always_work() -> None:
    """Its first work runs next, until it has used its head start."""
    scheduler = FairTimeScheduler[str](head_start=0.05)
    for _ in range(1000):
        scheduler.add("busy", "busy")
    costs = {"busy": 0.01, "quiet": 0.01}
    assert {serve(scheduler, costs) for _ in range(50)} == {"busy"}
    for _ in range(20):
        scheduler.add("quiet", "quiet")
    served = [serve(scheduler, costs) for _ in range(15)]
    assert served[:5] == ["quiet"] * 5
    assert Counter(served[5:])["busy"] == pytest.approx(5, abs=1)


def test_unused_time_is_not_collected() -> None:
    """An account that was away for long is no further ahead than one that was away shortly."""
    scheduler = FairTimeScheduler[str](head_start=0.05)
    scheduler.add("away", "away")
    costs = {"busy": 0.01, "away": 0.01}
    serve(scheduler, costs)
    for _ in range(10_000):
        scheduler.add("busy", "busy")
    for _ in range(9_000):
        serve(scheduler, costs)
    for _ in range(100):
        scheduler.add("away", "away")
    assert Counter(serve(scheduler, costs) for _ in range(26))["away"] == pytest.approx(15, abs=1)


def test_work_that_is_added_while_its_account_is_served_waits_once() -> None:
    """Neither an account that adds work to itself nor one that overtakes it confuses the order."""
    scheduler = FairTimeScheduler[str](head_start=0.05)
    scheduler.add("busy", "first")
    account, work = scheduler.start_next()
    scheduler.add("busy", "second")
    scheduler.add("quiet", "third")
    scheduler.finish(account, 1.0)
    assert [work, scheduler.start_next()[1], scheduler.start_next()[1]] == ["first", "third", "second"]
    assert not scheduler.ready


def test_idle_accounts_take_no_memory() -> None:
    """A hundred thousand accounts that each worked once do not stay."""
    scheduler = FairTimeScheduler[str](head_start=0.05)
    for number in range(100_000):
        scheduler.add(str(number), "work")
        serve(scheduler, {"work": 0.001})
    assert scheduler.tracked <= MAX_TRACKED + 1


def test_a_thousand_tasks_of_one_account_do_not_delay_the_steps_of_another() -> None:
    """The other's two hundred steps are done while the thousand tasks have made a few steps each."""

    async def measure() -> None:
        steps = 0

        async def spin() -> None:
            nonlocal steps
            while True:
                work_for(0.0001)
                steps += 1
                await asyncio.sleep(0)

        with working_for("busy"):
            tasks = [asyncio.create_task(spin()) for _ in range(1000)]
        await asyncio.sleep(0.2)

        async def take_steps() -> int:
            before = steps
            for _ in range(200):
                await asyncio.sleep(0)
            return steps - before

        with working_for("quiet"):
            between = await asyncio.create_task(take_steps())
        for task in tasks:
            task.cancel()
        assert between < 20_000  # in the order of arrival: 200,000

    run(measure())


def test_callbacks_of_one_account_keep_their_order_and_can_be_cancelled() -> None:
    """They run in the order in which they were added; a cancelled one does not run."""

    async def check() -> None:
        loop, seen = asyncio.get_running_loop(), list[int]()
        with working_for("ann"):
            handles = [loop.call_soon(seen.append, number) for number in range(100)]
            done = asyncio.Event()
            loop.call_soon(done.set)
        handles[7].cancel()
        await done.wait()
        assert seen == [number for number in range(100) if number != 7]

    run(check())


def test_a_task_that_holds_what_others_wait_for_is_ahead_of_accounts() -> None:
    """Its steps in the block are not delayed by the callbacks of its own account."""

    async def check() -> None:
        order: list[str] = []

        async def hold() -> None:
            with ahead_of_accounts():
                for _ in range(3):
                    await asyncio.sleep(0)
                    order.append("held")
            await asyncio.sleep(0)
            order.append("after")

        with working_for("busy"):
            task = asyncio.create_task(hold())
            await asyncio.sleep(0)
            for _ in range(100):
                asyncio.get_running_loop().call_soon(work_for, 0.001)
            asyncio.get_running_loop().call_soon(order.append, "others")
        await task
        assert order == ["held", "held", "held", "others", "after"]

    run(check())


def test_an_error_of_a_callback_is_reported_and_the_others_run() -> None:
    """The loop's exception handler gets it."""

    async def check() -> None:
        loop, errors, done = asyncio.get_running_loop(), list[str](), asyncio.Event()
        loop.set_exception_handler(lambda _loop, context: errors.append(str(context["exception"])))
        with working_for("ann"):
            loop.call_soon(int, "no number")
            loop.call_soon(done.set)
        await done.wait()
        assert len(errors) == 1

    run(check())


def test_a_process_is_watched_for_no_account() -> None:
    """The transport's steps keep asyncio's order: the end, which is for no account, comes after the start."""

    class Watcher(asyncio.SubprocessProtocol):
        """Records for which account it is called."""

        accounts: list[str]

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Note the start."""
            self.accounts = [scheduling_account(copy_context())]

        def process_exited(self) -> None:
            """Note the end."""
            self.accounts.append(scheduling_account(copy_context()))
            ended.set()

    ended = asyncio.Event()

    async def check() -> None:
        with working_for("ann"):
            transport, watcher = await asyncio.get_running_loop().subprocess_exec(Watcher, "true")
        await ended.wait()
        transport.close()
        assert watcher.accounts == [SYSTEM, SYSTEM]

    run(check())


def test_connections_that_arrive_together_are_all_accepted() -> None:
    """While the account's callbacks wait, the loop accepts one connection for each call, and loses none."""
    problems: list[dict[str, Any]] = []

    async def check() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: problems.append(context))
        with socket.create_server(("127.0.0.1", 0), backlog=50) as server, ExitStack() as opened:
            server.setblocking(False)

            async def accept_all() -> None:
                for _ in range(20):
                    accepted, _address = await loop.sock_accept(server)
                    opened.enter_context(accepted)

            with working_for("ann"):
                accepting = asyncio.create_task(accept_all())
                busy = [asyncio.create_task(keep_busy()) for _ in range(5)]
            for _ in range(10):
                await asyncio.sleep(0.02)  # it waits for the next connection
                for _ in range(2):
                    opened.enter_context(socket.create_connection(server.getsockname()))
            async with asyncio.timeout(20):
                await accepting
            for task in busy:
                task.cancel()

    run(check())
    assert problems == []

"""Run tests in several processes that are forked after one collection: `pytest --workers 6`.

Each process would otherwise import and collect everything again, which takes it 15 s. A worker takes one test
file after the other, so the fixtures of a module are made once. The first process prints and counts.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NoReturn

import pytest

FORK = multiprocessing.get_context("fork")
LONGEST = (
    "tests/journeys/terminal/test_console.py",
    "tests/faults/test_promise_restarts.py",
    "tests/contracts/providers/test_provider_contract.py",
    "tests/faults/test_promise_chaos.py",
    "tests/journeys/operations/test_release.py",
    "tests/faults/test_promise_chats.py",
    "tests/journeys/terminal/test_tutorial.py",
    "tests/faults/test_sandbox_kills.py",
    "tests/faults/test_promise_partition.py",
    "tests/journeys/terminal/test_console_pages.py",
    "tests/contracts/providers/test_browser_tool.py",
    "tests/contracts/workspaces/test_workspace_conformance.py",
    "tests/journeys/terminal/test_cli.py",
    "tests/contracts/providers/test_lambda_stack.py",
    "tests/faults/test_blocked_event_loop.py",
)
"""Files that take a minute or more on a busy machine: these begin first."""

LAST = ("tests/lint/", "tests/unit/")
"""Short tests, which fill the end of the run, when other workers have no file left."""

Message = tuple[Any, ...]


def in_order(items: list[pytest.Item]) -> list[list[int]]:
    """Return the positions of the tests of each file; the order mixes files that wait and that compute."""
    files: dict[str, list[int]] = {}
    for position, item in enumerate(items):
        files.setdefault(item.nodeid.partition("::")[0], []).append(position)

    def rank(name: str) -> tuple[int, int]:
        if name in LONGEST:
            return 0, LONGEST.index(name)
        return 1 + name.startswith(LAST), zlib.crc32(name.encode())

    return [files[name] for name in sorted(files, key=rank)]


class Queue:
    """The files that no worker has taken yet: shared memory of all workers."""

    def __init__(self, files: list[list[int]]) -> None:
        self.files = files
        self._next: Synchronized[int] = FORK.Value("i", 0)
        self._is_stopped: Synchronized[int] = FORK.Value("i", 0)

    @property
    def is_stopped(self) -> bool:
        """Whether no further test shall begin."""
        return bool(self._is_stopped.value)

    def stop(self) -> None:
        """Have each worker end after the test that it runs."""
        self._is_stopped.value = 1

    def take(self) -> list[int]:
        """Return the tests of the next file; of none, when all are taken."""
        with self._next.get_lock():
            number = self._next.value
            self._next.value += 1
        return self.files[number] if number < len(self.files) else []


@dataclass(kw_only=True)
class Worker:
    """A worker as the first process sees it: what it has taken and not finished, and what it runs."""

    process: BaseProcess
    connection: Connection
    taken: list[int]
    running: int | None = None
    is_done: bool = False


class ForkedWorkers:
    """The plugin of the first process: it forks workers instead of running tests."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._started = 0
        self._workers: list[Worker] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Fork the workers, and report what they report."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        threads = [thread.name for thread in Path("/proc/self/task").iterdir()]
        assert len(threads) == 1, "collecting started a thread, so this process cannot be forked"
        queue = Queue(in_order(session.items))
        count = min(self._count, len(queue.files))
        _terminal(session.config).write_line(
            f"{len(session.items)} tests in {len(queue.files)} files, run by {count} workers"
        )
        try:
            for _ in range(count):
                self._fork(session, queue, [])
            while self._workers:
                self._receive(session, queue)
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _fork(self, session: pytest.Session, queue: Queue, first: list[int]) -> None:
        ours, theirs = FORK.Pipe(duplex=False)
        base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        folder = base / f"worker-{self._started}"
        self._started += 1
        inherited = [ours, *(worker.connection for worker in self._workers)]
        process = FORK.Process(target=work, args=(session, queue, theirs, first, folder, inherited))
        process.start()
        theirs.close()
        self._workers.append(Worker(process=process, connection=ours, taken=[*first]))

    def _receive(self, session: pytest.Session, queue: Queue) -> None:
        ready = set(wait([worker.connection for worker in self._workers]))
        for worker in [one for one in self._workers if one.connection in ready]:
            message = _received(worker.connection)
            if message is None:
                self._forget(session, queue, worker)
            else:
                self._report(session, worker, message)
        if session.shouldfail or session.shouldstop:
            queue.stop()

    def _report(self, session: pytest.Session, worker: Worker, message: Message) -> None:
        hook = session.config.hook
        match message:
            case ("take", positions):
                worker.taken += positions
            case ("start", position):
                worker.running = position
            case ("finish", position):
                worker.running = None
                worker.taken.remove(position)
            case ("report", data):
                report = hook.pytest_report_from_serializable(config=session.config, data=data)
                hook.pytest_runtest_logreport(report=report)
            case ("warning", values):
                hook.pytest_warning_recorded.call_historic(kwargs=values)
            case ("done",):
                worker.is_done = True

    def _forget(self, session: pytest.Session, queue: Queue, worker: Worker) -> None:
        """Let go of a worker that has ended; a death fails the test, and another worker takes the rest."""
        self._workers.remove(worker)
        worker.connection.close()
        worker.process.join()
        if worker.is_done:
            return
        message = f"a worker ended with code {worker.process.exitcode}"
        if worker.running is None:
            session.shouldfail = message
            return
        worker.taken.remove(worker.running)
        item = session.items[worker.running]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", message, "call")
        session.config.hook.pytest_runtest_logreport(report=report)
        self._fork(session, queue, worker.taken)


def _received(connection: Connection) -> Message | None:
    """Return the next message, or None when the worker has ended."""
    try:
        message: Message = connection.recv()
    except (EOFError, OSError):
        return None
    return message


def work(
    session: pytest.Session,
    queue: Queue,
    connection: Connection,
    first: list[int],
    folder: Path,
    inherited: list[Connection],
) -> NoReturn:
    """Run the first tests and then what the queue has, in a process that was forked for it."""
    for one in inherited:
        one.close()
    _make_independent(session.config, folder)
    reports = WorkerReports(session.config)
    session.config.pluginmanager.register(reports)
    reports.connection = connection
    positions = _positions(queue, connection, first)
    position = next(positions, None)
    while position is not None:
        after = next(positions, None)
        connection.send(("start", position))
        session.config.hook.pytest_runtest_protocol(
            item=session.items[position], nextitem=None if after is None else session.items[after]
        )
        connection.send(("finish", position))
        position = after
    connection.send(("done",))
    os._exit(0)


def _terminal(config: pytest.Config) -> Any:
    return config.pluginmanager.getplugin("terminalreporter")


def _make_independent(config: pytest.Config, folder: Path) -> None:
    """Give a worker what it may not share: captured output, random numbers and temporary files."""
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    _terminal(config)._tw._file = Path(os.devnull).open("w")  # noqa: SIM115
    random.seed()
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]


def _positions(queue: Queue, connection: Connection, first: list[int]) -> Iterator[int]:
    """Yield the tests to run, file by file, until there are no more or the run is stopped."""
    taken = first or _take(queue, connection)
    while taken:
        for position in taken:
            if queue.is_stopped:
                return
            yield position
        taken = _take(queue, connection)


def _take(queue: Queue, connection: Connection) -> list[int]:
    taken = queue.take()
    connection.send(("take", taken))
    return taken


class WorkerReports:
    """The plugin of a worker: it sends to the first process what there is to report.

    It has a connection after its registration, which repeats the warnings that were recorded before.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.connection: Connection | None = None

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send the report of one phase of a test."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send("report", data)

    @pytest.hookimpl
    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        """Send a warning, as a text."""
        if self.connection is None:
            return
        told = warnings.WarningMessage(
            str(warning_message.message),
            warning_message.category,
            warning_message.filename,
            warning_message.lineno,
        )
        values = {"warning_message": told, "when": when, "nodeid": nodeid, "location": location}
        self._send("warning", values)

    def _send(self, *message: Any) -> None:
        assert self.connection is not None
        self.connection.send(message)

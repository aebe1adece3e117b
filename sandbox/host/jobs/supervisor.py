"""Supervise one job: outlive the gateway, run the command, report its end.

The supervisor is outside the command's namespaces, so the command can neither see nor end it. The kernel
kills the command when the supervisor dies (bubblewrap's --die-with-parent), so no job runs unsupervised.
Started by `sandbox.host.jobs.jobs`; imports the standard library and small modules of this package only.

    job spec on stdin → own session → lock → started → command, output → everything dead → exit → callback
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from sandbox.host.isolation import seccomp
from sandbox.host.isolation.cgroup import Cgroup
from sandbox.host.isolation.process_tree import kill_tree, signal_tree
from sandbox.host.jobs.completion_report import CompletionReporter
from sandbox.host.jobs.output_tail import OutputTail
from sandbox.host.run.job_spec import EXIT, STARTED, TRUNCATED, JobSpec, acquire_lock, memfd_of
from sandbox.workspaces.local_files import write_durably

GRACE_SECONDS = 5.0
FLUSH_SECONDS = 0.2
CHUNK = 65536
READY, ALREADY_STARTED = b"ready", b"known"
DISK_FULL_PAUSE_SECONDS = 1.0
CANNOT_START = 126


def main() -> NoReturn:
    """Read the job spec from stdin and become a daemon; print `ready` or `known` on stdout."""
    directory = Path(sys.argv[1])
    os.umask(0o077)
    spec = JobSpec.decode(sys.stdin.buffer.read())
    reply_pipe, reply_end = os.pipe()
    if os.fork() == 0:
        os.close(reply_pipe)
        with _failure_reported_to(reply_end):
            _daemonize(directory)
        supervise(directory, spec, reply_end)
        os._exit(0)
    os.close(reply_end)
    reply = os.read(reply_pipe, 2000)
    has_started = reply in {READY, ALREADY_STARTED}
    os.write(1 if has_started else 2, reply)
    os._exit(0 if has_started else 1)


def _daemonize(directory: Path) -> None:
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(directory / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, target in ((nothing, 0), (nothing, 1), (log, 2)):
        os.dup2(descriptor, target)


def supervise(directory: Path, spec: JobSpec, reply_pipe: int) -> None:
    """Run the job of `directory` unless it has been started; the lock is held until the end."""
    lock = _wait_for_lock(directory)
    if lock is None or (directory / STARTED).exists():
        _send_reply(reply_pipe, ALREADY_STARTED)
        return
    of_spec = {"boot": spec.boot, "group": spec.group, "rests": spec.rests, "proxied": spec.proxied}
    started = {"pid": os.getpid(), **of_spec}
    with _failure_reported_to(reply_pipe):
        write_durably(directory / STARTED, json.dumps(started).encode())
        runner = CommandRunner(directory, spec)
    _send_reply(reply_pipe, READY)
    code = runner.wait()
    runner.record_end(code)
    CompletionReporter(spec.post).report(code, runner.output(), truncated=(directory / TRUNCATED).exists())


def _wait_for_lock(directory: Path) -> int | None:
    """Acquire the lock, waiting for processes that only test it."""
    for _ in range(40):
        lock = acquire_lock(directory)
        if lock is not None or (directory / STARTED).exists():
            return lock
        time.sleep(0.05)
    return None


@contextlib.contextmanager
def _failure_reported_to(reply_pipe: int) -> Iterator[None]:
    """Reply with the reason of a failure in the block, such as a full disk, which also takes no log."""
    try:
        yield
    except OSError as error:
        _send_reply(reply_pipe, (error.strerror or str(error)).encode())
        raise


def _send_reply(reply_pipe: int, reply: bytes) -> None:
    with contextlib.suppress(OSError):  # the launcher may have been killed; the job is started all the same
        os.write(reply_pipe, reply)
        os.close(reply_pipe)


class Phase(Enum):
    """The phase of ending a command."""

    RUNNING = 0
    STOP_REQUESTED = 1
    TERMINATED = 2
    KILLED = 3


class CommandRunner:
    """Runs one command: collects its output, ends it on time-out or request, and returns its exit code."""

    def __init__(self, directory: Path, spec: JobSpec) -> None:
        self._directory = directory
        self._spec = spec
        self._tail = OutputTail(directory, spec.output_limit)
        self._phase = Phase.RUNNING
        self._deadline = time.monotonic() + spec.timeout if spec.timeout > 0 else math.inf
        self._group = Cgroup(own=Path(spec.group) if spec.group else None)
        signal.signal(signal.SIGTERM, self._request_stop)
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        self._process = self._start()

    def output(self) -> bytes:
        """Return the last bytes of the output."""
        return self._tail.content()

    def wait(self) -> int:
        """Return the exit code once the command and its descendants are gone."""
        process = self._process
        if process is None or process.stdout is None:
            return CANNOT_START
        end = os.pidfd_open(process.pid)
        os.set_blocking(process.stdout.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(end, selectors.EVENT_READ)
            selector.register(process.stdout, selectors.EVENT_READ)
            while process.poll() is None:
                self._enforce_deadline(process.pid)
                self._read_output(process.stdout, selector, FLUSH_SECONDS)
                self._tail.flush()
            selector.unregister(end)
            self._kill_remaining()
            while selector.get_map() and selector.select(GRACE_SECONDS):
                self._read_output(process.stdout, selector, 0)
        code = process.returncode
        return 128 - code if code < 0 else code

    def record_end(self, code: int) -> None:
        """Write the rest of the output and the exit code; on a full disk, as soon as there is space.

        Until then the lock is held, and the job counts as running.
        """
        while True:
            self._tail.flush()
            try:
                write_durably(self._directory / EXIT, json.dumps({"exit_code": code}).encode())
            except OSError as error:
                if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                    raise
                time.sleep(DISK_FULL_PAUSE_SECONDS)
            else:
                return

    def _start(self) -> subprocess.Popen[bytes] | None:
        spec = self._spec
        if self._group.own is not None:
            self._group.own.mkdir(parents=True, exist_ok=True)
        secret, system_calls = memfd_of(spec.secret), seccomp.open_filter()
        filtered = seccomp.arguments(system_calls)
        passed = ["--args", str(secret), *filtered, "--"] if spec.secret else []
        descriptors = [one for one in (secret, system_calls) if one is not None]
        try:
            return subprocess.Popen(  # noqa: S603 - the sandbox is what runs the account's script
                [*spec.prefix, *spec.program, *passed, *spec.suffix],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=descriptors,
                env=spec.environment,
                cwd=spec.directory,
                start_new_session=True,
            )
        except OSError as error:
            self._tail.add(f"the command could not be started: {error}\n".encode())
            self._tail.flush()
            return None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _read_output(self, output: IO[bytes], selector: selectors.BaseSelector, timeout: float) -> None:
        """Read the available output, waiting at most so many seconds for some."""
        for key, _ in selector.select(timeout):
            if key.fileobj is not output:
                continue
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(output.fileno(), CHUNK)
                self._tail.add(chunk)
                if not chunk:
                    selector.unregister(output)

    def _request_stop(self, _number: int, _frame: FrameType | None) -> None:
        if self._phase is Phase.RUNNING:
            self._phase = Phase.STOP_REQUESTED

    def _enforce_deadline(self, outermost: int) -> None:
        """Send TERM on a stop request or time-out, and KILL five seconds later.

        TERM goes to the command's processes only: bubblewrap would react to it by killing them at once.
        """
        now = time.monotonic()
        if self._phase is Phase.RUNNING and now >= self._deadline:
            self._phase = Phase.STOP_REQUESTED
        if self._phase is Phase.STOP_REQUESTED:
            self._phase = Phase.TERMINATED
            self._deadline = now + GRACE_SECONDS
            if not signal_tree(outermost, signal.SIGTERM):
                self._deadline = now
        elif self._phase is Phase.TERMINATED and now >= self._deadline:
            self._phase = Phase.KILLED
            self._group.kill()
            kill_tree(outermost)

    def _kill_remaining(self) -> None:
        """Wait until the command's background processes are dead too, and remove its group."""
        end = time.monotonic() + GRACE_SECONDS
        while not self._group.remove() and time.monotonic() < end:
            self._group.kill()
            time.sleep(0.005)

"""Run one command: start it, write its input, read its output, wait, and kill everything it started.

A process is started in a thread, which a cancellation does not stop. `start_run` waits until it has been
started, and kills it if the caller was cancelled before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from concurrent.futures import Executor
from functools import partial

from sandbox.errors import ProviderRefused, ProviderUnreachable
from sandbox.exec.shielded import shielded, shielded_call, shielded_outcome
from sandbox.host.isolation.cgroup import Cgroup
from sandbox.host.isolation.process_tree import is_namespace_init, kill_tree, reap
from sandbox.host.isolation.rlimits import JOIN_FAILED
from sandbox.host.run.launch import Launch, LaunchedProcess, start_process
from sandbox.host.run.pipes import PipeReader, PipeWriter, ProcessWatcher
from sandbox.model import OUTPUT_CAP, ExecRequest, ExecResult

KILLED = 128 + signal.SIGKILL
KILL_TIMEOUT_SECONDS = 5.0
"""Seconds to wait until killed processes are gone; the kernel needs milliseconds."""


class CgroupRemoved(ProviderUnreachable):
    """The sandbox's control group was removed before the command could enter it; nothing was run."""


async def start_run(
    launch: Launch, executor: Executor | None, *, stdin: bool, reads_script: bool = False
) -> Run:
    """Start a run; a cancellation is raised when the started processes are dead. Raises ProviderRefused."""
    opening = partial(start_process, launch, stdin=stdin or reads_script)
    starting = asyncio.get_running_loop().run_in_executor(executor, opening)
    try:
        launched, cancelled = await shielded_outcome(starting)
    except OSError as failure:
        raise ProviderRefused(f"the command could not be started: {failure}") from failure
    run = Run(launch, launched, executor, reads_script=reads_script)
    if cancelled is not None:
        await shielded(run.kill_all())
        raise cancelled
    return run


async def execute(run: Run, command: ExecRequest) -> ExecResult:
    """Run until the end, the time-out or cancellation; every process is dead on return.

    In a gateway that was paused the time-out may come before the news of an end: the command is not late.
    """
    started = time.monotonic()
    timed_out = False
    try:
        run.set_command(command)
        async with asyncio.timeout(command.timeout):
            await run.main_process.ended.wait()
    except TimeoutError:
        timed_out = not run.main_process.has_ended()
    finally:
        await shielded(run.kill_all())
    duration = int((time.monotonic() - started) * 1000)
    return run.result(timed_out=timed_out, duration=duration)


async def wait_until_killed(processes: Iterable[ProcessWatcher]) -> None:
    """Wait until killed processes are gone; raises ProviderUnreachable after KILL_TIMEOUT_SECONDS."""
    try:
        async with asyncio.timeout(KILL_TIMEOUT_SECONDS):
            for process in processes:
                await process.ended.wait()
    except TimeoutError:
        raise ProviderUnreachable("processes of the sandbox survived KILL") from None


class Run:
    """A running command: its process has been started, the command is given by `set_command`.

    If the launch's script reads the command from its stdin up to a NUL (`reads_script`), the process may be
    started long before there is a command.
    """

    def __init__(
        self, launch: Launch, launched: LaunchedProcess, executor: Executor | None, *, reads_script: bool
    ) -> None:
        self._launch = launch
        self._executor = executor
        self._reads_script = reads_script
        self._process = launched.process
        self._stdin = launched.stdin
        self.main_process = ProcessWatcher(self._process.pid)
        self._out = PipeReader(launched.stdout, OUTPUT_CAP)
        self._error = PipeReader(launched.stderr, OUTPUT_CAP)
        self._status = PipeReader(launched.status, 4096)
        self._writer: PipeWriter | None = None

    @property
    def group(self) -> Cgroup:
        """Return the run's control group."""
        return self._launch.group

    def set_command(self, command: ExecRequest) -> None:
        """Give the run its command: the input and how much of the output is kept."""
        self._out.limit = self._error.limit = min(command.output_limit, OUTPUT_CAP)
        if command.on_output is not None:
            self._out.on_content = partial(command.on_output, "stdout")
            self._error.on_content = partial(command.on_output, "stderr")
        script = command.script.encode("utf-8", "surrogateescape") + b"\0" if self._reads_script else b""
        self._writer = self._open_writer(script + command.stdin)

    def _open_writer(self, content: bytes) -> PipeWriter | None:
        descriptor, self._stdin = self._stdin, None
        return None if descriptor is None else PipeWriter(descriptor, content)

    async def kill_all(self) -> None:
        """Kill the run's remaining processes, wait until they are gone, and release its resources."""
        try:
            async with asyncio.timeout(KILL_TIMEOUT_SECONDS):
                self.kill()
                await self.main_process.ended.wait()
                await self._kill_namespace()
                await self._remove_group()
                for drain in (self._out, self._error, self._status):
                    await drain.ended.wait()
        except TimeoutError:
            raise ProviderUnreachable("processes of the command survived KILL") from None
        finally:
            self._close()

    def kill(self) -> None:
        """Kill what runs, without waiting for its end.

        By the group; without one, process by process or by the subreaper. The outermost process may not have
        entered the group yet, so it is also killed on its own.
        """
        if self.main_process.ended.is_set():
            return
        if self._launch.group.own is not None:
            self._launch.group.kill()
            self._process.send_signal(signal.SIGKILL)
        elif not self._launch.secret:
            self._process.send_signal(signal.SIGTERM)
        else:
            kill_tree(self._process.pid)

    async def _kill_namespace(self) -> None:
        """Wait until the first process of the pid namespace is dead, and with it all others there."""
        first = self._namespace_init()
        if first is None:
            return
        inside = ProcessWatcher(first)
        try:
            with contextlib.suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)
            await inside.ended.wait()
            reap(first)
        finally:
            inside.close()

    async def _remove_group(self) -> None:
        pause = 0.001
        group = self._launch.group
        while group.own is not None and not await shielded_call(self._executor, group.remove):
            await shielded_call(self._executor, group.kill)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)

    def _namespace_init(self) -> int | None:
        """Return the first process of the run's pid namespace if it is alive, and its number is known."""
        self._status.read_available()
        pid = self._read_status().get("child-pid")
        return pid if pid is not None and is_namespace_init(pid) else None

    def _read_status(self) -> dict[str, int]:
        """Return the values from bubblewrap's status pipe: child-pid at once, exit-code at the end."""
        fields: dict[str, int] = {}
        for line in bytes(self._status.content).splitlines():
            with contextlib.suppress(ValueError):
                fields.update(json.loads(line))
        return fields

    def _close(self) -> None:
        for part in (self._out, self._error, self._status, self._writer, self.main_process):
            if part is not None:
                part.close()
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def result(self, *, timed_out: bool, duration: int) -> ExecResult:
        """Return the result; raises ProviderRefused or ProviderUnreachable if the command never ran."""
        return ExecResult(
            exit_code=KILLED if timed_out else self._exit_code(),
            stdout=bytes(self._out.content),
            stderr=bytes(self._error.content),
            timed_out=timed_out,
            stdout_truncated=self._out.truncated,
            stderr_truncated=self._error.truncated,
            duration_ms=duration,
        )

    def _exit_code(self) -> int:
        code = self._process.wait()
        if code < 0:  # its outermost process was killed: out of memory, or an operator
            return 128 - code
        fields = self._read_status()
        if not self._launch.secret or "exit-code" in fields:
            return fields.get("exit-code", code)
        message = bytes(self._error.content).decode(errors="replace").strip()
        if code == JOIN_FAILED:
            raise CgroupRemoved(f"the sandbox's control group was removed: {message}")
        raise ProviderRefused(f"the sandbox could not be created: {message or f'bwrap exit code {code}'}")

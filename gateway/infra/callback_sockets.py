"""The callback sockets: each sandbox has its own, with its own budget of connections, requests and bytes.

A unix socket is exempt from the limits of the web server, and a sandbox without a network reaches its own. A
budget that is used up costs the gateway nothing: it stops accepting, and the kernel holds the sandbox's
further connections back, first in a short queue and then in the sandbox itself.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from delivery.background import log_errors
from sandbox.port import CALLBACK_SOCKET, CallbackDirectories

log = structlog.get_logger(__name__)

MAX_SOCKET_PATH = 107

_ERROR_PAUSE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackBudget:
    """What one sandbox may use of the gateway; an account's own jobs need a small part of it."""

    connections: int = 4
    """Connections that are open at once."""
    backlog: int = 8
    """Connections that the kernel keeps until one of those is closed."""
    requests: int = 64
    requests_per_second: float = 2.0
    received_bytes: int = 16 * 1024 * 1024
    bytes_per_second: int = 512 * 1024


class RefillingAllowance:
    """An amount that is spent and refilled by time; it may be overdrawn and is then awaited."""

    def __init__(
        self, capacity: float, per_second: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._clock = clock
        self._left = capacity
        self._counted_at = clock()

    def spend(self, amount: float) -> None:
        """Take an amount, more than is left if need be."""
        self._refill()
        self._left -= amount

    def seconds_until(self, amount: float) -> float:
        """Return how long to wait until so much is left; 0 if it is."""
        self._refill()
        return max(0.0, (amount - self._left) / self._per_second)

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._capacity, self._left + (now - self._counted_at) * self._per_second)
        self._counted_at = now


class CallbackSocket:
    """The socket of one sandbox: accepts connections within the sandbox's budget."""

    def __init__(self, directory: Path, budget: CallbackBudget) -> None:
        self.name = directory.name
        self._places = asyncio.Semaphore(budget.connections)
        self._requests = RefillingAllowance(budget.requests, budget.requests_per_second)
        self._bytes = RefillingAllowance(budget.received_bytes, budget.bytes_per_second)
        self._listener = listen_on(directory / CALLBACK_SOCKET, budget.backlog)

    def count_bytes(self, amount: int) -> None:
        """Count received bytes of the sandbox."""
        self._bytes.spend(amount)

    def release(self) -> None:
        """Accept one connection more: one was closed."""
        self._places.release()

    async def accept_forever(self, connect: ConnectionFactory) -> None:
        """Accept connections, each as soon as the budget allows it, until the task is cancelled."""
        with self._listener:
            while True:
                with log_errors("callback_socket.accept", socket=self.name):
                    await self._accept(connect)
                    continue
                await asyncio.sleep(_ERROR_PAUSE_SECONDS)

    async def _accept(self, connect: ConnectionFactory) -> None:
        await self._places.acquire()
        try:
            await self._await_budget()
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        except BaseException:
            self._places.release()
            raise
        self._requests.spend(1)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connect(self), connection)
        except OSError:
            connection.close()
            self._places.release()
            raise

    async def _await_budget(self) -> None:
        for allowance in (self._requests, self._bytes):
            await asyncio.sleep(allowance.seconds_until(1))


ConnectionFactory = Callable[[CallbackSocket], asyncio.Protocol]
"""Returns the protocol of a new connection; it calls `count_bytes`, and `release` once when it is lost."""


class CallbackSockets(CallbackDirectories):
    """The callback sockets of this process: those of all sandboxes that its providers opened or left here.

    A quarter of the process's file descriptors at most are sockets that listen, however many sandboxes an
    account creates. The reconciler notices the end of jobs in sandboxes without one.
    """

    def __init__(self, root: Path, budget: CallbackBudget | None = None, *, limit: int | None = None) -> None:
        super().__init__(root=root)
        self._budget = budget or CallbackBudget()
        self._limit = limit or resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        self._start: Callable[[Path], asyncio.Task[None]] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, sandbox_id: str) -> None:
        """Create the directory of a sandbox, and listen on its socket while serving. Idempotent."""
        super().open(sandbox_id)
        self._listen(self.directory(sandbox_id))

    def close(self, sandbox_id: str) -> None:
        """Stop listening for a sandbox that no longer exists and remove its directory. Idempotent."""
        task = self._tasks.pop(self.directory(sandbox_id).name, None)
        if task is not None:
            task.cancel()
        super().close(sandbox_id)

    @asynccontextmanager
    async def serving(self, connect: ConnectionFactory) -> AsyncIterator[None]:
        """Listen on the socket of each sandbox, of existing ones too, so that running jobs report."""
        async with asyncio.TaskGroup() as group:
            self._start = lambda directory: group.create_task(self._serve(directory, connect))
            try:
                for directory in sorted(self.root.glob("*/")):
                    self._listen(directory)
                yield
            finally:
                self._start = None
                for task in self._tasks.values():
                    task.cancel()
                self._tasks.clear()

    def _listen(self, directory: Path) -> None:
        if self._start is None or directory.name in self._tasks:
            return
        if len(self._tasks) >= self._limit:
            log.warning("callback_socket.limit_reached", limit=self._limit, remedy="raise LimitNOFILE")
            return
        self._tasks[directory.name] = self._start(directory)

    async def _serve(self, directory: Path, connect: ConnectionFactory) -> None:
        while directory.is_dir():  # noqa: ASYNC240 - one stat
            with log_errors("callback_socket.listen", socket=directory.name):
                await CallbackSocket(directory, self._budget).accept_forever(connect)
            await asyncio.sleep(_ERROR_PAUSE_SECONDS)


def listen_on(path: Path, backlog: int) -> socket.socket:
    """Listen on a unix socket that every user inside the sandbox may connect to."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.settimeout(0)
        with _short_path(path) as short:
            listener.bind(short)
        path.chmod(0o666)  # the directories above are the gateway's; only this one is bound into the sandbox
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield a path short enough to bind a socket to: the kernel takes about a hundred bytes."""
    if len(bytes(path)) <= MAX_SOCKET_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)

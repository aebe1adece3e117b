"""Forks gateways for tests from one process that has imported everything, so that a start imports nothing.

    python zygote.py DESCRIPTOR

It serves the listening socket with this descriptor, imports when the first order comes, and ends, with all it
forked, at the end of its standard input. Each connection is one order: a line of JSON with descriptors 0, 1
and 2 attached. It answers with the process id and, later, the exit code. A connection that closes earlier
ends its process.

It has one thread and no event loop. What it forks leaves the loop below and runs the module as `python -m`
does: exit codes, tracebacks and exit handlers are the real ones. Only the interpreter's last step is left
out, which frees every object and would copy all that is shared with the zygote.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = ("__main__", "simulator", "versions", "daytona", "e2b", "kubernetes")
"""Parts of module names: programs, stand-ins, and SDKs that change what was imported before them."""

ALSO = ("alembic.command", "alembic.runtime.migration", "aiosqlite", "nats.aio.client", "psycopg")
"""Imported by nearly every gateway, but inside functions."""


COLLECTION_THRESHOLDS = (50_000, 20, 20)
"""Workers and forked gateways collect garbage less often than by default, which takes 8 % of a start."""

PREPARED = {
    "gateway.cli.app": "command",
    "gateway.cli.machine.serve": "command",
    "gateway.config.installed": "read_installed",
    "channels.registry": "installed",
    "sandbox.registry": "installed",
}
"""What a process makes once, and keeps: the command line and the registries of installed packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run, and the descriptors it gets."""

    module: str
    words: list[str]
    env: dict[str, str]
    cwd: str
    descriptors: list[int]

    def take_on(self) -> None:
        """Turn this process into one that was started with the order."""
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        for target, descriptor in enumerate(self.descriptors):
            os.dup2(descriptor, target)
        for descriptor in set(self.descriptors) - {0, 1, 2}:
            os.close(descriptor)
        open_standard_streams()
        os.environ.clear()
        os.environ.update(self.env)
        time.tzset()
        os.chdir(self.cwd)
        sys.argv = ["-m", *self.words]
        sys.orig_argv = [sys.executable, "-m", self.module, *self.words]
        sys.path[0] = self.cwd
        if "SKEW_SECONDS" in self.env:
            runpy.run_path(str(ROOT / "tests" / "support" / "skewed_clock.py"))


def open_standard_streams() -> None:
    """Replace the streams of the zygote, which keep whether its own descriptors could be positioned."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        former = getattr(sys, name)
        stream = os.fdopen(
            descriptor,
            former.mode,
            buffering=1 if name == "stderr" or os.isatty(descriptor) else -1,
            encoding=former.encoding,
            errors=former.errors,
            closefd=False,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def modules() -> Iterator[str]:
    """Yield the names of the product's modules."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        yield package
        for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if not any(part in module.name for part in LEFT_OUT):
                yield module.name


def import_everything() -> None:
    """Import the product; a module that cannot be imported alone is left to its user."""
    gc.disable()
    for name in (*ALSO, *modules()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for module, function in PREPARED.items():
        getattr(importlib.import_module(module), function)()
    inspect_host()
    assert [task.name for task in Path("/proc/self/task").iterdir()] == [str(os.getpid())]
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    gc.enable()


def inspect_host() -> None:
    """Try once what this machine offers for sandboxes; a gateway with other settings tries again."""
    bubblewrap = importlib.import_module("sandbox.host.isolation.bubblewrap")
    bubblewrap.probe(bubblewrap.find())
    settings = importlib.import_module("sandbox.host.settings").HostSettings()
    importlib.import_module("sandbox.host.provider").find_network(settings)


def run(order: Order) -> None:
    """Run the module of an order and exit as the interpreter does; only an error takes its whole way."""
    code: object = None
    try:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


class Zygote:
    """The loop that receives requests; `serve` returns a request in each process that it forks.

    It prepares when the first order comes, and serves until the descriptor `until` has ended.
    """

    def __init__(self, listener: socket.socket, prepare: Callable[[], None], *, until: int) -> None:
        self._listener = listener
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(self._listener, selectors.EVENT_READ, self._accept)
        self._waiting.register(until, selectors.EVENT_READ, self._ends)
        self._running: dict[socket.socket, tuple[int, int]] = {}
        self._prepare = prepare
        self._prepared = False
        self._open = True

    def serve(self) -> Order | None:
        """Take orders until the input ends; returns None then, and the order in a forked process."""
        while self._open:
            for key, _ in self._waiting.select():
                order: Order | None = key.data(key.fileobj)
                if order is not None:
                    return order
        for pid, _ in self._running.values():
            os.kill(pid, signal.SIGKILL)
        return None

    def _ends(self, source: Any) -> None:
        self._open = bool(os.read(source, 1))

    def _accept(self, _source: Any) -> None:
        connection, _ = self._listener.accept()
        self._waiting.register(connection, selectors.EVENT_READ, self._receives)

    def _receives(self, connection: socket.socket) -> Order | None:
        """Fork for an order; a connection that has given one can only close."""
        if connection in self._running:
            self._abandoned(connection)
            return None
        line, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        while line and not line.endswith(b"\n"):
            line += connection.recv(1 << 16)
        if not line:
            self._discard(connection)
            return None
        return self._fork(connection, Order(**json.loads(line), descriptors=descriptors))

    def _fork(self, connection: socket.socket, order: Order) -> Order | None:
        if not self._prepared:
            self._prepared = True
            self._prepare()
        pid = os.fork()
        if not pid:
            self._leave()
            return order
        for descriptor in order.descriptors:
            os.close(descriptor)
        watch = os.pidfd_open(pid)
        self._running[connection] = (pid, watch)
        self._waiting.register(watch, selectors.EVENT_READ, lambda _: self._ended(connection))
        connection.sendall(b"%d\n" % pid)
        return None

    def _leave(self) -> None:
        """Close, in a forked process, everything that is the zygote's."""
        for _, watch in self._running.values():
            os.close(watch)
        for key in self._waiting.get_map().values():
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._waiting.close()
        self._running.clear()

    def _abandoned(self, connection: socket.socket) -> None:
        os.kill(self._running[connection][0], signal.SIGKILL)
        self._waiting.unregister(connection)

    def _ended(self, connection: socket.socket) -> None:
        pid, watch = self._running.pop(connection)
        _, status = os.waitpid(pid, 0)
        self._waiting.unregister(watch)
        os.close(watch)
        with contextlib.suppress(OSError):
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        self._discard(connection)

    def _discard(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._waiting.unregister(connection)
        connection.close()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[0] = str(ROOT)
    inherited = socket.socket(fileno=int(sys.argv[1]))
    given = Zygote(inherited, import_everything, until=sys.stdin.fileno()).serve()
    if given is not None:
        given.take_on()
        run(given)

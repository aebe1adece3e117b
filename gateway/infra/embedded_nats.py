"""The embedded broker: a nats-server of our own, started, watched and restarted as a child process."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gateway.infra.data_dir import DataDirLock

_log = logging.getLogger(__name__)

_START_WITHIN = 10.0
_STOP_WITHIN = 3.0
_BACK_OFF = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
_MOST_BUDGET = 20 * 1024**3
_LEAST_BUDGET = 16 * 1024**2
_HEALTHY_AFTER = 10.0
_PR_SET_PDEATHSIG = 1
_BOOT = "boot"
_libc = ctypes.CDLL(None, use_errno=True)


class BrokerFailed(RuntimeError):
    """The embedded nats-server could not be started."""


class Broker:
    """A running nats-server on a random loopback port, which it keeps across restarts; made by `embedded`.

    `budget` is the file space its streams may use together. `may_have_lost` says that the machine went down
    under the broker before this one, so that what was appended last may be gone.
    """

    def __init__(self, directory: Path, binary: Path, *, sync_interval: str, budget: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self.restarts = 0
        self.budget = budget
        self._directory = directory
        self._binary = binary
        self.may_have_lost = _ended_with_machine(directory)
        self._sync_interval = sync_interval
        self._port = 0
        self._child: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where to connect, with `token`."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process id of the child, None while it is down."""
        child = self._child
        return child.pid if child is not None and child.returncode is None else None

    def restart(self) -> None:
        """Kill a server that no longer answers; the supervision starts it again."""
        if self.pid is not None and not self._stopping.is_set():
            _log.warning("the embedded nats-server does not answer; restarting it")
            self._kill(signal.SIGKILL)

    async def start(self) -> None:
        """Start the child and its supervision; raises BrokerFailed."""
        await self._end_stale()
        (self._directory / _BOOT).write_text(_machine_boot())
        await self._spawn()
        self._watching = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the child: politely, then not."""
        self._stopping.set()
        self._kill(signal.SIGTERM)
        if self._watching is None:
            return
        _, late = await asyncio.wait({self._watching}, timeout=_STOP_WITHIN)
        if late:
            self._kill(signal.SIGKILL)
            await self._watching
        for name in ("server.conf", _BOOT):
            (self._directory / name).unlink(missing_ok=True)

    def _kill(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)

    async def _supervise(self) -> None:
        failures = 0
        while self._child is not None:
            started = asyncio.get_running_loop().time()
            code = await self._child.wait()
            if self._stopping.is_set():
                return
            healthy = asyncio.get_running_loop().time() - started > _HEALTHY_AFTER
            failures = 0 if healthy else failures + 1
            _log.warning("the embedded nats-server ended with %s; starting it again", code)
            failures = await self._revive(failures)

    async def _revive(self, failures: int) -> int:
        while not self._stopping.is_set():
            pause = _BACK_OFF[min(failures, len(_BACK_OFF) - 1)]
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            if self._stopping.is_set():
                break
            try:
                await self._spawn()
            except (BrokerFailed, OSError) as error:
                failures += 1
                _log.warning("the embedded nats-server does not start: %s", error)
            else:
                self.restarts += 1
                break
        return failures

    async def _spawn(self) -> None:
        self._write_configuration()
        log = os.open(self._directory / "server.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._child = await asyncio.create_subprocess_exec(
                str(self._binary),
                "-c",
                str(self._directory / "server.conf"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C is ours to turn into an orderly stop
                preexec_fn=_dying_with(os.getpid()),
                env={"PATH": os.defpath},
            )
        finally:
            os.close(log)
        (self._directory / "server.pid").write_text(str(self._child.pid))
        self._port = await self._reported_port(self._child)

    async def _reported_port(self, child: asyncio.subprocess.Process) -> int:
        ports = self._directory / f"{self._binary.name}_{child.pid}.ports"
        deadline = asyncio.get_running_loop().time() + _START_WITHIN
        while not (ports.exists() and ports.read_text()):
            if child.returncode is not None:
                raise BrokerFailed(f"nats-server ended with {child.returncode}: {self._last_words()}")
            if asyncio.get_running_loop().time() > deadline:
                self._kill(signal.SIGKILL)
                raise BrokerFailed(f"nats-server did not start within {_START_WITHIN:.0f} s")
            await asyncio.sleep(0.005)
        return int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])

    def _last_words(self) -> str:
        lines = (self._directory / "server.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def _write_configuration(self) -> None:
        for stale in self._directory.glob("*.ports"):
            stale.unlink(missing_ok=True)
        store = self._directory / "store"
        store.mkdir(mode=0o700, exist_ok=True)
        settings = {
            "server_name": "dovecote",
            "host": "127.0.0.1",
            "port": self._port or -1,
            "ports_file_dir": str(self._directory),
            "authorization": {"token": self.token, "timeout": 2},
            "max_payload": 1024 * 1024,
            "max_pending": 64 * 1024 * 1024,
            "write_deadline": "5s",
            "jetstream": {
                "store_dir": str(store),
                "max_memory_store": 16 * 1024 * 1024,
                "max_file_store": self.budget,
                "sync_interval": self._sync_interval,
            },
        }
        _write_private(self._directory / "server.conf", json.dumps(settings, indent=1))

    async def _end_stale(self) -> None:
        """End a server that outlived its gateway; we hold the directory's lock, so it is nobody's."""
        pid = _stale_pid(self._directory)
        if pid is None:
            return
        _log.warning("ending a nats-server that outlived its gateway (process %s)", pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while _stale_pid(self._directory) is not None:  # noqa: ASYNC110 - it is not our child to wait for
            await asyncio.sleep(0.01)


@asynccontextmanager
async def embedded(
    lock: DataDirLock, *, binary: str | None = None, sync_interval: str = "1s", budget: int | None = None
) -> AsyncIterator[Broker]:
    """Run a nats-server that stores under the locked data directory, until the block ends.

    `budget` bounds its files (default: half of the free disk, decided on the first start and kept, because
    a store must not shrink under its streams). Raises BrokerFailed.
    """
    if not lock.held:
        raise BrokerFailed("the data directory is not locked")
    directory = lock.directory / "nats"
    directory.mkdir(mode=0o700, exist_ok=True)
    broker = Broker(
        directory,
        find_binary(binary),
        sync_interval=sync_interval,
        budget=_kept_budget(directory, budget),
    )
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


def find_binary(named: str | None = None) -> Path:
    """Return the nats-server to run: the named one, one on the PATH, or one beside our Python."""
    beside = Path(sys.executable).parent / "nats-server"
    candidates = [named] if named else [shutil.which("nats-server"), str(beside)]
    for candidate in candidates:
        found = shutil.which(candidate) if candidate else None
        if found:
            return Path(found)
    raise BrokerFailed(f"no nats-server: {named or 'neither on the PATH nor beside Python'}; set NATS_BIN")


def _kept_budget(directory: Path, wanted: int | None) -> int:
    kept = directory / "budget"
    if wanted is None and kept.exists():
        return int(kept.read_text())
    half = shutil.disk_usage(directory).free // 2
    budget = min(wanted or _MOST_BUDGET, max(half, _LEAST_BUDGET))
    if kept.exists():
        budget = max(budget, int(kept.read_text()))
    kept.write_text(str(budget))
    return budget


def _machine_boot() -> str:
    """Return what tells one uptime of the machine from another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _ended_with_machine(directory: Path) -> bool:
    """Tell whether the machine went down while the broker ran: its last second may be lost then."""
    try:
        return (directory / _BOOT).read_text() != _machine_boot()
    except OSError:
        return False


def _stale_pid(directory: Path) -> int | None:
    """Return the recorded process if it lives and really is a nats-server of this directory."""
    try:
        pid = int((directory / "server.pid").read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if str(directory / "server.conf").encode() in arguments else None


def _dying_with(parent: int) -> Callable[[], None]:
    """Return what a child does before exec, so that it dies when its parent is killed."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return prepare


def _write_private(path: Path, text: str) -> None:
    partial = path.with_suffix(".new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)

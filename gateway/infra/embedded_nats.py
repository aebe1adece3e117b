"""The embedded broker: a nats-server of our own, started, watched and restarted as a child process."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from delivery.background import log_errors
from gateway.infra.data_dir import DataDirLock, remove_at_end
from gateway.infra.nats_probe import stores_messages

_log = structlog.get_logger(__name__)

_CRASHES = ("fatal error: ", "panic: ")
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 3.0
_RETRY_DELAYS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
_MAX_STORAGE_BYTES = 20 * 1024**3
_MIN_STORAGE_BYTES = 16 * 1024**2
_HEALTHY_SECONDS = 10.0
PROBE_TIMEOUT = 5.0
_PROBES = 2
KILL_PAUSES = (0.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds between two kills of an unresponsive server; the last one repeats."""
_CALM_SECONDS = 600.0
"""Seconds without a kill after which the pauses start at the shortest."""
_PR_SET_PDEATHSIG = 1
_BOOT_FILE = "boot"
_libc = ctypes.CDLL(None, use_errno=True)


class EmbeddedNatsFailed(RuntimeError):
    """The embedded nats-server could not be started."""


class EmbeddedNats:
    """A running nats-server on a random loopback port, which it keeps across restarts.

    `storage_bytes` limits the size of its streams together. `may_have_lost` is True when the machine went
    down while the previous broker ran, so that the last appended messages may be missing.
    """

    def __init__(self, directory: Path, binary: Path, *, sync_interval: str, storage_bytes: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self.restarts = 0
        self.storage_bytes = storage_bytes
        self._directory = directory
        self._binary = binary
        self.may_have_lost = _machine_rebooted(directory)
        self._sync_interval = sync_interval
        self._port = 0
        self._child: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._supervision: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._kills = 0
        self._killed_at = float("-inf")

    @property
    def url(self) -> str:
        """Where to connect, with `token`."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process id of the child, None while it is down."""
        child = self._child
        return child.pid if child is not None and child.returncode is None else None

    def check(self) -> None:
        """Ask the server from a thread, because requests of the event loop were not answered.

        Only a server that does not answer the thread either is killed; the supervision starts it again.
        """
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._kill_if_unresponsive())

    async def _kill_if_unresponsive(self) -> None:
        suspect, now = self.pid, asyncio.get_running_loop().time()
        if now - self._killed_at > _CALM_SECONDS:
            self._kills = 0
        pause = KILL_PAUSES[min(self._kills, len(KILL_PAUSES) - 1)]
        if suspect is None or now - self._killed_at < pause:
            return
        for _ in range(_PROBES):
            if await asyncio.to_thread(stores_messages, self._port, self.token, timeout=PROBE_TIMEOUT):
                _log.info("nats.delayed")
                return
        if self.pid == suspect and not self._stopping.is_set():
            _log.warning("nats.stalled")
            self._kills, self._killed_at = self._kills + 1, asyncio.get_running_loop().time()
            self._send_signal(signal.SIGKILL)

    async def start(self) -> None:
        """Start the child and its supervision; raises BrokerFailed."""
        await self._kill_stale()
        _write_private(self._directory / _BOOT_FILE, _boot_id())
        await self._spawn()
        self._supervision = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the child: politely, then not."""
        self._stopping.set()
        if self._probing is not None:
            self._probing.cancel()
        self._send_signal(signal.SIGTERM)
        if self._supervision is None:
            return
        _, late = await asyncio.wait({self._supervision}, timeout=_STOP_TIMEOUT)
        if late:
            self._send_signal(signal.SIGKILL)
            await self._supervision
        for name in ("server.conf", _BOOT_FILE):
            remove_at_end(self._directory / name)

    def _send_signal(self, number: signal.Signals) -> None:
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
            healthy = asyncio.get_running_loop().time() - started > _HEALTHY_SECONDS
            failures = 0 if healthy else failures + 1
            _log.warning("nats.exited", status=code)
            failures = await self._restart_child(failures)

    async def _restart_child(self, failures: int) -> int:
        while not self._stopping.is_set():
            pause = _RETRY_DELAYS[min(failures, len(_RETRY_DELAYS) - 1)]
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
            if self._stopping.is_set():
                break
            if await self._spawn_again():
                break
            failures += 1
        return failures

    async def _spawn_again(self) -> bool:
        with log_errors("nats.restart"):
            try:
                await self._spawn()
            except (EmbeddedNatsFailed, OSError) as error:
                _log.warning("nats.start_failed", error=str(error))
            else:
                self.restarts += 1
                return True
        return False

    async def _spawn(self) -> None:
        self._write_config()
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
                preexec_fn=_die_with_parent(os.getpid()),
                env={"PATH": os.defpath},
            )
        finally:
            os.close(log)
        (self._directory / "server.pid").write_text(str(self._child.pid))
        self._port = await self._read_port(self._child)

    async def _read_port(self, child: asyncio.subprocess.Process) -> int:
        ports = self._directory / f"{self._binary.name}_{child.pid}.ports"
        deadline = asyncio.get_running_loop().time() + _START_TIMEOUT
        while (port := _reported_port(ports)) is None:
            if child.returncode is not None:
                raise EmbeddedNatsFailed(
                    f"nats-server ended with {child.returncode}: {self._last_log_line()}"
                )
            if asyncio.get_running_loop().time() > deadline:
                self._send_signal(signal.SIGKILL)
                raise EmbeddedNatsFailed(f"nats-server did not start within {_START_TIMEOUT:.0f} s")
            await asyncio.sleep(0.005)
        return port

    def _last_log_line(self) -> str:
        """Return the last line of the log, or what precedes the stacks of a Go program that crashed."""
        lines = (self._directory / "server.log").read_text(errors="replace").splitlines()
        crashes = [line for line in lines if line.startswith(_CRASHES)]
        return next(iter(crashes or lines[-1:]), "its log is empty")

    def _write_config(self) -> None:
        for stale in self._directory.glob("*.ports"):
            stale.unlink(missing_ok=True)
        store = self._directory / "store"
        store.mkdir(mode=0o700, exist_ok=True)
        settings = {
            "server_name": "dovecote",
            "host": "127.0.0.1",
            "port": self._port or -1,
            "ports_file_dir": str(self._directory),
            "authorization": {"token": self.token, "timeout": 30},  # this process may be slow
            "max_payload": 1024 * 1024,
            "max_pending": 64 * 1024 * 1024,
            "write_deadline": "5s",
            "jetstream": {
                "store_dir": str(store),
                "max_memory_store": 16 * 1024 * 1024,
                "max_file_store": self.storage_bytes,
                "sync_interval": self._sync_interval,
            },
        }
        # nats-server reads JSON, but not its escapes of characters beyond ASCII, which a path may have.
        _write_private(self._directory / "server.conf", json.dumps(settings, indent=1, ensure_ascii=False))

    async def _kill_stale(self) -> None:
        """Kill a server that outlived its gateway; this process holds the directory's lock."""
        pid = _stale_pid(self._directory)
        if pid is None:
            return
        _log.warning("nats.orphan_killed", pid=pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while _stale_pid(self._directory) is not None:  # noqa: ASYNC110 - it is not our child to wait for
            await asyncio.sleep(0.01)


@asynccontextmanager
async def open_embedded_nats(
    lock: DataDirLock,
    *,
    binary: str | None = None,
    sync_interval: str = "1s",
    storage_bytes: int | None = None,
) -> AsyncIterator[EmbeddedNats]:
    """Run a nats-server that stores under the locked data directory, until the block ends.

    `storage_bytes` limits its files (default: half of the free disk, decided at the first start and stored,
    because a store must not shrink below its streams). Raises EmbeddedNatsFailed.
    """
    if not lock.is_held:
        raise EmbeddedNatsFailed("the data directory is not locked")
    directory = lock.directory / "nats"
    directory.mkdir(mode=0o700, exist_ok=True)
    broker = EmbeddedNats(
        directory,
        find_nats_server(binary),
        sync_interval=sync_interval,
        storage_bytes=_storage_limit(directory, storage_bytes),
    )
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


def find_nats_server(configured: str | None = None) -> Path:
    """Return the nats-server to run: the configured one, one on the PATH, or one beside Python."""
    beside = Path(sys.executable).parent / "nats-server"
    candidates = [configured] if configured else [shutil.which("nats-server"), str(beside)]
    for candidate in candidates:
        found = shutil.which(candidate) if candidate else None
        if found:
            return Path(found)
    raise EmbeddedNatsFailed(
        f"no nats-server: {configured or 'neither on the PATH nor beside Python'}; set NATS_BIN"
    )


def find_running(data_dir: Path) -> tuple[str, str] | None:
    """Return the URL and token of the server that runs in a data directory, or None."""
    directory = data_dir / "nats"
    try:
        token = json.loads((directory / "server.conf").read_text())["authorization"]["token"]
        (ports,) = directory.glob("*.ports")
        return json.loads(ports.read_text())["nats"][0], token
    except (OSError, ValueError):
        return None


def _reported_port(file: Path) -> int | None:
    """Return the port that a server has written down; None while it has not, or not yet in full."""
    try:
        return int(json.loads(file.read_text())["nats"][0].rpartition(":")[2])
    except (FileNotFoundError, ValueError):
        return None


def _storage_limit(directory: Path, requested: int | None) -> int:
    stored = _stored_limit(directory / "budget")
    if requested is None and stored is not None:
        return stored
    half = shutil.disk_usage(directory).free // 2
    budget = max(stored or 0, min(requested or _MAX_STORAGE_BYTES, max(half, _MIN_STORAGE_BYTES)))
    _write_private(directory / "budget", str(budget))
    return budget


def _stored_limit(file: Path) -> int | None:
    """Return the limit of the last start; None without one, also if a full disk left its file empty."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _boot_id() -> str:
    """Return the boot id of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _machine_rebooted(directory: Path) -> bool:
    """Return whether the machine went down while the broker ran, so that its last second may be lost."""
    try:
        return (directory / _BOOT_FILE).read_text() != _boot_id()
    except OSError:
        return False


def _stale_pid(directory: Path) -> int | None:
    """Return the recorded process id if it is a running nats-server of this directory."""
    try:
        pid = int((directory / "server.pid").read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if str(directory / "server.conf").encode() in arguments else None


def _die_with_parent(parent: int) -> Callable[[], None]:
    """Return a function that a child calls before exec, so that it is killed when its parent dies."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return prepare


def _write_private(path: Path, text: str) -> None:
    partial = path.with_suffix(".new")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.fsencode(text))
    partial.replace(path)

"""A real nats-server on a port of its own, to be killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

TOKEN = "a-test-token"


class NatsServer:
    """A server whose store and port survive `kill` and `start`."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: dict[str, object] | None = None,
        authorization: str = f"{{ token: {TOKEN} }}",
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._settings = settings or {}
        self._authorization = authorization
        self.token = TOKEN
        self._directory = directory
        self._port = -1
        self._child: asyncio.subprocess.Process | None = None

    @property
    def port(self) -> int:
        """The port it listens on, the same after every start."""
        return self._port

    @property
    def url(self) -> str:
        """Where to connect."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._child is not None
        return self._child.pid

    async def start(self) -> None:
        """Start it and wait until it listens."""
        configuration = self._write_configuration()
        binary = shutil.which("nats-server") or str(Path(sys.executable).parent / "nats-server")
        self._child = await asyncio.create_subprocess_exec(
            binary, "-c", str(configuration), "-l", str(self._directory / "server.log")
        )
        ports = self._directory / f"nats-server_{self._child.pid}.ports"
        async with asyncio.timeout(10):
            while not (ports.exists() and ports.read_text()):
                assert self._child.returncode is None, (self._directory / "server.log").read_text()
                await asyncio.sleep(0.005)
        self._port = int(json.loads(ports.read_text())["nats"][0].rpartition(":")[2])

    def reload(self, *, authorization: str | None = None, **settings: object) -> None:
        """Change settings while the server runs, or who may connect: others are refused and disconnected."""
        self._authorization = authorization or self._authorization
        self._settings = self._settings | settings
        self._write_configuration()
        os.kill(self.pid, signal.SIGHUP)

    def _write_configuration(self) -> Path:
        configuration = self._directory / "server.json"
        settings = {
            "host": "127.0.0.1",
            "port": self._port,
            "ports_file_dir": str(self._directory),
            "jetstream": {
                "store_dir": str(self._directory / "store"),
                "max_memory_store": 16_000_000,
                "max_file_store": 2_000_000_000,
                "sync_interval": "1s",
            },
        } | self._settings
        written = json.dumps(settings, ensure_ascii=False)
        configuration.write_text(f"{written[:-1]}, authorization: {self._authorization}}}")
        return configuration

    async def kill(self) -> None:
        """End it as a crash does."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """End it politely."""
        await self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop its process without ending it; returns when all its threads are stopped."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        assert self._child is not None
        self._child.send_signal(signal.SIGCONT)

    async def restart(self) -> None:
        """Kill it and start it on the same port and store."""
        await self.kill()
        await self.start()

    async def _end(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(signal.SIGCONT)
            self._child.send_signal(number)
            await self._child.wait()


@asynccontextmanager
async def nats_server(directory: Path) -> AsyncIterator[NatsServer]:
    """Run a server below `directory` until the block ends."""
    server = NatsServer(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def free_ports(count: int) -> list[int]:
    """Return ports without a listener at this moment."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


@asynccontextmanager
async def nats_cluster(directory: Path, size: int = 3) -> AsyncIterator[list[NatsServer]]:
    """Run a cluster below `directory` until the block ends."""
    ports = free_ports(size)
    routes = [f"nats-route://127.0.0.1:{port}" for port in ports]
    servers = [
        NatsServer(
            directory / str(place),
            settings={
                "server_name": f"server-{place}",
                "cluster": {"name": "test", "host": "127.0.0.1", "port": port, "routes": routes},
            },
        )
        for place, port in enumerate(ports)
    ]
    try:
        await asyncio.gather(*(server.start() for server in servers))
        yield servers
    finally:
        await asyncio.gather(*(server.kill() for server in servers))


@asynccontextmanager
async def child_process(program: str, server: NatsServer) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program with the server's URL and token in a process of its own; kill it when the block ends."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, server.url, server.token),
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()

"""The way from a pod to the gateway's proxy: a program in the pod, reached by `pods/exec`.

A pod with a restricted network needs no route to the gateway. The program listens on loopback in the pod,
and its connections come through the stream of the exec. Everything from there is untrusted: the multiplexer
bounds it, and the proxy decides what is reached.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog

from sandbox.errors import SandboxError
from sandbox.exec.scripts import program
from sandbox.exec.scripts.egress_tunnel import BOOT, PING, PING_SECONDS, Multiplexer, Streams, TunnelViolation
from sandbox.kubernetes.api import ClusterApi
from sandbox.kubernetes.errors import PodUnavailable, translate_errors
from sandbox.kubernetes.execution import CHUNK_BYTES, STATUS, STDIN, STDOUT, PodExecution, exec_query
from sandbox.kubernetes.objects import POD_VARIABLE
from sandbox.port import CA_BUNDLE, EGRESS_PORT, EGRESS_SOCKET

log = structlog.get_logger(__name__)

INSIDE = "/tmp/.dovecote-egress"  # noqa: S108 - inside the pod
"""The directory in the pod with the certificates that its programs trust."""

_START = f'[ "${POD_VARIABLE}" = "$1" ] || exit 113; shift; exec python3 -I -S -c "$@"'
"""The command in the pod, which does nothing in another pod of the same name."""

READY_SECONDS = 15.0
"""How long a command waits for the way out; it runs without one afterwards."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAddress:
    """A pod: its API path and its uid."""

    path: str
    uid: str


class PodEgress:
    """The way out of the pods of one sandbox, one pod after the other.

    `directory` has the gateway's socket and the certificates. A pod without python3 has no way out.
    """

    def __init__(self, api: ClusterApi, directory: Path) -> None:
        self._api = api
        self._directory = directory
        self._pod: PodAddress | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def ensure(self, pod: PodAddress) -> None:
        """Wait until the pod has its way out; a pod that cannot have one is not tried again."""
        if self._pod != pod or (self._task is not None and self._task.done() and self._ready.is_set()):
            await self.close()
            self._pod, self._task = pod, asyncio.create_task(self._keep(pod))
        if self._ready.is_set() or self._task is None:
            return
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({ready, self._task}, timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()

    async def close(self) -> None:
        """End the connections of the present pod. Idempotent."""
        task, self._task, self._pod = self._task, None, None
        self._ready = asyncio.Event()
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep(self, pod: PodAddress) -> None:
        """Run the program in the pod again and again, until the pod is gone or has no python3."""
        pause = _FIRST_PAUSE
        while True:
            started = asyncio.get_running_loop().time()
            try:
                status = await self._forward(pod)
            except PodUnavailable:
                return
            except (SandboxError, OSError, TunnelViolation) as error:
                log.debug("egress_tunnel.ended", pod=pod.path, error=str(error))
            else:
                if not self._ready.is_set():
                    log.warning(
                        "egress_tunnel.refused",
                        pod=pod.path,
                        status=status,
                        remedy="use an image with python3 3.9 or newer",
                    )
                    return
            if asyncio.get_running_loop().time() - started > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _forward(self, pod: PodAddress) -> str:
        """Run the program once; return the status with which it ended."""
        text = program("egress_tunnel.py").encode()
        bundle = await asyncio.to_thread(_read, self._directory / CA_BUNDLE)
        words = [str(len(text)), str(len(bundle)), f"{INSIDE}/{CA_BUNDLE}", str(EGRESS_PORT)]
        query = exec_query(["sh", "-c", _START, "dovecote", pod.uid, BOOT, *words])
        async with self._api.websocket(f"{pod.path}/exec", query) as socket:
            with translate_errors():
                return await self._serve(socket, text + bundle)

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse, begin: bytes) -> str:
        async def send(content: bytes) -> None:
            for place in range(0, len(content), CHUNK_BYTES):
                await socket.send_bytes(bytes([STDIN]) + content[place : place + CHUNK_BYTES])

        multiplexer = Multiplexer(send, self._connect)
        await send(begin)
        pings = asyncio.create_task(_ping(multiplexer))
        try:
            return await self._receive(socket, multiplexer)
        finally:
            pings.cancel()
            await asyncio.gather(pings, return_exceptions=True)
            await multiplexer.close()

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse, multiplexer: Multiplexer) -> str:
        execution = PodExecution()
        async for message in socket:
            content = message.data.encode() if isinstance(message.data, str) else message.data
            if content[:1] == bytes([STDOUT]):
                multiplexer.feed(content[1:])
                if multiplexer.is_ready.is_set():
                    self._ready.set()
                continue
            execution.add(content)
            if content[:1] == bytes([STATUS]):
                break
        if execution.status is None:
            raise ConnectionResetError("the connection to the pod ended")
        errors = execution.stderr[-300:].decode(errors="replace")
        return f"{execution.status.get('message', '')} {errors}".strip()

    async def _connect(self) -> Streams:
        """Connect to the gateway's socket by its directory: a socket's path has 107 bytes at most."""
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        try:
            return await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{EGRESS_SOCKET}")
        finally:
            os.close(directory)


async def _ping(multiplexer: Multiplexer) -> None:
    while True:
        await asyncio.sleep(PING_SECONDS)
        await multiplexer.send(PING)


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""

"""The agent of a simulated cloud sandbox: it starts processes in its namespaces and reports their output.

Speaks lines of JSON on a unix socket, one connection for each request; the standard library only.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

CHUNK_BYTES = 32 * 1024


class ProcessHostAgent:
    """The processes of this sandbox by pid."""

    def __init__(self) -> None:
        self.children: dict[int, asyncio.subprocess.Process] = {}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Do one thing."""
        with contextlib.suppress(ConnectionError):
            line = await reader.readline()
            if not line:  # a client has checked whether we listen
                return writer.close()
            asked = json.loads(line)
            await getattr(self, asked.pop("do"))(writer, **asked)
        return writer.close()

    async def start(
        self, writer: asyncio.StreamWriter, *, argv: list[str], env: dict[str, str], cwd: str, stdin: bool
    ) -> None:
        """Start a process and report its pid, its output as it comes, and its end."""
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                env=env,
                cwd=cwd,
                stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return send_reply(writer, error=str(error))
        self.children[child.pid] = child
        send_reply(writer, pid=child.pid)
        assert child.stdout is not None
        assert child.stderr is not None
        await asyncio.gather(
            forward_output(child.stdout, writer, "stdout"), forward_output(child.stderr, writer, "stderr")
        )
        code = await child.wait()
        self.children.pop(child.pid, None)
        send_reply(writer, code=code)
        return None

    async def feed(self, writer: asyncio.StreamWriter, *, pid: int, data: str, end: bool) -> None:
        """Give a process some of its input."""
        child = self.children.get(pid)
        if child is None or child.stdin is None:
            return send_reply(writer, error="no such process")
        child.stdin.write(base64.b64decode(data))
        if end:
            child.stdin.close()
        return send_reply(writer, done=True)

    async def kill(self, writer: asyncio.StreamWriter, *, pid: int, number: int) -> None:
        """Send a signal."""
        if pid not in self.children:
            return send_reply(writer, error="no such process")
        os.kill(pid, number)
        return send_reply(writer, done=True)

    async def put(self, writer: asyncio.StreamWriter, *, path: str, data: str) -> None:
        """Write a file."""
        await asyncio.to_thread(write, Path(path), base64.b64decode(data))
        send_reply(writer, done=True)

    async def get(self, writer: asyncio.StreamWriter, *, path: str) -> None:
        """Read a file."""
        try:
            content = await asyncio.to_thread(Path(path).read_bytes)
        except OSError as error:
            return send_reply(writer, error=error.strerror)
        return send_reply(writer, data=base64.b64encode(content).decode())


def write(path: Path, content: bytes) -> None:
    """Write a file, its directories made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def send_reply(writer: asyncio.StreamWriter, **said: Any) -> None:
    """Say one thing."""
    writer.write(json.dumps(said).encode() + b"\n")


async def forward_output(source: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
    """Pass output on."""
    while piece := await source.read(CHUNK_BYTES):
        send_reply(writer, **{name: base64.b64encode(piece).decode()})
        with contextlib.suppress(ConnectionError):
            await writer.drain()


async def main(socket: str) -> None:
    """Serve until the sandbox ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    agent = ProcessHostAgent()
    server = await asyncio.start_unix_server(agent.handle, socket, limit=256 * 1024 * 1024)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

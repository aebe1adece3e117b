"""The agent of a simulated cloud sandbox: it starts processes in its namespaces and reports their output.

Speaks lines of JSON on a unix socket, one connection for each request; the standard library only, and without
asyncio, whose import takes longer than most commands.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

CHUNK_BYTES = 32 * 1024
CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""The processes of this sandbox by pid."""


class AgentRequest(socketserver.StreamRequestHandler):
    """One connection: its line names a method and the method's arguments."""

    def handle(self) -> None:
        """Do one thing."""
        self.writing = threading.Lock()
        with contextlib.suppress(ConnectionError):
            line = self.rfile.readline()
            if not line:  # a client has checked whether we listen
                return
            asked = json.loads(line)
            getattr(self, asked.pop("do"))(**asked)

    def start(self, *, argv: list[str], env: dict[str, str], cwd: str, stdin: bool) -> None:
        """Start a process and report its pid, its output as it comes, and its end."""
        try:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return self.reply(error=str(error))
        CHILDREN[child.pid] = child
        assert child.stdout is not None
        assert child.stderr is not None
        with contextlib.suppress(ConnectionError):
            self.reply(pid=child.pid)
        errors = threading.Thread(target=self.forward_output, args=(child.stderr, "stderr"))
        errors.start()
        self.forward_output(child.stdout, "stdout")
        errors.join()
        code = child.wait()
        CHILDREN.pop(child.pid, None)
        return self.reply(code=code)

    def forward_output(self, source: IO[bytes], name: str) -> None:
        """Pass output on until its end, also after the client has gone."""
        with source:
            while piece := os.read(source.fileno(), CHUNK_BYTES):
                with contextlib.suppress(ConnectionError):
                    self.reply(**{name: base64.b64encode(piece).decode()})

    def feed(self, *, pid: int, data: str, end: bool) -> None:
        """Give a process some of its input; one that has ended takes none."""
        child = CHILDREN.get(pid)
        if child is None or child.stdin is None:
            return self.reply(error="no such process")
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(base64.b64decode(data))
            child.stdin.flush()
            if end:
                child.stdin.close()
        return self.reply(done=True)

    def kill(self, *, pid: int, number: int) -> None:
        """Send a signal."""
        if pid not in CHILDREN:
            return self.reply(error="no such process")
        os.kill(pid, number)
        return self.reply(done=True)

    def put(self, *, path: str, data: str) -> None:
        """Write a file, its directories made."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(base64.b64decode(data))
        self.reply(done=True)

    def get(self, *, path: str) -> None:
        """Read a file."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            return self.reply(error=error.strerror)
        return self.reply(data=base64.b64encode(content).decode())

    def reply(self, **said: Any) -> None:
        """Say one thing."""
        with self.writing:
            self.wfile.write(json.dumps(said).encode() + b"\n")


class AgentServer(socketserver.ThreadingUnixStreamServer):
    """Serves each request in a thread."""

    daemon_threads = True
    request_queue_size = 100


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    AgentServer(sys.argv[1], AgentRequest).serve_forever()

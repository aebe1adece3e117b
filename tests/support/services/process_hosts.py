"""Instances for simulated cloud providers: real commands in namespaces that live until they are ended."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pid_namespaces import child_pids, kill_with_namespace
from sandbox.host.isolation import bubblewrap

AGENT_PROGRAM = Path(__file__).with_name("process_host_agent.py")
START_SECONDS = 20.0
SYSTEM_PATHS = ("/usr", "/etc/alternatives", "/etc/ssl/certs", "/etc/nsswitch.conf")


class ProcessHost:
    """One instance of a simulated provider: its own home, /mnt and /tmp, and a process agent."""

    def __init__(self, directory: Path, home: str) -> None:
        self.directory = directory
        self.home = home
        self.agent = Path()
        self.child: asyncio.subprocess.Process | None = None
        self.frozen = False

    @property
    def socket(self) -> Path:
        """The path of the agent's socket, as this machine sees it."""
        return self.agent / "s"

    async def start(self) -> None:
        """Start the instance."""
        binary = bubblewrap.find(None)
        assert binary is not None
        self.agent = Path(tempfile.mkdtemp(prefix="agent-"))  # the path of a socket has 107 bytes at most
        for name in ("home", "mnt", "tmp", "etc"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "etc" / "passwd").write_text(
            f"root:x:0:0::/root:/bin/bash\nuser:x:0:0::{self.home}:/bin/bash\n"
        )
        (self.directory / "etc" / "group").write_text("root:x:0:\nuser:x:0:\n")
        self.child = await asyncio.create_subprocess_exec(
            *(str(binary), *self._namespaces()),
            *(sys.executable, "-I", "-S", str(AGENT_PROGRAM), "/run/agent/s"),
            env={},
        )
        async with asyncio.timeout(START_SECONDS):
            while not await self._is_listening():  # noqa: ASYNC110 - another process begins to
                await asyncio.sleep(0.01)

    async def _is_listening(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(str(self.socket))
        except OSError:
            return False
        writer.close()
        return True

    def _namespaces(self) -> Sequence[str]:
        here, prefixes = self.directory, {sys.prefix, sys.base_prefix, str(AGENT_PROGRAM.parent)}
        words = ["--unshare-all", "--die-with-parent", "--new-session", "--hostname", "box"]
        if os.geteuid():  # the users of its /etc/passwd are root
            words += ["--unshare-user", "--uid", "0", "--gid", "0"]
        for place in [place for place in SYSTEM_PATHS if Path(place).exists()]:
            words += ["--ro-bind", place, place]
        for link in ("bin", "sbin", "lib", "lib64"):
            words += ["--symlink", f"usr/{link}", f"/{link}"]
        words += ["--proc", "/proc", "--dev", "/dev", "--bind", str(here / "tmp"), "/tmp"]
        for prefix in sorted(prefixes):
            words += ["--ro-bind", prefix, prefix]
        words += ["--bind", str(here / "home"), self.home, "--bind", str(here / "mnt"), "/mnt"]
        words += ["--bind", str(self.agent), "/run/agent", "--ro-bind", str(here / "etc"), "/etc/box"]
        words += ["--ro-bind", str(here / "etc" / "passwd"), "/etc/passwd"]
        return [*words, "--ro-bind", str(here / "etc" / "group"), "/etc/group", "--chdir", "/"]

    async def _request(self, **asked: Any) -> AsyncGenerator[Mapping[str, Any], None]:
        reader, writer = await asyncio.open_unix_connection(str(self.socket), limit=256 * 1024 * 1024)
        try:
            writer.write(json.dumps(asked).encode() + b"\n")
            while line := await reader.readline():
                yield json.loads(line)
        finally:
            writer.close()

    async def request_once(self, **asked: Any) -> Mapping[str, Any]:
        """Ask for one thing that has one answer."""
        async with contextlib.aclosing(self._request(**asked)) as answers:
            async for answer in answers:
                return answer
        raise ConnectionError("the box does not answer")

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str = "/", stdin: bool = False
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Start a process; it goes on when its reader disconnects."""
        return self._request(do="start", argv=list(argv), env=dict(env), cwd=cwd, stdin=stdin)

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file."""
        await self.request_once(do="put", path=path, data=base64.b64encode(content).decode())

    async def read_file(self, path: str) -> bytes | None:
        """Read a file; None when it is not there."""
        answer = await self.request_once(do="get", path=path)
        return base64.b64decode(answer["data"]) if "data" in answer else None

    def freeze(self, *, frozen: bool) -> None:
        """Stop every process of the instance, or continue them."""
        self.frozen = frozen
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def _processes(self) -> list[int]:
        """Return the processes of the instance's own pid namespace; bwrap itself is outside it."""
        assert self.child is not None
        first = next(iter(child_pids(self.child.pid)), None)
        if first is None:
            return []
        theirs = _namespace(first)
        assert theirs != _namespace(os.getpid())
        return [pid for pid in _all_pids() if _namespace(pid) == theirs]

    async def stop(self) -> None:
        """End the instance with everything in it; its disk stays for the next start."""
        if self.child is not None and self.child.returncode is None:
            self.freeze(frozen=False)
            await kill_with_namespace(self.child)
            shutil.rmtree(self.agent, ignore_errors=True)

    async def terminate(self) -> None:
        """End the instance with everything in it, and delete its disk."""
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _namespace(pid: int) -> str:
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""

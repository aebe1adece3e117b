"""An execution environment of the loopback Lambda: the real handler under awslambdaric, on a runtime API.

The runtime API is written from AWS's document "Using the Lambda runtime API". The environment has a user
without privileges, a read-only root, its own /tmp and, if its function mounts one, the file system. The
network is the machine's, whatever the function is called.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from pid_namespaces import descendant_pids, kill_with_namespace
from sandbox.aws_lambda import handler
from sandbox.host.isolation import bubblewrap

RUNTIME = "/2018-06-01/runtime"
FUNCTION_SECRET = "AKIAFUNCTIONROLEKEY0"
"""A credential of the function's role; no command may see it."""

SYSTEM_PATHS = ("/usr", "/etc/alternatives", "/etc/ssl/certs", "/etc/nsswitch.conf")
START_SECONDS = 60.0
PYTHON = Path("/opt/python")
"""Where the interpreter's environment is inside, because /tmp, in which it may be outside, is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionConfig:
    """A function: what it mounts and its time-out."""

    name: str
    mounts: bool = True
    timeout: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionAnswer:
    """The answer of an invocation; `error` is the value of X-Amz-Function-Error."""

    payload: bytes
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Invocation:
    """An invocation on its way through the runtime API."""

    payload: bytes
    deadline: float
    tenant: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    answer: asyncio.Future[FunctionAnswer] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ExecutionEnvironment:
    """One process of a function, which serves one invocation at a time."""

    def __init__(self, function: FunctionConfig, tenant: str, directory: Path, files: Path) -> None:
        self.function = function
        self.tenant = tenant
        self._directory = directory
        self._files = files
        self._pending: asyncio.Queue[Invocation] = asyncio.Queue()
        self._running: dict[str, Invocation] = {}
        self._runner: web.AppRunner | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Serve the runtime API and start the runtime."""
        application = web.Application(client_max_size=32 * 1024 * 1024)
        application.router.add_get(f"{RUNTIME}/invocation/next", self._next)
        application.router.add_post(f"{RUNTIME}/invocation/{{id}}/response", self._response)
        application.router.add_post(f"{RUNTIME}/invocation/{{id}}/error", self._error)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        (self._directory / "tmp").mkdir(parents=True)
        binary = bubblewrap.find(None)
        assert binary is not None
        address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        read, write = os.pipe()  # a command could read arguments of the process
        os.write(write, "\0".join(self._words(address)).encode())
        os.close(write)
        self._process = await asyncio.create_subprocess_exec(
            str(binary),
            "--args",
            str(read),
            str(PYTHON / Path(sys.executable).relative_to(sys.prefix)),
            "-m",
            "awslambdaric",
            "handler.handle",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            pass_fds=(read,),
            env={},
        )
        os.close(read)

    def _words(self, address: str) -> list[str]:
        words = ["--unshare-user", "--uid", "993", "--gid", "990", "--unshare-pid", "--unshare-ipc"]
        words += [
            "--die-with-parent",
            "--new-session",
            "--cap-drop",
            "ALL",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
        ]
        for place in [place for place in SYSTEM_PATHS if Path(place).exists()]:
            words += ["--ro-bind", place, place]
        for link in ("bin", "sbin", "lib", "lib64"):
            words += ["--symlink", f"usr/{link}", f"/{link}"]
        if sys.base_prefix != sys.prefix:
            words += ["--ro-bind", sys.base_prefix, sys.base_prefix]
        words += ["--ro-bind", sys.prefix, str(PYTHON)]
        words += ["--ro-bind", str(handler.__file__), "/var/task/handler.py"]
        words += ["--symlink", str(handler.WORKSPACES), "/mnt/workspaces"]
        if self.function.mounts:
            words += ["--bind", str(self._files), str(handler.FILES)]
        words += ["--bind", str(self._directory / "tmp"), "/tmp", "--remount-ro", "/", "--chdir", "/var/task"]
        variables = {
            "AWS_LAMBDA_RUNTIME_API": address,
            "AWS_ACCESS_KEY_ID": FUNCTION_SECRET,
            "AWS_LAMBDA_FUNCTION_NAME": self.function.name,
            "LAMBDA_TASK_ROOT": "/var/task",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        for name, value in variables.items():
            words += ["--setenv", name, value]
        return words

    async def invoke(self, payload: bytes) -> FunctionAnswer:
        """Run an invocation as Lambda does: a crash or the time-out ends the environment."""
        seconds = self.function.timeout
        one = Invocation(payload=payload, deadline=time.time() + seconds, tenant=self.tenant)
        self._pending.put_nowait(one)
        assert self._process is not None
        ended = asyncio.ensure_future(self._process.wait())
        ended.add_done_callback(lambda _ended: one.answer.cancel())
        await asyncio.wait({one.answer}, timeout=seconds)
        if one.answer.done() and not one.answer.cancelled():
            return one.answer.result()
        has_crashed = one.answer.cancelled()
        await self.stop()
        if not has_crashed:
            text = f"2026-01-01T00:00:00.000Z {one.id} Task timed out after {seconds:.2f} seconds"
            return _failure("Sandbox.Timedout", text)
        return _failure("Runtime.ExitError", f"RequestId: {one.id} Error: Runtime exited with error")

    @property
    def is_alive(self) -> bool:
        """Whether it can serve another invocation."""
        return self._process is not None and self._process.returncode is None

    def send_signal(self, number: signal.Signals) -> None:
        """Kill the runtime, as the kernel does when memory is exhausted, or let it hang."""
        assert self._process is not None
        for pid in descendant_pids(self._process.pid) if number is signal.SIGSTOP else [self._process.pid]:
            os.kill(pid, number)

    async def stop(self) -> None:
        """End the environment with everything in it."""
        if self._process is not None:
            await kill_with_namespace(self._process)
        if self._runner is not None:
            await self._runner.cleanup()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _next(self, _request: web.Request) -> web.Response:
        one = await self._pending.get()
        self._running[one.id] = one
        headers = {
            "Lambda-Runtime-Aws-Request-Id": one.id,
            "Lambda-Runtime-Deadline-Ms": str(int(one.deadline * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": f"arn:aws:lambda:a:0:function:{self.function.name}",
            "Lambda-Runtime-Trace-Id": "Root=1-0-0",
        }
        if one.tenant:
            headers["Lambda-Runtime-Aws-Tenant-Id"] = one.tenant
        return web.Response(body=one.payload, headers=headers, content_type="application/json")

    async def _response(self, request: web.Request) -> web.Response:
        return self._end(request, FunctionAnswer(payload=await request.read()))

    async def _error(self, request: web.Request) -> web.Response:
        return self._end(request, FunctionAnswer(payload=await request.read(), error="Unhandled"))

    def _end(self, request: web.Request, answer: FunctionAnswer) -> web.Response:
        one = self._running.pop(request.match_info["id"], None)
        if one is None or one.answer.done():
            return web.json_response({"errorType": "InvalidRequestID"}, status=400)
        one.answer.set_result(answer)
        return web.json_response({"status": "OK"}, status=202)


def _failure(kind: str, message: str) -> FunctionAnswer:
    return FunctionAnswer(
        payload=web.json_response({"errorType": kind, "errorMessage": message}).body or b"",  # type: ignore[arg-type]
        error="Unhandled",
    )

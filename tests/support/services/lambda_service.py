"""A service that speaks Lambda's Invoke API on loopback, written from AWS's API reference, with moto's S3.

Invocations run the real handler in a process of an execution environment, which later invocations of the
same function and tenant use again. `POST /faults` names what goes wrong with the next invocations.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from lambda_environment import ExecutionEnvironment, FunctionAnswer, FunctionConfig
from s3_servers import s3_server
from sandbox.s3 import Bucket, open_client

ACCESS_KEY, SECRET_KEY, BUCKET = "AKIAGATEWAYKEY000000", "secret-of-the-gateway", "sandboxes-of-tests"
FUNCTIONS = {
    one.name: one
    for one in (
        FunctionConfig(name="sandbox-mount-net"),
        FunctionConfig(name="sandbox-mount-nonet"),
        FunctionConfig(name="sandbox-nomount-net", mounts=False),
        FunctionConfig(name="sandbox-nomount-nonet", mounts=False),
        FunctionConfig(name="sandbox-short", timeout=8.0),
        FunctionConfig(name="sandbox-ends-early", timeout=2.0),
    )
}
MAX_PAYLOAD = 6 * 1024 * 1024
_SIGNALS = {"crash": signal.SIGKILL, "freeze": signal.SIGSTOP}
_CREDENTIAL = re.compile(r"Credential=([^/,]+)/")


class LambdaService:
    """The API; `log` lists what was invoked."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = directory / "files"
        self.files.mkdir()
        self.faults: deque[str] = deque()
        self.log: list[dict[str, str]] = []
        self._count = 0
        self._idle: dict[tuple[str, str], list[ExecutionEnvironment]] = {}
        self._all: set[ExecutionEnvironment] = set()
        self._late: set[asyncio.Task[Any]] = set()

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application(client_max_size=32 * 1024 * 1024)
        application.router.add_post("/2015-03-31/functions/{name}/invocations", self._invoke)
        application.router.add_post("/faults", self._set_faults)
        application.router.add_get("/log", self._get_log)
        application.router.add_get("/late", self._wait_for_late)
        return application

    async def _set_faults(self, request: web.Request) -> web.Response:
        self.faults = deque(await request.json())
        self.log.clear()
        return web.json_response({})

    async def _get_log(self, _request: web.Request) -> web.Response:
        return web.json_response(self.log)

    async def _wait_for_late(self, _request: web.Request) -> web.Response:
        """Answer when the requests that come late have been carried out."""
        await asyncio.gather(*self._late, return_exceptions=True)
        return web.json_response({})

    async def _invoke(self, request: web.Request) -> web.StreamResponse:
        payload, tenant = await request.read(), request.headers.get("X-Amz-Tenant-Id", "")
        refusal = self._refusal(request, payload, tenant)
        if refusal is not None:
            return refusal
        function = FUNCTIONS[request.match_info["name"]]
        fault = self.faults.popleft() if self.faults else ""
        self.log.append({"function": function.name, "tenant": tenant, "fault": fault})
        if fault == "throttle":
            return _error(429, "TooManyRequestsException", "Rate Exceeded.")
        if fault == "arrive_late":
            self._late.add(asyncio.ensure_future(self._run_late(function, tenant, payload)))
        if fault in {"lose_request", "arrive_late"}:
            return _hang_up(request)
        if fault == "time_out":
            text = "2026-01-01T00:00:00.000Z 5f1c Task timed out after 300.00 seconds"
            ended = {"errorType": "Sandbox.Timedout", "errorMessage": text}
            return _answer(FunctionAnswer(payload=json.dumps(ended).encode(), error="Unhandled"), fault)
        answer = await self._run(function, tenant, payload, signal_=_SIGNALS.get(fault))
        return _hang_up(request) if fault == "lose_answer" else _answer(answer, fault)

    def _refusal(self, request: web.Request, payload: bytes, tenant: str) -> web.Response | None:
        found = _CREDENTIAL.search(request.headers.get("Authorization", ""))
        if found is None or found.group(1) != ACCESS_KEY:
            return _error(
                403, "UnrecognizedClientException", "The security token included in the request is invalid."
            )
        if request.match_info["name"] not in FUNCTIONS:
            return _error(404, "ResourceNotFoundException", "Function not found")
        if len(payload) > MAX_PAYLOAD:
            return _error(413, "RequestEntityTooLargeException", f"{len(payload)} byte payload is too large")
        if not tenant:
            return _error(400, "InvalidParameterValueException", "a tenant id is required")
        is_dry = request.headers.get("X-Amz-Invocation-Type") == "DryRun"
        return web.Response(status=204) if is_dry else None

    async def _run_late(self, function: FunctionConfig, tenant: str, payload: bytes) -> FunctionAnswer:
        await asyncio.sleep(1.0)
        return await self._run(function, tenant, payload)

    async def _run(
        self, function: FunctionConfig, tenant: str, payload: bytes, *, signal_: signal.Signals | None = None
    ) -> FunctionAnswer:
        idle = self._idle.setdefault((function.name, tenant), [])
        environment = idle.pop() if idle else await self._start(function, tenant)
        if signal_ is not None:
            self._late.add(asyncio.ensure_future(self._strike(environment, payload, signal_)))
        answer = await environment.invoke(payload)
        if environment.is_alive:
            idle.append(environment)
        else:
            await environment.stop()
            self._all.discard(environment)
        return answer

    async def _strike(
        self, environment: ExecutionEnvironment, payload: bytes, number: signal.Signals
    ) -> None:
        """Send a signal to the runtime once the command has created the file `begun`."""
        begun = self.files / str(json.loads(payload)["directory"]) / "workspace" / "begun"
        while not begun.exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.02)
        environment.send_signal(number)

    async def _start(self, function: FunctionConfig, tenant: str) -> ExecutionEnvironment:
        self._count += 1
        environment = ExecutionEnvironment(
            function, tenant, self.directory / f"environment-{self._count}", self.files
        )
        self._all.add(environment)
        await environment.start()
        return environment

    async def close(self) -> None:
        """End all environments."""
        await asyncio.gather(*(one.stop() for one in self._all))


def _answer(answer: FunctionAnswer, fault: str) -> web.Response:
    """Return the answer of Invoke."""
    if fault == "server_error":
        return _error(500, "ServiceException", "The service encountered an internal error.")
    if len(answer.payload) > MAX_PAYLOAD:
        text = "Response payload size exceeded maximum allowed payload size (6291556 bytes)."
        kind = {"errorType": "Function.ResponseSizeTooLarge", "errorMessage": text}
        answer = replace(answer, payload=json.dumps(kind).encode(), error="Unhandled")
    headers = {"X-Amz-Executed-Version": "$LATEST"}
    if answer.error:
        headers["X-Amz-Function-Error"] = answer.error
    return web.Response(body=answer.payload, headers=headers)


def _hang_up(request: web.Request) -> web.Response:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def _error(status: int, kind: str, message: str) -> web.Response:
    body = {"Type": "User", "Message": message}
    return web.json_response(body, status=status, headers={"x-amzn-ErrorType": kind})


@asynccontextmanager
async def lambda_service(directory: Path) -> AsyncIterator[tuple[str, str]]:
    """Run the service and its S3 on free ports of loopback; yields both URLs."""
    service = LambdaService(directory)
    with s3_server() as s3_url:
        bucket = Bucket(bucket=BUCKET, endpoint=s3_url, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
        async with open_client(bucket, "tests") as objects:
            await objects.create_bucket(Bucket=BUCKET)
        runner = web.AppRunner(service.application(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", s3_url
        finally:
            await service.close()
            await runner.cleanup()


async def _serve(directory: Path) -> None:
    """Print both addresses on stdout and serve until stdin is closed."""
    async with lambda_service(directory) as urls:
        print(*urls, flush=True)  # noqa: T201 - for who started us
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))

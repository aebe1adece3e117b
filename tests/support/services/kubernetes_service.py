"""A small Kubernetes API server on loopback, written from the Kubernetes API documentation.

Pods, claims, namespaces, network policies and Sandbox objects (agents.x-k8s.io/v1beta1) with their versions
and conflicts, access reviews, and exec over WebSocket with the channel protocols v4 and v5. Behind pods are
real processes; a stand-in for the agent-sandbox controller turns Sandboxes into pods. Network policies,
resources and security contexts are stored for tests to read and are not enforced.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from kubernetes_node import LoopbackNode
from kubernetes_objects import Object, ObjectStore, StatusError
from process_hosts import ProcessHost
from sandbox.kubernetes.errors import error_for
from sandbox_controller import SandboxController

TOKEN, TOKEN_WITHOUT_ROLE = "the-loopback-token", "the-token-without-a-role"
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
Events = AsyncIterator[Mapping[str, Any]]
MAY = web.RequestKey("may", bool)
"""Whether the request's user has a role."""
STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255


class KubernetesService:
    """The cluster; `overloaded` answers so many requests with 429, `url` is the API server's.

    `page` is what a proxy before the server answers to each request: a status and a text.
    """

    def __init__(self, directory: Path, *, controller: bool = True) -> None:
        self.overloaded = 0
        self.lost_updates = 0
        self.page: tuple[int, str] | None = None
        self.url = ""
        self.commands: list[Sequence[str]] = []
        self._changes = asyncio.Event()
        self.store = ObjectStore(self._changes.set, controller=controller)
        self.node = LoopbackNode(self.store, directory)
        self._controller = SandboxController(self.request) if controller else None

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application(client_max_size=16 * 1024 * 1024)
        route = application.router.add_route
        route("GET", "/version", self._version)
        route("GET", "/apis/{group}/{version}", self._group)
        route("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._access)
        route("GET", "/api/v1/namespaces/{namespace}/pods/{name}/exec", self._exec)
        route("*", "/{path:.*}", self._handle)
        application.middlewares.append(self._guard)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.page is not None:
            return web.Response(status=self.page[0], text=self.page[1])
        try:
            self._admit(request)
            return await handler(request)  # type: ignore[no-any-return]
        except StatusError as error:
            headers = {"Retry-After": "0"} if error.status == 429 else {}
            return web.json_response(error.body, status=error.status, headers=headers)

    def _admit(self, request: web.Request) -> None:
        """Raise StatusError for a request that is not authenticated, or one too many."""
        if self.overloaded:
            self.overloaded -= 1
            raise StatusError(429, "TooManyRequests", "the server has received too many requests")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in {TOKEN, TOKEN_WITHOUT_ROLE}:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        request[MAY] = token == TOKEN

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.0-loopback"})

    async def _group(self, request: web.Request) -> web.Response:
        if request.path not in self.store.groups:
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        return web.json_response({"kind": "APIResourceList", "resources": [{"name": "sandboxes"}]})

    async def _access(self, request: web.Request) -> web.Response:
        review = await request.json()
        return web.json_response({**review, "status": {"allowed": request[MAY]}}, status=201)

    async def _handle(self, request: web.Request) -> web.Response:
        if not request[MAY]:
            message = f'{request.path} is forbidden: User "nobody" cannot {request.method.lower()} resource'
            raise StatusError(403, "Forbidden", message)
        if request.method == "PUT" and self.lost_updates:
            self.lost_updates -= 1
            raise StatusError(409, "Conflict", "the object has been modified")
        body = await request.json() if request.can_read_body else None
        found = self.store.handle(
            request.method, request.path, request.query, body, patch_type=request.content_type
        )
        return web.json_response(found, status=201 if request.method == "POST" else 200)

    async def request(
        self, method: str, path: str, *, body: Object | None = None, content_type: str = ""
    ) -> Object:
        """Answer a request of the controller, which needs no connection."""
        try:
            return self.store.handle(method, path, {}, body, patch_type=content_type)
        except StatusError as error:
            raise error_for(error.status, str(error)) from error

    async def run(self) -> None:
        """Let controller and node follow the changes."""
        while True:
            self._changes.clear()
            if self._controller is not None:
                await self._controller.reconcile()
            self.node.sync()
            await self._changes.wait()

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        if not request[MAY]:
            raise StatusError(403, "Forbidden", 'User "nobody" cannot create resource "pods/exec"')
        if "*/*" not in request.headers.get("Accept", "*/*"):
            raise StatusError(406, "NotAcceptable", "a WebSocket is no JSON")
        place = ("pods", request.match_info["namespace"], request.match_info["name"])
        pod = self.store.objects.get(place)
        if pod is None:
            raise StatusError(404, "NotFound", f'pods "{place[2]}" not found')
        host = self.node.host_of(pod)
        if host is None:
            raise StatusError(500, "InternalError", "unable to upgrade connection: container not found")
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        command = request.query.getall("command")
        self.commands.append(command)
        with contextlib.suppress(ConnectionError):
            await self._converse(socket, host, self.node.run(pod, command))
        return socket

    async def _converse(self, socket: web.WebSocketResponse, host: ProcessHost, events: Events) -> None:
        """Pass the channels on until the command has ended; it goes on when the connection breaks."""
        feeding: asyncio.Task[None] | None = None
        try:
            async for event in events:
                if "pid" in event:
                    feeding = asyncio.create_task(_feed(socket, host, event["pid"]))
                elif "stdout" in event or "stderr" in event:
                    (name, text), *_ = event.items()
                    channel = STDOUT if name == "stdout" else STDERR
                    await socket.send_bytes(bytes([channel]) + base64.b64decode(text))
                else:
                    await socket.send_bytes(bytes([STATUS]) + json.dumps(_final_status(event)).encode())
                    await socket.close()
                    return
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)


async def _feed(socket: web.WebSocketResponse, host: ProcessHost, pid: int) -> None:
    """Pass stdin on; only version 5 of the protocol can close it before the connection ends."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY:
            continue
        channel, content = message.data[0], message.data[1:]
        end = channel == CLOSE and socket.ws_protocol == PROTOCOLS[0]
        if channel == STDIN or end:
            data = base64.b64encode(b"" if end else content).decode()
            await host.request_once(do="feed", pid=pid, data=data, end=end)
    await host.request_once(do="feed", pid=pid, data="", end=True)


def _final_status(event: Mapping[str, Any]) -> Object:
    """Return the status on channel 3; a program that could not be started has no exit code."""
    if event.get("code") == 0:
        return {"metadata": {}, "status": "Success"}
    failed = {"metadata": {}, "status": "Failure"}
    if "code" not in event:
        message = f"exec failed: unable to start container process: {event['error']}"
        return {
            **failed,
            "reason": "InternalError",
            "message": message,
            "details": {"causes": [{"message": message}]},
        }
    code = event["code"] if event["code"] >= 0 else 128 - event["code"]
    causes = [{"reason": "ExitCode", "message": str(code)}]
    message = f"command terminated with non-zero exit code: exit status {code}"
    return {**failed, "reason": "NonZeroExitCode", "message": message, "details": {"causes": causes}}


@asynccontextmanager
async def kubernetes_service(directory: Path, *, controller: bool = True) -> AsyncIterator[KubernetesService]:
    """Run a cluster on a free port of loopback."""
    service = KubernetesService(directory, controller=controller)
    runner = web.AppRunner(service.application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    running = asyncio.create_task(service.run())
    try:
        yield service
        assert not running.done(), "the controller or the node failed"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.node.close()
        await runner.cleanup()


async def serve(directory: Path, *, controller: bool) -> None:
    """Print the address on stdout and serve until stdin is closed."""
    async with kubernetes_service(directory, controller=controller) as service:
        print(service.url, flush=True)  # noqa: T201 - for who started us
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), controller=True))

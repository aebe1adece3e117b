"""A service that speaks E2B's API on loopback, written from the generated clients in the e2b package (2.63).

The control plane (sandboxes created, listed, connected to, paused, killed, their time) and the data plane
(the processes of envd over the Connect protocol with JSON, its files), with real commands in sandboxes behind
them. Network settings and environments are stored for tests to read and are not enforced.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import struct
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from aiohttp import web

from loopback_service import LoopbackService, run_on_loopback, serve_until_closed
from process_hosts import ProcessHost

API_KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
HOME = "/home/user"
LAST_FRAME = 0b10
NOT_FOUND = "The sandbox was not found"


Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]
"""What answers a request in place of the service."""


@dataclass(slots=True)
class E2bInstance:
    """One sandbox of the service."""

    id: str
    template: str
    process_host: ProcessHost
    asked: Mapping[str, Any]
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    ends: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def metadata(self) -> dict[str, str]:
        """What it was labelled with."""
        return dict(self.asked.get("metadata") or {})

    def set_timeout(self, seconds: int) -> None:
        """Restart its time."""
        self.ends = datetime.now(UTC) + timedelta(seconds=seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the sandbox as lists show it."""
        return {
            "templateID": self.template,
            "sandboxID": self.id,
            "clientID": "client",
            "startedAt": self.started.isoformat(),
            "endAt": self.ends.isoformat(),
            "cpuCount": 2,
            "memoryMB": 512,
            "diskSizeMB": 1024,
            "state": "paused" if self.process_host.frozen else "running",
            "envdVersion": "0.5.7",
            "metadata": self.metadata,
        }

    def opened(self) -> dict[str, Any]:
        """Return the connection details that its owner gets."""
        return {
            "templateID": self.template,
            "sandboxID": self.id,
            "clientID": "client",
            "envdVersion": "0.5.7",
            "envdAccessToken": self.token,
            "domain": None,
        }


class E2bService(LoopbackService):
    """The service; `url` is both its planes. `unready` answers so many control-plane calls with 503.

    `refusal` answers every creation with its status. `data_fault` answers every call of the data plane but
    `/health` in its place.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machines: dict[str, E2bInstance] = {}
        self.made = 0
        self.unready = 0
        self.refusal: int | None = None
        self.data_fault: Fault | None = None
        self.url = ""
        self._keys: dict[str, str] = {}

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application(client_max_size=128 * 1024 * 1024)
        route = application.router.add_route
        for method, path, handler in (
            ("POST", "/v2/sandboxes", self._create),
            ("GET", "/v2/sandboxes", self._list),
            ("GET", "/sandboxes/{id}", self._get),
            ("DELETE", "/sandboxes/{id}", self._kill),
            ("POST", "/v2/sandboxes/{id}/connect", self._connect),
            ("POST", "/sandboxes/{id}/pause", self._pause),
            ("POST", "/sandboxes/{id}/timeout", self._timeout),
        ):
            route(method, path, self._control(handler))
        for method, path, inside in (
            ("GET", "/health", self._health),
            ("POST", "/files", self._upload),
            ("GET", "/files", self._download),
            ("POST", "/process.Process/Start", self._start),
            ("POST", "/process.Process/SendSignal", self._signal),
        ):
            route(method, path, self._data(inside))
        return application

    def _control(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            if self.unready:
                self.unready -= 1
                return _problem(503, "try again", retry="1")
            if request.headers.get("X-API-Key") != API_KEY:
                return _problem(401, "invalid API key")
            if "id" not in request.match_info:
                return await handler(request)  # type: ignore[no-any-return]
            instance = self.machines.get(request.match_info["id"])
            if instance is None:
                return _problem(404, f"sandbox {request.match_info['id']} not found")
            return await handler(request, instance)  # type: ignore[no-any-return]

        return answer

    def _data(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            instance = self.machines.get(request.headers.get("E2b-Sandbox-Id", ""))
            if instance is None or request.headers.get("E2b-Sandbox-Port") != "49983":
                return _problem(502, NOT_FOUND)
            if instance.process_host.frozen:
                return _problem(502, NOT_FOUND)  # what the SDK expects of a paused one, too
            if self.data_fault is not None and request.path != "/health":
                return await self.data_fault(request)
            if request.headers.get("X-Access-Token") != instance.token:
                return _problem(401, "no access to envd")
            return await handler(request, instance)  # type: ignore[no-any-return]

        return answer

    async def _create(self, request: web.Request) -> web.Response:
        if self.refusal is not None:
            return _problem(self.refusal, "not for this team")
        key, asked = request.headers.get("Idempotency-Key"), await request.json()
        if key and self._keys.get(key) in self.machines:
            return web.json_response(self.machines[self._keys[key]].opened(), status=201)
        number = f"i{secrets.token_hex(8)}"
        instance = E2bInstance(
            id=number,
            template=asked["templateID"],
            process_host=ProcessHost(self.directory / number, HOME),
            asked=asked,
        )
        await instance.process_host.start()
        instance.started = datetime.now(UTC)
        instance.set_timeout(asked.get("timeout", 300))
        self.machines[number] = instance
        self.made += 1
        if key:
            self._keys[key] = number
        return web.json_response(instance.opened(), status=201)

    async def _list(self, request: web.Request) -> web.Response:
        wanted = {
            unquote(name): unquote(value) for name, value in parse_qsl(request.query.get("metadata", ""))
        }
        states = set(",".join(request.query.getall("state", [])).split(",")) - {""}
        found = [
            instance.to_json()
            for instance in sorted(self.machines.values(), key=lambda one: one.started)
            if wanted.items() <= instance.metadata.items()
            and (not states or instance.to_json()["state"] in states)
        ]
        begin = int(request.query.get("nextToken", "0"))
        end = begin + int(request.query.get("limit", "100"))
        headers = {"X-Next-Token": str(end)} if end < len(found) else {}
        return web.json_response(found[begin:end], headers=headers)

    async def _get(self, _request: web.Request, instance: E2bInstance) -> web.Response:
        return web.json_response(instance.to_json())

    async def _kill(self, _request: web.Request, instance: E2bInstance) -> web.Response:
        await self.kill(instance.id)
        return web.Response(status=204)

    async def kill(self, number: str) -> None:
        """End a sandbox, as its time-out or an operator at the service would."""
        instance = self.machines.pop(number)
        await instance.process_host.terminate()

    async def _connect(self, request: web.Request, instance: E2bInstance) -> web.Response:
        asked = await request.json()
        was_paused = instance.process_host.frozen
        instance.process_host.freeze(frozen=False)
        instance.set_timeout(asked.get("timeout", 300))
        return web.json_response(instance.opened(), status=201 if was_paused else 200)

    async def _pause(self, _request: web.Request, instance: E2bInstance) -> web.Response:
        if instance.process_host.frozen:
            return _problem(409, "the sandbox is paused already")
        instance.process_host.freeze(frozen=True)
        return web.Response(status=204)

    async def _timeout(self, request: web.Request, instance: E2bInstance) -> web.Response:
        instance.set_timeout((await request.json())["timeout"])
        return web.Response(status=204)

    async def _health(self, _request: web.Request, _machine: E2bInstance) -> web.Response:
        return web.Response(status=204)

    async def _upload(self, request: web.Request, instance: E2bInstance) -> web.Response:
        path = request.query.get("path", "")
        parts = await request.multipart()
        written = []
        while (part := await parts.next()) is not None:
            name = path or unquote(part.filename or "")  # type: ignore[union-attr]
            await instance.process_host.write_file(name, bytes(await part.read()))  # type: ignore[union-attr]
            written.append({"path": name, "name": name.rsplit("/", 1)[-1], "type": "file"})
        return web.json_response(written)

    async def _download(self, request: web.Request, instance: E2bInstance) -> web.Response:
        content = await instance.process_host.read_file(request.query["path"])
        if content is None:
            return _problem(404, f"path {request.query['path']} does not exist")
        return web.Response(body=content)

    async def _start(self, request: web.Request, instance: E2bInstance) -> web.StreamResponse:
        asked = (await _messages(request))[0]
        about = asked["process"]
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": HOME,
            "E2B_SANDBOX": "true",
            **about.get("envs", {}),
        }
        response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        await response.prepare(request)
        said = instance.process_host.run(
            [about["cmd"], *about.get("args", [])],
            env=env,
            cwd=about.get("cwd") or HOME,
            stdin=bool(asked.get("stdin")),
        )
        with contextlib.suppress(ConnectionError):
            async for one in said:
                await response.write(_envelope({"event": _event(one)}))
            await response.write(_envelope({}, last=True))
        return response

    async def _signal(self, request: web.Request, instance: E2bInstance) -> web.Response:
        asked = await request.json()
        number = {"SIGNAL_SIGKILL": 9, "SIGNAL_SIGTERM": 15}[asked["signal"]]
        answer = await instance.process_host.request_once(
            do="kill", pid=asked["process"]["pid"], number=number
        )
        if "error" in answer:
            return web.json_response({"code": "not_found", "message": answer["error"]}, status=404)
        return web.json_response({})

    async def close(self) -> None:
        """End every sandbox."""
        for number in list(self.machines):
            await self.kill(number)


def _event(said: Mapping[str, Any]) -> dict[str, Any]:
    if "pid" in said:
        return {"start": {"pid": said["pid"]}}
    if "code" in said:
        return {"end": {"exitCode": said["code"], "exited": True, "status": f"exit status {said['code']}"}}
    if "error" in said:
        text = f"{said['error']}\n".encode()
        return {"data": {"stderr": base64.b64encode(text).decode()}}
    return {"data": dict(said)}


def _envelope(message: Mapping[str, Any], *, last: bool = False) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">BI", LAST_FRAME if last else 0, len(body)) + body


async def _messages(request: web.Request) -> list[Any]:
    raw, found = await request.read(), []
    while raw:
        _flags, size = struct.unpack(">BI", raw[:5])
        found.append(json.loads(raw[5 : 5 + size]))
        raw = raw[5 + size :]
    return found


def _problem(status: int, message: str, *, retry: str | None = None) -> web.Response:
    headers = {"Retry-After": retry} if retry else {}
    return web.json_response({"code": status, "message": message}, status=status, headers=headers)


def e2b_service(directory: Path) -> AbstractAsyncContextManager[E2bService]:
    """Return what runs the service on a free port of loopback."""
    return run_on_loopback(E2bService(directory))


if __name__ == "__main__":
    asyncio.run(serve_until_closed(E2bService(Path(sys.argv[1]))))

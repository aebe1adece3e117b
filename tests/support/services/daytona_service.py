"""A service that speaks Daytona's API on loopback, written from the clients in the daytona package (0.226).

The control plane (sandboxes created, listed, started, stopped, archived, deleted, their timers) and the
toolbox (commands, files), with real commands in sandboxes behind them. Network settings are stored for tests
to read and are not enforced. There are no events over Socket.IO: the SDK then polls.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from loopback_service import LoopbackService, run_on_loopback, serve_until_closed
from process_hosts import ProcessHost

API_KEY = "dtn_0123456789abcdef"
HOME = "/home/daytona"
NOT_ENDED = -1
"""In place of the exit code of a command whose sandbox ended."""

INTERVALS = {
    "autostop": "autoStopInterval",
    "autoarchive": "autoArchiveInterval",
    "autodelete": "autoDeleteInterval",
}


@dataclass(slots=True)
class DaytonaInstance:
    """One sandbox of the service."""

    id: str
    process_host: ProcessHost
    asked: Mapping[str, Any]
    state: str = "started"
    timers: dict[str, int] = field(default_factory=dict)
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    active: int = 0
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def to_json(self, url: str) -> dict[str, Any]:
        """Return the sandbox as the API describes it."""
        asked = self.asked
        return {
            "id": self.id,
            "organizationId": "org",
            "name": asked.get("name") or self.id,
            "snapshot": asked.get("snapshot") or "default",
            "user": "daytona",
            "env": asked.get("env") or {},
            "labels": asked.get("labels") or {},
            "public": bool(asked.get("public")),
            "networkBlockAll": bool(asked.get("networkBlockAll")),
            "kvm": False,
            "target": asked.get("target") or "us",
            "cpu": 1,
            "gpu": 0,
            "memory": 1,
            "disk": 3,
            "state": self.state,
            "createdAt": self.created.isoformat(),
            "toolboxProxyUrl": f"{url}/toolbox",
            **self.timers,
        }


class DaytonaService(LoopbackService):
    """The service; `url` is the API's, the toolbox is below it.

    `refusal` answers every creation with its status, `toolbox_status` every call of the toolbox.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machines: dict[str, DaytonaInstance] = {}
        self.refusal: int | None = None
        self.toolbox_status: int | None = None
        self.url = ""

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application(client_max_size=128 * 1024 * 1024)
        route = application.router.add_route
        one = "/sandbox/{id}"
        for method, path, handler in (
            ("POST", "/sandbox", self._create),
            ("GET", "/sandbox", self._list),
            ("GET", one, self._get),
            ("DELETE", one, self._delete),
            ("POST", f"{one}/start", self._start),
            ("POST", f"{one}/stop", self._stop),
            ("POST", f"{one}/archive", self._archive),
            ("POST", f"{one}/last-activity", self._activity),
            ("POST", f"{one}/{{timer:autostop|autoarchive|autodelete}}/{{minutes}}", self._timer),
            ("GET", f"{one}/ports/{{port}}/signed-preview-url", self._preview),
        ):
            route(method, path, self._control(handler))
        for method, path, inside in (
            ("POST", "/process/execute", self._execute),
            ("POST", "/files/bulk-upload", self._upload),
            ("GET", "/user-home-dir", self._home),
        ):
            route(method, f"/toolbox/{{id}}{path}", self._toolbox(inside))
        return application

    def _control(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") != f"Bearer {API_KEY}":
                return _problem(401, "Invalid credentials")
            if "id" not in request.match_info:
                return await handler(request)  # type: ignore[no-any-return]
            instance = self.machines.get(request.match_info["id"])
            if instance is None:
                return _problem(404, f"Sandbox with ID or name {request.match_info['id']} not found")
            return await handler(request, instance)  # type: ignore[no-any-return]

        return answer

    def _toolbox(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            instance = self.machines.get(request.match_info["id"])
            if request.headers.get("Authorization") != f"Bearer {API_KEY}":
                return _problem(401, "unauthorized")
            if instance is None:
                return _problem(404, "sandbox not found")
            if self.toolbox_status is not None:
                return _problem(self.toolbox_status, "no route to the runner")
            if instance.state != "started":
                return _problem(400, "bad request: failed to get runner info: sandbox is not started")
            return await handler(request, instance)  # type: ignore[no-any-return]

        return answer

    def _instance_response(self, instance: DaytonaInstance) -> web.Response:
        return web.json_response(instance.to_json(self.url))

    async def _create(self, request: web.Request) -> web.Response:
        if self.refusal is not None:
            return _problem(self.refusal, "not for this team")
        asked = await request.json()
        number = secrets.token_hex(16)
        instance = DaytonaInstance(
            id=number, process_host=ProcessHost(self.directory / number[:8], HOME), asked=asked
        )
        instance.timers = {name: asked[name] for name in INTERVALS.values() if asked.get(name) is not None}
        await instance.process_host.start()
        instance.created = datetime.now(UTC)
        self.machines[number] = instance
        return self._instance_response(instance)

    async def _list(self, request: web.Request) -> web.Response:
        wanted = json.loads(request.query.get("labels", "{}"))
        found = [
            instance.to_json(self.url)
            for instance in sorted(self.machines.values(), key=lambda one: one.created)
            if wanted.items() <= dict(instance.asked.get("labels") or {}).items()
        ]
        begin = int(request.query.get("cursor", "0"))
        end = begin + int(request.query.get("limit", "100"))
        return web.json_response(
            {"items": found[begin:end], "nextCursor": str(end) if end < len(found) else None}
        )

    async def _get(self, _request: web.Request, instance: DaytonaInstance) -> web.Response:
        return self._instance_response(instance)

    async def _delete(self, _request: web.Request, instance: DaytonaInstance) -> web.Response:
        await self.delete(instance.id)
        instance.state = "destroyed"
        return self._instance_response(instance)

    async def delete(self, number: str) -> None:
        """Take a sandbox away, as its lifetime or an operator at the service would."""
        await self.machines.pop(number).process_host.terminate()

    async def _start(self, _request: web.Request, instance: DaytonaInstance) -> web.Response:
        async with instance.changing:
            if instance.state == "started":
                return _problem(409, "Sandbox is not in a state that can be started")
            await instance.process_host.start()
            instance.state = "started"
        return self._instance_response(instance)

    async def _stop(self, _request: web.Request, instance: DaytonaInstance) -> web.Response:
        await self.stop(instance.id)
        return self._instance_response(instance)

    async def stop(self, number: str) -> None:
        """Stop a sandbox, as its idle timer would; files stay, processes do not."""
        instance = self.machines[number]
        async with instance.changing:
            instance.state = "stopping"
            await instance.process_host.stop()
            instance.state = "stopped"

    async def _archive(self, _request: web.Request, instance: DaytonaInstance) -> web.Response:
        if instance.state != "stopped":
            return _problem(400, "Sandbox is not stopped")
        instance.state = "archived"
        return self._instance_response(instance)

    async def _activity(self, _request: web.Request, instance: DaytonaInstance) -> web.Response:
        instance.active += 1
        return web.Response(status=201)

    async def _timer(self, request: web.Request, instance: DaytonaInstance) -> web.Response:
        instance.timers[INTERVALS[request.match_info["timer"]]] = int(request.match_info["minutes"])
        return self._instance_response(instance)

    async def _preview(self, request: web.Request, instance: DaytonaInstance) -> web.Response:
        port = int(request.match_info["port"])
        url = f"https://{port}-signedtoken.proxy.example"
        return web.json_response({"sandboxId": instance.id, "port": port, "token": "signedtoken", "url": url})

    async def _home(self, _request: web.Request, _machine: DaytonaInstance) -> web.Response:
        return web.json_response({"dir": HOME})

    async def _execute(self, request: web.Request, instance: DaytonaInstance) -> web.Response:
        asked = await request.json()
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME, **(asked.get("envs") or {})}
        said = instance.process_host.run(
            ["/bin/sh", "-c", asked["command"]], env=env, cwd=asked.get("cwd") or HOME
        )
        try:
            async with asyncio.timeout(asked.get("timeout") or 10):
                merged = await _merged(said)
        except TimeoutError:
            return _problem(408, "command execution timeout")
        if merged["exitCode"] == NOT_ENDED:
            return _problem(502, "bad gateway: the runner closed the connection")
        return web.json_response(merged)

    async def _upload(self, request: web.Request, instance: DaytonaInstance) -> web.Response:
        parts, name = await request.multipart(), ""
        while (part := await parts.next()) is not None:
            content = bytes(await part.read())  # type: ignore[union-attr]
            if str(part.name).endswith(".path"):  # type: ignore[union-attr]
                name = content.decode()
            else:
                await instance.process_host.write_file(name, content)
        return web.Response(status=200)

    async def close(self) -> None:
        """End every sandbox."""
        for number in list(self.machines):
            await self.delete(number)


async def _merged(said: AsyncIterator[Mapping[str, Any]]) -> dict[str, Any]:
    output, code = b"", NOT_ENDED
    async with contextlib.aclosing(said):  # type: ignore[type-var]
        async for one in said:
            output += base64.b64decode(one.get("stdout") or one.get("stderr") or "")
            code = one.get("code", code)
    return {"exitCode": code, "result": output.decode(errors="replace")}


def _problem(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message, "error": message}, status=status)


def daytona_service(directory: Path) -> AbstractAsyncContextManager[DaytonaService]:
    """Return what runs the service on a free port of loopback."""
    return run_on_loopback(DaytonaService(directory))


if __name__ == "__main__":
    asyncio.run(serve_until_closed(DaytonaService(Path(sys.argv[1]))))

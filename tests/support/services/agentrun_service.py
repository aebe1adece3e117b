"""A service that speaks AgentRun's API (version 2025-09-10) on loopback, written from its API description.

The control plane lists sandboxes; the data plane creates, describes and deletes them, runs commands, which it
ends after thirty seconds, and accepts files. Each request must carry the signature of its plane. Commands run
in real namespaces. Networks are those of the templates and are not enforced.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from loopback_service import LoopbackService, run_on_loopback, serve_until_closed
from process_hosts import ProcessHost

KEY_ID, KEY_SECRET, REGION = "LTAI0123456789", "secret-0123456789", "cn-hangzhou"
HOME = "/home/user"
PUBLIC, PRIVATE = "dovecote-public", "dovecote-private"
COMMAND_SECONDS = 30.0
_CREDENTIAL = re.compile(r"(\S+) Credential=([^,]+),SignedHeaders=([^,]+),Signature=([0-9a-f]{64})")


@dataclass(slots=True)
class AgentRunInstance:
    """One sandbox of the service."""

    id: str
    process_host: ProcessHost
    asked: Mapping[str, Any]
    status: str = "READY"
    touched: int = 0
    created: datetime = field(default_factory=lambda: datetime.now(UTC))

    def to_json(self) -> dict[str, Any]:
        """Return the sandbox as the API describes it."""
        return {
            "sandboxId": self.id,
            "templateId": "8d409d30.schema",
            "templateName": self.asked["templateName"],
            "status": self.status,
            "createdAt": self.created.isoformat(),
            "lastUpdatedAt": self.created.isoformat(),
            "sandboxIdleTimeoutSeconds": self.asked.get("sandboxIdleTimeoutSeconds", 1800),
            "metadata": {},
        }


class AgentRunService(LoopbackService):
    """Both planes at one URL; `lost_answers` makes so many answers of the next commands get lost.

    `fault` is asked about each request of the data plane first, and may answer in place of the service.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machines: dict[str, AgentRunInstance] = {}
        self.commands: list[str] = []
        self.lost_answers = 0
        self.fault: Callable[[web.Request], Awaitable[web.Response | None]] | None = None
        self.command_seconds = COMMAND_SECONDS
        self.url = ""

    def application(self) -> web.Application:
        """Return the routes."""
        application = web.Application(client_max_size=128 * 1024 * 1024)
        route, one = application.router.add_route, "/sandboxes/{id}"
        route("GET", "/2025-09-10/sandboxes", self._control(self._list))
        route("POST", "/sandboxes", self._data(self._create))
        for method, path, handler in (
            ("GET", one, self._get),
            ("DELETE", one, self._delete),
            ("GET", f"{one}/health", self._health),
            ("POST", f"{one}/processes/cmd", self._run),
            ("POST", f"{one}/filesystem/upload", self._upload),
        ):
            route(method, path, self._data(self._with_machine(handler)))
        return application

    def _control(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            payload = hashlib.sha256(await request.read()).hexdigest()
            problem = _check_signature(request, "Authorization", KEY_SECRET.encode(), payload)
            if request.headers.get("x-acs-action") != "ListSandboxes":
                problem = "InvalidAction"
            return _problem(403, problem) if problem else await handler(request)

        return answer

    def _data(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            if self.fault is not None and (answered := await self.fault(request)) is not None:
                return answered
            date = request.headers.get("x-acs-date", "")[:10].replace("-", "")
            key = f"aliyun_v4{KEY_SECRET}".encode()
            for part in (date, REGION, "agentrun", "aliyun_v4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            problem = _check_signature(request, "Agentrun-Authorization", key, "UNSIGNED-PAYLOAD")
            return _problem(403, problem) if problem else await handler(request)

        return answer

    def _with_machine(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            instance = self.machines.get(request.match_info["id"])
            if instance is None:
                return web.json_response({"code": "ERROR", "message": "Sandbox not found"})
            return await handler(request, instance)  # type: ignore[no-any-return]

        return answer

    async def _create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if asked.get("templateName") not in {PUBLIC, PRIVATE}:
            return _problem(404, "TemplateNotFound")
        number = asked["sandboxId"]
        if number in self.machines:
            return _problem(409, "SandboxAlreadyExists")
        host = ProcessHost(self.directory / hashlib.sha256(number.encode()).hexdigest()[:12], HOME)
        instance = self.machines[number] = AgentRunInstance(number, host, asked, status="CREATING")
        await host.start()
        instance.status = "READY"
        return _success(instance.to_json())

    async def _list(self, request: web.Request) -> web.Response:
        found = sorted(self.machines.values(), key=lambda one: one.id)
        begin = int(request.query.get("nextToken") or "0")
        end = begin + min(int(request.query.get("maxResults", "10")), 2)
        items = [one.to_json() for one in found[begin:end]]
        return _success({"items": items, "nextToken": str(end) if end < len(found) else ""})

    async def _get(self, _request: web.Request, instance: AgentRunInstance) -> web.Response:
        return _success(instance.to_json())

    async def _delete(self, _request: web.Request, instance: AgentRunInstance) -> web.Response:
        await self.delete(instance.id)
        return _success(instance.to_json() | {"status": "TERMINATED"})

    async def delete(self, number: str) -> None:
        """Take a sandbox away, as its idle timer or an operator at the service would."""
        await self.machines.pop(number).process_host.terminate()

    async def _health(self, _request: web.Request, instance: AgentRunInstance) -> web.Response:
        instance.touched += 1
        return web.json_response({"status": "ok", "service": "sandbox-code-interpreter"})

    async def _run(self, request: web.Request, instance: AgentRunInstance) -> web.Response:
        asked = await request.json()
        self.commands.append(asked["command"])
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": HOME}
        said = instance.process_host.run(
            ["/bin/sh", "-c", asked["command"]], env=env, cwd=asked.get("cwd") or HOME
        )
        try:
            async with asyncio.timeout(self.command_seconds):
                result = await _collected(said)
        except TimeoutError:
            return _problem(504, "GatewayTimeout")
        if self.lost_answers > 0:
            self.lost_answers -= 1
            return _problem(502, "BadGateway")
        return web.json_response({"executionId": "tty_exec_001", "status": "completed", "result": result})

    async def _upload(self, request: web.Request, instance: AgentRunInstance) -> web.Response:
        parts, fields = await request.multipart(), dict[str, bytes]()
        while (part := await parts.next()) is not None:
            fields[str(part.name)] = bytes(await part.read())  # type: ignore[union-attr]
        await instance.process_host.write_file(fields["path"].decode(), fields["file"])
        return web.json_response({"path": fields["path"].decode(), "size": len(fields["file"])})

    async def close(self) -> None:
        """End every sandbox."""
        for number in list(self.machines):
            await self.delete(number)


async def _collected(said: AsyncIterator[Mapping[str, Any]]) -> dict[str, Any]:
    output, code = {"stdout": b"", "stderr": b""}, -1
    async with contextlib.aclosing(said):  # type: ignore[type-var]
        async for one in said:
            for stream in output:
                output[stream] += base64.b64decode(one.get(stream) or "")
            code = one.get("code", code)
    return {"exitCode": code, **{name: text.decode(errors="replace") for name, text in output.items()}}


def _check_signature(request: web.Request, header: str, key: bytes, payload: str) -> str:
    """Return what is wrong with a request's signature, if anything."""
    found = _CREDENTIAL.fullmatch(request.headers.get(header, ""))
    if found is None or found[2].partition("/")[0] != KEY_ID:
        return "InvalidAccessKeyId"
    path, _, query = request.raw_path.partition("?")
    names = found[3].split(";")
    if not {"host", "x-acs-date"} <= set(names) or request.headers.get("x-acs-content-sha256") != payload:
        return "IncompleteSignature"
    headers = "".join(f"{name}:{request.headers.get(name, '')}\n" for name in names)
    canonical = "\n".join([request.method, path, query, headers, found[3], payload])
    text = f"{found[1]}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    right = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return "" if hmac.compare_digest(right, found[4]) else "SignatureDoesNotMatch"


def _success(data: Mapping[str, Any]) -> web.Response:
    return web.json_response({"code": "SUCCESS", "requestId": "F8A0F5F3", "data": data})


def _problem(status: int, code: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": f"{code} of the service"}}, status=status)


def agentrun_service(directory: Path) -> AbstractAsyncContextManager[AgentRunService]:
    """Return what runs the service on a free port of loopback."""
    return run_on_loopback(AgentRunService(directory))


def settings_for(url: str) -> dict[str, Any]:
    """Return the settings of a gateway that uses the service at a URL."""
    return {
        "access_key_id": KEY_ID,
        "access_key_secret": KEY_SECRET,
        "account_id": "1234567890",
        "control_url": url,
        "data_url": url,
        "template": PUBLIC,
        "private_template": PRIVATE,
    }


if __name__ == "__main__":
    asyncio.run(serve_until_closed(AgentRunService(Path(sys.argv[1]))))

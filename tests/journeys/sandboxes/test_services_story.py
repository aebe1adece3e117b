"""A web server of an agent: it outlives the gateway, sleeps with its sandbox and answers again."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commands import PIPE, gateway_command
from gateway_process import GatewayProcess, gateway
from openai_server import OpenAIServer, ScriptedTurn, ToolCall, last_text

TIMEOUT_SECONDS = 40.0
PORT = 8000
"""The server listens there in a network of its own; the start waits for it."""

SERVER = f"""
import os, socketserver, threading

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n")

path = os.path.expanduser("~/web.sock")
if os.path.exists(path):
    os.unlink(path)
socket = socketserver.ThreadingUnixStreamServer(path, Handler)
threading.Thread(target=socket.serve_forever, daemon=True).start()
socketserver.ThreadingTCPServer(("127.0.0.1", {PORT}), Handler).serve_forever()
"""
"""A web server on a socket in HOME, which other commands of the sandbox reach."""

FETCH = (
    "import os, socket; s = socket.socket(socket.AF_UNIX); s.connect(os.path.expanduser('~/web.sock'));"
    "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.makefile().readline().split()[1])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicesGateway:
    """A gateway whose agent makes the test's calls."""

    process: GatewayProcess
    model: OpenAIServer
    script: list[ScriptedTurn]

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Make one request."""
        async with self.process.http() as session, session.request(method, path, json=body) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def use(self, tool: str, **args: Any) -> str:
        """Have the agent use a tool; returns the tool's result."""
        self.script[:] = [ScriptedTurn(text="done"), ScriptedTurn(calls=[ToolCall(name=tool, args=args)])]
        body = {"input": "go", "conversation": "demo"}
        taken = await self.ask("POST", "/agents/default/turns", body)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await self.ask("GET", f"/status/{taken['turnId']}"))["state"] != "completed":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return last_text(self.model.bodies[-1])

    async def until(self, state: str) -> None:
        """Wait until the only sandbox is in a state."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await self.ask("GET", "/sandboxes"))["items"][0]["state"] != state:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.fixture
async def services_gateway(tmp_path: Path) -> AsyncIterator[ServicesGateway]:
    """Run a gateway whose sandboxes are soon suspended."""
    script: list[ScriptedTurn] = []
    async with OpenAIServer(lambda _body: script.pop()) as model:
        env = {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
            "DOVECOTE_VENDORS__OPENAI_API_KEY": "sk-loopback",
            "DOVECOTE_SANDBOX__REAP_INTERVAL": "0.2",
            "DOVECOTE_SANDBOX__SNAPSHOTS": "local",
        }
        async with gateway(tmp_path / "data", env=env) as process:
            yield ServicesGateway(process=process, model=model, script=script)


async def _cli(harness: ServicesGateway, *words: str) -> Any:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOVECOTE_")}
    child = await gateway_command(
        *("sandboxes", *words, "--json"),
        env={**kept, "DOVECOTE_URL": harness.process.url, "DOVECOTE_KEY": harness.process.key},
        cwd=harness.process.data.parent,
        stdout=PIPE,
    )
    printed, _ = await child.communicate()
    return json.loads(printed)


async def _connect(data: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the server's socket in the HOME of the only sandbox; its path is too long for an address."""
    (home,) = (data / "sandboxes/sandboxes").glob("*/home")
    directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/web.sock")
    finally:
        os.close(directory)


async def test_a_web_server_outlives_the_gateway_and_sleeps_with_its_sandbox(
    services_gateway: ServicesGateway,
) -> None:
    """Started by the agent, known after kill -9, asleep with the sandbox, awake with it, one all the time."""
    config = {"permissionMode": "bypass", "lifecycle": {"idleTimeoutSeconds": 1}}
    await services_gateway.ask("PATCH", "/accounts/me/sandboxes/default", {"config": config})
    server = f"echo $$ >>~/begun; exec python3 -u - <<'END'\n{SERVER}END"
    fetch = f'python3 -c "{FETCH}"'
    started = json.loads(
        await services_gateway.use("service", action="start", name="web", command=server, port=PORT)
    )
    assert (started["state"], started["ready"]) == ("running", True)

    await services_gateway.process.kill()
    await services_gateway.process.start()
    (web,) = json.loads(await services_gateway.use("service", action="status"))
    assert (web["state"], web["starts"]) == ("running", 1)
    assert await services_gateway.use("bash", command=fetch) == "200"

    await services_gateway.until("suspended")
    reader, writer = await _connect(services_gateway.process.data)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")  # the kernel takes it, no process reads it yet
    assert len((await services_gateway.use("bash", command=f"{fetch}; cat ~/begun")).splitlines()) == 2
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert (await reader.read()).startswith(b"HTTP/1.0 200")
    writer.close()
    (shown,) = await _cli(services_gateway, "services", "default")
    assert (shown["name"], shown["state"], shown["starts"]) == ("web", "running", 1)


async def test_a_service_is_there_again_in_the_machine_made_from_the_snapshot(
    services_gateway: ServicesGateway,
) -> None:
    """Kept awake to its maximum age an instance ends with its processes; the next one starts them again."""
    lifecycle = {"maxLifetimeSeconds": 4, "idleTimeoutSeconds": 1, "keepAwake": True}
    config = {"permissionMode": "bypass", "lifecycle": lifecycle}
    await services_gateway.ask("PATCH", "/accounts/me/sandboxes/default", {"config": config})
    beat = "echo begun >>~/begun; exec sleep 300"
    assert (
        json.loads(await services_gateway.use("service", action="start", name="beat", command=beat))["starts"]
        == 1
    )
    await services_gateway.until("cold")
    reported = [event["type"] for event in await services_gateway.process.events("demo")]
    assert "sandbox.stopped" in reported
    assert "sandbox.suspended" not in reported
    (shown,) = json.loads(await services_gateway.use("service", action="status"))
    assert (shown["name"], shown["starts"], shown["started_again_with_its_sandbox"]) == ("beat", 2, True)
    assert await services_gateway.use("bash", command="sort -u ~/begun") == "begun"
    logs = json.loads(await services_gateway.use("service", action="logs", name="beat"))
    assert "[started again with its sandbox]" in logs["output"]

"""M25: a sandbox without a network that attacks its callback socket costs another account nothing."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import aiohttp

from api_server import ADMIN_KEY, ApiClient
from gateway.infra.callback_sockets import CallbackBudget
from gateway_process import GatewayProcess, gateway

WITHIN = 90.0
ATTEMPTS = 3000

ATTACK = f"""
import os, pathlib, socket, time
path, held, failures = os.environ["DOVECOTE_CALLBACK"], [], 0
head = b"POST /sandbox-jobs/job_1/complete HTTP/1.1\\r\\nHost: a\\r\\nAuthorization: Bearer wrong\\r\\n"
sent = (b"", b"GET ", b"\\0\\xff" * 500, head + b"Content-Length: 1000000\\r\\n\\r\\n" + b"x" * 100_000)
end = time.monotonic() + 60
while time.monotonic() < end and not pathlib.Path("stop").exists():
    if len(held) + failures >= {ATTEMPTS}:
        pathlib.Path("flooded").write_text(str(len(held)))
        time.sleep(0.01)
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    try:
        one.connect(path)
        one.send(sent[len(held) % len(sent)])
        held.append(one)
    except OSError:
        failures += 1
        one.close()
        time.sleep(0.001)
    if len(held) > 3000:
        held.pop(0).close()
"""


async def wait_for(client: ApiClient, path: str, *states: str) -> dict[str, Any]:
    """Return a turn or job once it is in one of the states."""
    async with asyncio.timeout(WITHIN):
        while (found := (await client.call("GET", path)).body).get("state") not in states:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    return dict(found)


async def command(client: ApiClient, text: str) -> dict[str, Any]:
    """Run a command as a turn of the account's shell agent and return the ended turn."""
    taken = await client.call("POST", "/agents/default/turns", {"input": text, "conversation": "one"})
    assert taken.status == 202, taken.body
    turn = await wait_for(client, f"/status/{taken.body['turnId']}", "completed", "failed", "cancelled")
    assert turn["state"] == "completed", turn
    return turn


def open_sockets(process: GatewayProcess) -> int:
    """Count the sockets that the gateway has open."""
    links = [Path(entry.path) for entry in os.scandir(f"/proc/{process.pid}/fd")]
    return sum(str(link.readlink()).startswith("socket:") for link in links if link.is_symlink())


async def post_without_body(socket: Path) -> bytes:
    """Announce a large body to a callback socket with a wrong token; return the first line of the reply."""
    directory = os.open(socket.parent, os.O_RDONLY)  # the path may be longer than the kernel takes
    reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{socket.name}")
    os.close(directory)
    writer.write(b"POST /sandbox-jobs/job_1/complete HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\n")
    writer.write(b"Content-Length: 900000\r\n\r\n")
    async with asyncio.timeout(WITHIN):
        line = await reader.readline()
    writer.close()
    return line


async def test_m25_a_sandbox_that_floods_its_socket_is_held_back(tmp_path: Path) -> None:
    """The gateway holds a bounded number of its connections and serves the other account as before."""
    env = {"DOVECOTE_ADMIN_KEY": ADMIN_KEY, "DOVECOTE_LEASE_TTL": "30"}
    data = tmp_path / "data"
    async with gateway(data, env=env, options=["--allow-shared-host"]) as process:
        async with aiohttp.ClientSession() as session:
            mine = ApiClient(session=session, url=process.url, key=process.key)
            operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
            made = (await operator.call("POST", "/accounts", {"name": "neighbour"})).body
            neighbour = ApiClient(session=session, url=process.url, key=made["key"])
            shell = {"name": "default", "config": {"model": "builtin:shell"}}
            assert (await neighbour.call("POST", "/accounts/me/agents", shell)).status == 201
            assert "calm" in (await command(neighbour, "!echo calm"))["output"]
            await command(neighbour, "!& sleep 100")
            (neighbours_socket,) = (data / "callbacks").glob("*/callback.sock")
            idle = open_sockets(process)
            program = base64.b64encode(ATTACK.encode()).decode()
            taken = await command(mine, f"!& echo {program} | base64 -d > a.py; exec python3 a.py")
            (job,) = (await mine.call("GET", "/jobs")).body["items"]
            await file_of_job(data, "flooded")
            most = 0
            for number in range(5):
                assert f"still-{number}" in (await command(neighbour, f"!echo still-{number}"))["output"]
                assert (await mine.call("GET", "/readyz")).status == 200
                most = max(most, open_sockets(process))
            assert most <= idle + CallbackBudget().connections + 24, taken
            await command(neighbour, "!& echo reported")
            reported = (await neighbour.call("GET", "/jobs")).body["items"][0]
            assert reported["command"] == "echo reported"
            await wait_for(neighbour, f"/jobs/{reported['resultId']}", "completed")
            refused = await post_without_body(neighbours_socket)
            assert refused.startswith(b"HTTP/1.1 401"), refused
            (next((data / "workspaces").rglob("a.py")).parent / "stop").touch()
            ended = await wait_for(mine, f"/jobs/{job['resultId']}", "completed", "failed")
            assert ended["state"] == "completed", ended
        assert [line for line in process.log if "Traceback" in line] == []


async def file_of_job(data: Path, name: str) -> None:
    """Wait until a job has written a file."""
    async with asyncio.timeout(WITHIN):
        while not list((data / "workspaces").rglob(name)):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.05)


async def test_a_job_reports_to_the_socket_of_the_next_gateway(tmp_path: Path) -> None:
    """A job that outlives the gateway finds the socket that the restarted gateway made in its directory."""
    data = tmp_path / "data"
    env = {"DOVECOTE_RECONCILE_INTERVAL": "15"}
    completed = 'method="POST",route="/sandbox-jobs/{id}/complete",status="200"} 1.0'
    async with gateway(data, env=env) as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        await command(mine, "!& touch started; while ! test -e go; do sleep 0.1; done; echo reported")
        await process.kill()
        await process.start()
        await file_of_job(data, "started")
        (started,) = (data / "workspaces").rglob("started")
        started.with_name("go").touch()
        (job,) = (await mine.call("GET", "/jobs")).body["items"]
        await wait_for(mine, f"/jobs/{job['resultId']}", "completed")
        async with asyncio.timeout(WITHIN):
            while completed not in (await mine.call("GET", "/metrics")).body.decode():  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.1)

"""The main story: a job's result is delivered through SIGKILL, once, everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway_process import GatewayProcess, gateway


class RecordingWebhook:
    """A webhook receiver on loopback that records what it got."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[str, dict[str, Any]]] = []
        self.changed = asyncio.Event()
        self.url = ""

    async def receive(self, request: web.Request) -> web.Response:
        """Take a delivery."""
        self.deliveries.append((request.headers["webhook-id"], await request.json()))
        self.changed.set()
        return web.Response()

    async def until(self, count: int) -> None:
        """Wait for so many different events; one in flight at a kill comes again with its id."""
        async with asyncio.timeout(30):
            while len({event for event, _ in self.deliveries}) < count:
                self.changed.clear()
                await self.changed.wait()


@pytest.fixture
async def receiver() -> AsyncIterator[RecordingWebhook]:
    """Listen for webhooks."""
    receiving = RecordingWebhook()
    application = web.Application()
    application.router.add_post("/hook", receiving.receive)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiving.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield receiving
    await runner.cleanup()


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose webhooks may go to loopback."""
    async with gateway(tmp_path / "data", env={"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8"}) as process:
        yield process


async def post(process: GatewayProcess, path: str, **body: Any) -> dict[str, Any]:
    """POST as the default account; returns the answer's JSON."""
    async with process.http() as session, session.post(path, json=body) as answer:
        assert answer.status in {200, 201, 202}, await answer.text()
        return dict(await answer.json())


async def status_of(process: GatewayProcess, result: str) -> dict[str, Any]:
    """GET the status of a turn or a job."""
    async with process.http() as session, session.get(f"/status/{result}") as answer:
        assert answer.status == 200, await answer.text()
        return dict(await answer.json())


async def until_event(
    process: GatewayProcess, conversation: str, kind: str, *, count: int = 1
) -> list[dict[str, Any]]:
    """Follow a conversation over WebSocket until `count` events of a kind have come."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(30), process.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": conversation, "after": 0})
        async for frame in socket:
            event = frame.json()
            if event["type"] == kind:
                found.append(event)
            if len(found) == count:
                return found
    raise AssertionError(f"the socket closed after {len(found)} {kind}")


async def test_a_command_answers_in_the_stream_and_at_its_status(running: GatewayProcess) -> None:
    """`!echo hi` is accepted with 202 and its answer is in the stream and at the status URL."""
    queued = await post(running, "/agents/default/turns", input="!echo hi", conversation="first")
    (answer,) = await until_event(running, queued["conversationId"], "message.completed")
    assert "hi" in answer["data"]["text"]
    await until_event(running, queued["conversationId"], "agent.finished")
    async with running.http() as session, session.get(queued["statusUrl"]) as answered:
        status = await answered.json()
    assert (status["state"], status["kind"]) == ("completed", "turn")
    assert "hi" in status["output"]


async def test_a_job_comes_home_through_kill_9(running: GatewayProcess, receiver: RecordingWebhook) -> None:
    """A job outlives the turn and a killed gateway; its result is reported once, everywhere."""
    queued = await post(
        running,
        "/agents/default/turns",
        input="!&sleep 2; echo pigeon",
        conversation="jobs",
        webhook={"url": receiver.url},
    )
    (started,) = await until_event(running, queued["conversationId"], "job.started")
    await receiver.until(1)
    await running.kill()
    await running.start()
    (finished,) = (
        event
        for event in await until_event(running, queued["conversationId"], "agent.finished", count=2)
        if event["data"]["trigger"] == "job"
    )
    assert finished["data"]["resultId"] == started["data"]["resultId"]
    assert "pigeon" in finished["data"]["output"]
    await receiver.until(2)
    assert len({event for event, _ in receiver.deliveries}) == 2
    assert receiver.deliveries[-1][1]["id"] == finished["id"]
    events = await running.events(queued["conversationId"])
    lasting = [event["n"] for event in events if "n" in event]
    assert lasting == list(range(1, len(lasting) + 1))
    assert [event["type"] for event in events].count("job.completed") == 1
    reported = {"resultId", "exit_code", "output", "truncated", "files"}
    assert all(reported <= event["data"].keys() for event in events if event["type"].startswith("job."))
    assert all("attempt" in event["data"] for event in events if event["type"].startswith("turn."))
    status = await status_of(running, started["data"]["resultId"])
    assert (status["state"], status["exit_code"]) == ("completed", 0)


async def test_a_job_that_ends_while_the_gateway_is_down_comes_home(running: GatewayProcess) -> None:
    """A job that ends while no gateway runs is found and reported when the gateway is back."""
    queued = await post(running, "/agents/default/turns", input="!&sleep 0.5; echo late", conversation="down")
    await until_event(running, queued["conversationId"], "agent.finished")
    await running.kill()
    await asyncio.to_thread(_wait_for_end_of_jobs, running.data)
    await running.start()
    events = await until_event(running, queued["conversationId"], "agent.finished", count=2)
    assert "late" in events[-1]["data"]["output"]


def _wait_for_end_of_jobs(data: Path) -> None:
    """Wait until every job's exit code is in its directory."""
    import time

    for _ in range(200):
        jobs = [path for path in (data / "sandboxes").rglob("jobs/*") if path.is_dir()]
        if jobs and all((job / "exit").exists() or (job / "exit_code").exists() for job in jobs):
            return
        time.sleep(0.05)


async def test_a_socket_talks_and_repeats_are_one_message(running: GatewayProcess) -> None:
    """A message sent twice over a socket with one id is one turn."""
    async with asyncio.timeout(30), running.http() as session, session.ws_connect("/ws") as socket:
        for _ in range(2):
            await socket.send_json(
                {"type": "send", "conversation": "talk", "text": "!echo once", "id": "k1", "agent": "default"}
            )
        first, second = await socket.receive_json(), await socket.receive_json()
    assert first["type"] == second["type"] == "accepted"
    assert first["turn"] == second["turn"]


async def test_another_key_is_turned_away(running: GatewayProcess) -> None:
    """A wrong key opens nothing."""
    wrong = {"Authorization": "Bearer dvk_wrong"}
    async with (
        aiohttp.ClientSession(running.url, headers=wrong) as session,
        session.get("/conversations") as answer,
    ):
        assert answer.status == 401

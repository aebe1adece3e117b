"""What clients that use only the public documents do first, against a real gateway."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_process import GatewayProcess, gateway
from webhook_receiver import WebhookReceiver, respond, webhook_receiver


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose webhooks may go to loopback."""
    env = {"DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8", "DOVECOTE_WEBHOOK_SCHEDULE": "0.3,0.3,0.3"}
    async with gateway(tmp_path / "data", env=env) as process:
        yield process


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    """Listen for webhooks on loopback."""
    async with webhook_receiver() as listening:
        yield listening


async def receive_frame(socket: aiohttp.ClientWebSocketResponse, *kinds: str) -> dict[str, Any]:
    """Return the next frame of one of these types."""
    async with asyncio.timeout(20):
        while True:
            frame = await socket.receive_json()
            if frame["type"] in kinds:
                return dict(frame)


async def wait_for_webhooks(receiver: WebhookReceiver, times: int) -> None:
    """Wait until a receiver got so many requests."""
    async with asyncio.timeout(20):
        while len(receiver.requests) < times:
            receiver.request_received.clear()
            await receiver.request_received.wait()


async def send_message(
    socket: aiohttp.ClientWebSocketResponse, conversation: str, text: str
) -> dict[str, Any]:
    """Send a message with the id "1"; returns the gateway's response."""
    await socket.send_json({"type": "send", "conversation": conversation, "text": text, "id": "1"})
    return await receive_frame(socket, "accepted", "error")


async def test_a_name_can_be_followed_before_anything_is_said(running: GatewayProcess) -> None:
    """A client that follows a conversation by a new name gets its first message."""
    async with running.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": "early"})
        subscribed = await receive_frame(socket, "subscribed", "error")
        accepted = await send_message(socket, "early", "!echo first")
        assert accepted["conversation"] == subscribed["conversation"]
        assert (await receive_frame(socket, "message.received"))["n"] == 1


async def test_an_untouched_conversation_takes_the_agent_of_its_first_message(
    running: GatewayProcess,
) -> None:
    """Following a name does not bind it to the default agent."""
    async with running.http() as session, session.ws_connect("/ws") as socket:
        async with session.post("/accounts/me/agents", json={"name": "second"}) as made:
            agent = (await made.json())["id"]
        await socket.send_json({"type": "subscribe", "conversation": "its"})
        await receive_frame(socket, "subscribed")
        async with session.post(
            "/agents/second/turns", json={"input": "hi", "conversation": "its"}
        ) as queued:
            assert queued.status == 202
        assert (await receive_frame(socket, "agent.finished"))["data"]["agent"] == agent
        async with session.post("/agents/default/turns", json={"input": "hi", "conversation": "its"}) as late:
            assert late.status == 409


async def test_a_client_counts_separately_in_each_conversation(running: GatewayProcess) -> None:
    """The same id is another message in another conversation, the same one in its own, and never a loss."""
    async with running.http() as session, session.ws_connect("/ws") as socket:
        one, two = await send_message(socket, "one", "!echo 1"), await send_message(socket, "two", "!echo 2")
        assert one["turn"] != two["turn"]
        assert await send_message(socket, "one", "!echo 1") == one
        assert await send_message(socket, one["conversation"], "!echo 1") == one
        assert (await send_message(socket, "one", "!echo other"))["code"] == "invalid"


async def test_a_webhook_has_the_same_position_as_the_stream_after_a_crash(
    running: GatewayProcess, receiver: WebhookReceiver
) -> None:
    """A delivery whose event was appended before the crash still has its seq."""
    receiver.script.append(respond(500))
    webhook = {"url": receiver.url, "secret": "as plain as day"}
    body = {"input": "!echo hi", "webhook": webhook}
    async with running.http() as session, session.post("/agents/default/turns", json=body) as queued:
        conversation = (await queued.json())["conversationId"]
    await wait_for_webhooks(receiver, 1)
    await running.kill()
    await running.start()
    await wait_for_webhooks(receiver, 2)
    first, again = receiver.requests[:2]
    events = {event["id"]: event for event in await running.events(conversation)}
    assert first.body == again.body
    assert json.loads(again.body) == events[again.headers["webhook-id"]]
    signed = b".".join(
        [again.headers["webhook-id"].encode(), again.headers["webhook-timestamp"].encode(), again.body]
    )
    digest = hmac.digest(b"as plain as day", signed, hashlib.sha256)
    assert again.headers["webhook-signature"] == f"v1,{b64encode(digest).decode()}"


async def test_lost_secret_keys_are_reported_at_the_start(running: GatewayProcess) -> None:
    """A gateway that cannot decrypt its database names the problem and exits."""
    async with (
        running.http() as session,
        session.post("/accounts/me/webhooks", json={"url": "https://example.com/hook"}) as made,
    ):
        assert made.status == 201
    await running.kill()
    (running.data / "secret.key").write_text("another-key-of-more-than-32-characters")
    await running.start(wait=False)
    assert await running.wait_for_exit() == 2
    assert any("DOVECOTE_SECRET_KEYS" in line for line in running.log)


async def test_output_that_was_cut_is_marked_as_cut(running: GatewayProcess) -> None:
    """The event of a tool call is marked if the sandbox kept only the first part of the output."""
    async with running.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": "much"})
        await send_message(socket, "much", "!seq 1 50000")
        assert (await receive_frame(socket, "tool.completed"))["data"]["truncated"] is True


async def test_a_jobs_output_that_was_cut_is_marked_as_cut(running: GatewayProcess) -> None:
    """The event of a job with much output links to its log, and both are marked as the end of more."""
    async with running.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": "much"})
        await send_message(socket, "much", "!&seq 1 100000")
        reported = (await receive_frame(socket, "job.completed"))["data"]
        assert (reported["truncated"], reported["output"][-7:]) == (True, "100000\n")
        async with session.get(reported["url"]) as answer:
            log = await answer.json()
    assert (log["truncated"], len(log["output"])) == (True, 256 * 1024)


async def test_head_of_a_stream_ends_after_its_headers(running: GatewayProcess) -> None:
    """HEAD is answered as GET without the body, also where a GET would stream and never end."""
    stream = {"Accept": "text/event-stream"}
    async with running.http() as session:
        async with session.post("/v1/responses", json={"model": "default", "input": "!echo x"}) as made:
            response = await made.json()
        conversation = response["conversation"]["id"]
        for path in (f"/conversations/{conversation}/events", f"/v1/responses/{response['id']}?stream=true"):
            async with asyncio.timeout(30), session.head(path, headers=stream) as answer:
                assert (answer.status, await answer.read()) == (200, b""), path
                assert answer.content_type == "text/event-stream"

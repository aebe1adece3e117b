"""A gateway on a NATS server of the operator's own sends copies of its events to programs there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from nats.aio.msg import Msg

from api_server import ApiClient
from bench.chaos.deployment import large_nats_server
from delivery.broker.connection import connect
from gateway_process import gateway


async def test_a_turn_is_followed_on_the_subjects_of_its_account(tmp_path: Path) -> None:
    """The subjects name the account, the conversation and the type, from the message to the turn's end."""
    received: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Msg) -> None:
        received.put_nowait(message.subject)

    server = large_nats_server(tmp_path / "nats")
    await server.start()
    url = server.url.replace("://", f"://{server.token}@")
    async with (
        connect(server.url, token=server.token) as nats,
        nats.subscribe("dovecote.>", on_message),
        gateway(tmp_path / "data", env={"DOVECOTE_NATS_URL": url}) as process,
        aiohttp.ClientSession() as session,
    ):
        mine = ApiClient(session=session, url=process.url, key=process.key)
        account = (await mine.call("GET", "/accounts/me")).body["id"]
        sent = await mine.call("POST", "/agents/default/turns", {"input": "!echo coo"})
        of_turn = f"dovecote.{account}.{sent.body['conversationId']}."
        subjects: list[str] = []
        async with asyncio.timeout(60):
            while f"{of_turn}turn.completed" not in subjects:
                subjects.append(await received.get())
    await server.kill()
    assert {one.removeprefix(of_turn) for one in subjects} >= {"turn.started", "message.completed"}
    assert all(one.startswith(of_turn) for one in subjects)

"""G12: with the broker, the database or the platform gone, nothing false is promised and all resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.deployment import large_nats_server, telegram_settings
from channels.telegram.simulator import Simulator, simulate
from fault_proxy import fault_proxy
from gateway_process import GatewayProcess, gateway
from postgres import PostgresCluster, PostgresUnavailable, own_cluster

PATIENCE = 40.0

pytestmark = pytest.mark.timeout(240)


async def _start_turn(process: GatewayProcess, text: str) -> tuple[int, dict[str, Any]]:
    """Ask for a turn; returns the status and the answer."""
    body = {"input": text, "conversation": "partition"}
    async with process.http() as session, session.post("/agents/default/turns", json=body) as answer:
        return answer.status, dict(await answer.json())


async def _completed(process: GatewayProcess, count: int) -> None:
    """Wait until so many turns have been completed."""
    found = 0
    async with asyncio.timeout(PATIENCE), process.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": "partition", "after": 0})
        while found < count:
            found += (await socket.receive_json())["type"] == "turn.completed"


def _has_text(platform: Simulator, chat: int, text: str) -> bool:
    return any(text == post.text for post in platform.messages(chat))


async def test_g12_without_a_broker_messages_are_taken_and_answered_later(tmp_path: Path) -> None:
    """Without NATS the gateway accepts turns with 202, and runs them once NATS is back."""
    nats = large_nats_server(tmp_path / "nats")
    await nats.start()
    try:
        async with fault_proxy(nats.port) as proxy:
            url = f"nats://{nats.token}@127.0.0.1:{proxy.port}"
            async with gateway(tmp_path / "data", env={"DOVECOTE_NATS_URL": url}) as process:
                assert (await _start_turn(process, "!echo before"))[0] == 202
                await _completed(process, 1)
                proxy.black_hole()
                assert (await _start_turn(process, "!echo silent"))[0] == 202
                proxy.refusing = True
                proxy.reset()
                assert (await _start_turn(process, "!echo refused"))[0] == 202
                proxy.heal()
                await _completed(process, 3)
    finally:
        await nats.kill()


@pytest.fixture
def postgresql() -> Iterator[PostgresCluster]:
    """Run a PostgreSQL server for this test alone."""
    try:
        with own_cluster() as running:
            yield running
    except PostgresUnavailable as error:
        pytest.skip(f"PostgreSQL: {error}")


async def test_g12_without_a_database_nothing_is_promised(
    tmp_path: Path, postgresql: PostgresCluster
) -> None:
    """Without PostgreSQL a turn is refused with 503, and Telegram keeps the updates it could not deliver."""
    async with simulate() as platform:
        env = telegram_settings(platform) | {"DOVECOTE_DATABASE_URL": postgresql.create_database()}
        async with gateway(tmp_path / "data", env=env) as process:
            assert (await _start_turn(process, "!echo before"))[0] == 202
            await _completed(process, 1)
            await asyncio.to_thread(postgresql.kill)
            for _ in range(3):
                status, problem = await _start_turn(process, "!echo lost")
                assert status == 503, problem
            await platform.say(7, "!echo pigeon")
            async with process.http() as session, session.get("/readyz") as answer:
                assert answer.status == 503
            await asyncio.to_thread(postgresql.resume)
            await platform.wait_until(lambda: _has_text(platform, 7, "pigeon"), seconds=PATIENCE)
            assert (await _start_turn(process, "!echo after"))[0] == 202
            await _completed(process, 2)
        assert not [line for line in process.log if line.startswith("Traceback")]


async def test_g12_a_platform_that_is_down_gets_every_reply_in_the_end(tmp_path: Path) -> None:
    """Through 429, 500, 502, cut connections and a black hole each chat gets its reply, once where it can."""
    async with simulate() as platform, fault_proxy(platform.port) as proxy:
        env = telegram_settings(platform) | {
            "DOVECOTE_CHANNELS__TELEGRAM__BASE_URL": f"http://127.0.0.1:{proxy.port}"
        }
        await platform.fail(429, method="sendMessage", chat=1, retry_after=1)
        await platform.fail(500, method="sendMessage", chat=2, times=3)
        await platform.fail(502, method="sendMessage", chat=3)
        await platform.cut(method="sendMessage", chat=4, after=False)
        async with gateway(tmp_path / "data", env=env) as process:
            for chat in (1, 2, 3, 4, 5):
                await platform.say(chat, f"!echo pigeon{chat}")
            await platform.wait_until(lambda: _has_text(platform, 5, "pigeon5"), seconds=PATIENCE)
            proxy.black_hole()
            await _start_turn(process, "!echo meanwhile")
            await _completed(process, 1)
            proxy.reset()
            proxy.heal()
            await platform.wait_until(
                lambda: all(_has_text(platform, chat, f"pigeon{chat}") for chat in (1, 2, 3, 4, 5)),
                seconds=PATIENCE,
            )
    for chat in (1, 3):
        assert [post.text for post in platform.messages(chat)] == [f"pigeon{chat}"]
    for chat in (2, 4, 5):
        assert {post.text for post in platform.messages(chat)} == {f"pigeon{chat}"}

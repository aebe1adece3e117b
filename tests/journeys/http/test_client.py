"""The client of Python programs against a real gateway, which is killed and started again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from delivery.webhooks.signing import new_secret, sign
from dovecote.client import (
    AsyncDovecote,
    Dovecote,
    GatewayAway,
    InvalidWebhook,
    RequestRefused,
    verify_webhook,
)
from gateway_process import GatewayProcess, gateway, reserve_port

Value = TypeVar("Value")


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway whose address stays when it starts again."""
    async with gateway(tmp_path / "data", env={"DOVECOTE_PORT": str(reserve_port())}) as running:
        yield running


async def polled(ask: Callable[[], Awaitable[Value]]) -> AsyncIterator[Value]:
    """Yield what a question is answered, again and again."""
    while True:
        yield await ask()
        await asyncio.sleep(0.05)


async def test_a_stream_and_a_turn_go_on_after_a_kill(process: GatewayProcess) -> None:
    """Events come once and in order across kill -9; a turn that was started before it is answered."""
    seen: list[int] = []
    texts: list[str] = []
    async with AsyncDovecote(process.url, process.key) as client, asyncio.timeout(120):
        assert "first" in str((await client.run("!echo first", conversation="story")).output)
        waiting = await client.start_turn("!sleep 2; echo second", conversation="story", key="once")

        async def follow() -> None:
            async for event in client.events("story", after=0, deltas=False):
                if event.seq is not None:
                    seen.append(event.seq)
                if event.type == "message.completed":
                    texts.append(event.data["text"])
                if event.turn == waiting.id and event.type in {"turn.completed", "turn.failed"}:
                    return

        following = asyncio.create_task(follow())
        await process.kill()
        restarting = asyncio.create_task(process.start())
        again = await client.start_turn("!sleep 2; echo second", conversation="story", key="once")
        assert again.id == waiting.id
        result = await client.result(waiting.id)
        await following
        await restarting
        assert seen == sorted(set(seen))
        kept = [event.seq async for event in client.events("story", after=0, deltas=False, live=False)]
        assert kept[: len(seen)] == seen
        assert result.state in {"completed", "failed"}
        assert any("first" in text for text in texts)


async def test_jobs_are_followed_and_stopped(process: GatewayProcess) -> None:
    """A background job is listed, its output read, and it is stopped; a name that is none is refused."""
    async with AsyncDovecote(process.url, process.key) as client, asyncio.timeout(120):
        await client.run("!&echo working; sleep 600")
        (job,) = await client.jobs(state="running")
        async for output in polled(partial(client.job_output, job.id)):
            if "working" in output:
                break
        await client.stop_job(job.id)
        async for now in polled(partial(client.job, job.id)):
            if now.has_ended:
                assert now.state == "stopped"
                break
        assert await client.approvals() == []
        with pytest.raises(RequestRefused) as refused:
            await client.approve("apr_none")
        assert refused.value.status == 404
        with pytest.raises(RequestRefused, match="/input"):
            await client.start_turn("")
        with pytest.raises(RequestRefused):
            await client.turn("..")


async def test_programs_without_asyncio_have_the_same(process: GatewayProcess) -> None:
    """The synchronous client runs turns and reads events; a wrong key and an absent gateway are errors."""

    def program() -> list[str]:
        with Dovecote(process.url, process.key) as client:
            turn = client.run("!echo sync", conversation="sync", timeout=60)
            assert (turn.state, "sync" in str(turn.output)) == ("completed", True)
            types = [event.type for event in client.events("sync", after=0, live=False)]
        with Dovecote(process.url, "dvk_wrong") as client, pytest.raises(RequestRefused) as refused:
            client.jobs()
        assert refused.value.status == 401
        with Dovecote("http://127.0.0.1:9", "dvk_x", patience=0.1) as client:
            with pytest.raises(GatewayAway):
                client.turn("trn_1")
            with pytest.raises(GatewayAway):
                next(client.events("sync"))
        return types

    types = await asyncio.to_thread(program)
    assert "turn.completed" in types
    assert not [thread for thread in threading.enumerate() if thread.name == "dovecote-client"]


def test_webhooks_are_verified() -> None:
    """Exactly what was signed is accepted, for five minutes."""
    secret, now = new_secret(), datetime(2030, 1, 1, tzinfo=UTC)
    body = b'{"type":"agent.finished","seq":3,"turn":"trn_1","data":{"output":"done"}}'
    headers = sign([secret], message_id="evt_1", moment=now, body=body)
    shouted = {name.title(): value for name, value in headers.items()}
    event = verify_webhook(secret, shouted, body, now=now)
    assert (event.type, event.turn, event.data["output"]) == ("agent.finished", "trn_1", "done")
    for wrong in (
        {"secret": new_secret(), "body": body, "now": now},
        {"secret": secret, "body": body + b" ", "now": now},
        {"secret": secret, "body": body, "now": datetime(2030, 1, 2, tzinfo=UTC)},
    ):
        with pytest.raises(InvalidWebhook):
            verify_webhook(headers=headers, **wrong)  # type: ignore[arg-type]

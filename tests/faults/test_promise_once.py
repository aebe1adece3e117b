"""G3 and G18: one turn for each event and one settlement for each job, however often they are sent."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.deployment import telegram_settings
from channels.telegram.simulator import simulate
from delivery.database.engine import Database
from gateway.accounts.vault import associated_data, open_vault
from gateway.store.turns import jobs
from gateway_process import GatewayProcess, gateway

PATIENCE = 40.0
Events = list[dict[str, Any]]
SECRET = "a-secret-that-only-telegram-shows"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway."""
    async with gateway(tmp_path / "data") as process:
        yield process


async def _post(
    process: GatewayProcess, path: str, body: dict[str, Any], **headers: str
) -> tuple[int, dict[str, Any]]:
    """POST; returns the status and the answer."""
    async with process.http() as session, session.post(path, json=body, headers=headers) as answer:
        return answer.status, dict(await answer.json()) if answer.content_length else {}


async def _until(
    process: GatewayProcess, conversation: str, kind: str, count: int = 1
) -> list[dict[str, Any]]:
    """Follow a conversation until so many events of a kind have come; returns all up to there."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE), process.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": conversation, "after": 0})
        async for frame in socket:
            events.append(frame.json())
            if _count(events, kind) == count:
                return events
    raise AssertionError(f"no {kind} among {[event['type'] for event in events]}")


def _count(events: list[dict[str, Any]], kind: str) -> int:
    return [event["type"] for event in events].count(kind)


async def _post_until_accepted(
    process: GatewayProcess, path: str, update: dict[str, Any], shown: dict[str, str]
) -> None:
    """Post an update until it is accepted, as Telegram does: a channel that is not open yet answers 503."""
    async with asyncio.timeout(PATIENCE):
        while (await _post(process, path, update, **shown))[0] != 200:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)


async def _only_conversation(process: GatewayProcess) -> str:
    async with process.http() as session, session.get("/conversations") as answer:
        (conversation,) = (await answer.json())["items"]
    return str(conversation["id"])


async def test_g3_an_update_of_a_platform_leads_to_one_turn(tmp_path: Path) -> None:
    """The same update posted twenty times at once, again, and after a kill -9, is one turn."""
    async with simulate() as platform:
        env = telegram_settings(platform) | {
            "DOVECOTE_CHANNELS__TELEGRAM__MODE": "webhook",
            "DOVECOTE_CHANNELS__TELEGRAM__WEBHOOK_SECRET": SECRET,
            "DOVECOTE_CHANNELS__TELEGRAM__WEBHOOK_URL": "http://127.0.0.1:9/nobody-listens",
        }
        async with gateway(tmp_path / "data", env=env) as process:
            async with process.http() as session, session.get("/accounts/me/channels") as answer:
                (channel,) = (await answer.json())["items"]
            path = f"/channels/{channel['id']}/inbound"
            person = {"id": 7, "is_bot": False, "first_name": "Ada"}
            message = {"message_id": 1, "from": person, "chat": {"id": 7, "type": "private"}, "date": 1}
            update = {"update_id": 41, "message": message | {"text": "!echo pigeon"}}
            platform.world.room(7)
            shown = {"X-Telegram-Bot-Api-Secret-Token": SECRET}
            statuses = await asyncio.gather(*(_post(process, path, update, **shown) for _ in range(20)))
            assert {status for status, _ in statuses} == {200}
            await process.kill()
            await process.start()
            for _ in range(5):
                await _post_until_accepted(process, path, update, shown)
            conversation = await _only_conversation(process)
            await _until(process, conversation, "delivery.succeeded")
            await _post_until_accepted(process, path, update | {"update_id": 42}, shown)
            events = await _until(process, conversation, "turn.completed", count=2)
    assert _count(events, "turn.queued") == 2


async def test_g3_an_idempotency_key_leads_to_one_turn(running: GatewayProcess) -> None:
    """The same POST with the same key, twenty at once and after a kill -9, is one turn with one answer."""
    body = {"input": "!echo pigeon", "conversation": "keys"}

    async def ask() -> tuple[int, dict[str, Any]]:
        return await _post(running, "/agents/default/turns", body, **{"Idempotency-Key": "once"})

    answers = await asyncio.gather(*(ask() for _ in range(20)))
    await running.kill()
    await running.start()
    answers += [await ask() for _ in range(3)]
    assert {status for status, _ in answers} == {202}
    assert len({answer["turnId"] for _, answer in answers}) == 1
    events = await _until(running, "keys", "turn.completed")
    assert _count(events, "turn.queued") == 1


async def test_g3_a_sent_frame_leads_to_one_turn(running: GatewayProcess) -> None:
    """The same frame sent five times over a socket, and on a new socket after a kill -9, is one turn."""
    frame = {"type": "send", "conversation": "frames", "text": "!echo pigeon", "id": "mine-1"}
    turns: set[str] = set()
    for _ in range(2):
        async with asyncio.timeout(PATIENCE), running.http() as session, session.ws_connect("/ws") as socket:
            for _ in range(5):
                await socket.send_json(frame)
                while (answer := await socket.receive_json())["type"] != "accepted":
                    continue
                turns.add(answer["turn"])
        await running.kill()
        await running.start()
    assert len(turns) == 1
    events = await _until(running, "frames", "turn.completed")
    assert _count(events, "turn.queued") == 1


async def _token(process: GatewayProcess, job: str) -> str:
    """Return a job's token from the gateway's own database; otherwise only the job's sandbox has it."""
    database = Database(f"sqlite+aiosqlite:///{process.data / 'dovecote.db'}")
    async with database.read() as connection:
        found = await jobs.get_by_id(connection, job)
    await database.close()
    assert found is not None
    vault = open_vault(process.data)
    return vault.decrypt(associated_data("jobs", job, "token"), found.token_sealed.decode())


async def test_g18_a_job_is_settled_once(running: GatewayProcess) -> None:
    """Twenty completions at once with right, wrong and another job's tokens settle a job once."""
    for _ in range(2):
        await _post(running, "/agents/default/turns", {"input": "!&sleep 60", "conversation": "jobs"})
    events = await _until(running, "jobs", "job.started", count=2)
    mine, other = (event["data"]["resultId"] for event in events if event["type"] == "job.started")
    await _until(running, "jobs", "turn.completed", count=2)
    tokens = [await _token(running, mine)] * 14 + [await _token(running, other)] * 3 + ["wrong"] * 3

    async def complete(place: int, token: str) -> int:
        body = {"exit_code": place % 2, "output": f"outcome {place}"}
        headers = {"Authorization": f"Bearer {token}"}
        return (await _post(running, f"/sandbox-jobs/{mine}/complete", body, **headers))[0]

    statuses = Counter(await asyncio.gather(*(complete(*one) for one in enumerate(tokens))))
    assert statuses == {200: 14, 401: 6}
    await running.kill()
    await running.start()
    assert await complete(99, tokens[0]) == 200
    events = await _until(running, "jobs", "agent.finished", count=3)
    ends = [event["data"] for event in events if event["type"] in {"job.completed", "job.failed"}]
    assert [end["resultId"] for end in ends] == [mine]
    assert ends[0]["output"] != "outcome 99"
    assert _count(events, "turn.queued") == 3
    async with running.http() as session, session.get(f"/status/{other}") as answer:
        assert (await answer.json())["state"] == "running"

"""Kill the gateway at turns, decisions, cancels and stops: accepted requests take effect once (G1, G2)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.chaos.deployment import telegram_settings
from bench.chaos.tally import check_log
from channels.telegram.simulator import simulate
from gateway_process import GatewayProcess
from openai_server import OpenAIServer, echo

PATIENCE = 40.0
"""Seconds for an event after a restart, on a machine that runs other tests as well."""


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Have a gateway that hardly waits for running turns when it is stopped; not started yet."""
    gateway = GatewayProcess(tmp_path / "data", env={"DOVECOTE_DRAIN_TIMEOUT": "0.1"})
    yield gateway
    await gateway.stop()


async def _post(
    process: GatewayProcess, path: str, *, key: str | None = None, **body: Any
) -> tuple[int, dict[str, Any]]:
    """POST as the default account; returns the status and the answer."""
    headers = {"Idempotency-Key": key} if key else {}
    async with process.http() as session, session.post(path, json=body, headers=headers) as answer:
        return answer.status, dict(await answer.json())


async def _ask(process: GatewayProcess, text: str, *, key: str | None = None) -> dict[str, Any]:
    status, queued = await _post(process, "/agents/default/turns", key=key, input=text, conversation="points")
    assert status == 202, queued
    return queued


async def _until(process: GatewayProcess, kind: str, count: int = 1) -> list[dict[str, Any]]:
    """Follow the conversation until events of a kind have come; returns all lasting events up to there."""
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE), process.http() as session, session.ws_connect("/ws") as socket:
        await socket.send_json({"type": "subscribe", "conversation": "points", "after": 0})
        async for frame in socket:
            event = frame.json()
            events += [event] if "n" in event else []
            if sum(one["type"] == kind for one in events) == count:
                return events
    raise AssertionError(f"no {kind} among {[event['type'] for event in events]}")


@pytest.mark.parametrize("point", ["intake.submit.before_commit", "intake.submit.after_commit"])
async def test_a_turn_asked_for_again_after_a_kill_at(point: str, process: GatewayProcess) -> None:
    """Killed before it could answer, the same POST with the same key leads to one turn."""
    await process.start(env={"DOVECOTE_FAULT_POINT": point})
    with pytest.raises(aiohttp.ClientError):
        await _ask(process, "!echo pigeon", key="once")
    assert await process.wait_for_exit() == -9
    await process.start()
    queued = await _ask(process, "!echo pigeon", key="once")
    assert await _ask(process, "!echo pigeon", key="once") == queued
    log = await _until(process, "turn.completed")
    assert check_log(log, turns=1) is None


SAVED = [
    "turn.save.before_commit",
    "turn.save.after_commit",
    "turn.pause.before_commit",
    "turn.pause.after_commit",
]
DECIDED = ["approval.decide.before_commit", "approval.decide.after_commit"]


@pytest.mark.parametrize("point", [*SAVED, *DECIDED])
async def test_a_careful_command_survives_a_kill_at(point: str, process: GatewayProcess) -> None:
    """Killed there, the model's command still waits for an approval, then runs once and is reported once."""
    async with OpenAIServer(echo) as model:
        process.env |= {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
        }
        await process.start(env={"DOVECOTE_FAULT_POINT": point})
        await _ask(process, "run: echo pigeon >> ran; cat ran")
        if point in SAVED:
            assert await process.wait_for_exit() == -9
            await process.start()
        (asked,) = _of_kind(await _until(process, "approval.requested"), "approval.requested")
        path = f"/approvals/{asked['approval']}"
        if point in DECIDED:
            with pytest.raises(aiohttp.ClientError):
                await _post(process, path, decision="approve")
            assert await process.wait_for_exit() == -9
            await process.start()
        assert (await _post(process, path, decision="approve"))[0] == 200
        log = await _until(process, "turn.completed")
        await process.stop()
    assert check_log(log, turns=1) is None
    (ran,) = _of_kind(log, "tool.completed")
    assert ran["output"].strip() == "pigeon"


def _of_kind(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in events if event["type"] == kind]


@pytest.mark.parametrize("point", ["turn.hear.before_commit", "turn.hear.after_commit"])
async def test_what_steers_a_turn_survives_a_kill_at(point: str, process: GatewayProcess) -> None:
    """Killed while the running turn takes steering input, the model gets that input exactly once."""
    async with OpenAIServer(echo) as model:
        process.env |= {
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": model.base_url,
        }
        await process.start(env={"DOVECOTE_FAULT_POINT": point})
        await _ask(process, "run: echo pigeon")
        (asked,) = _of_kind(await _until(process, "approval.requested"), "approval.requested")
        async with (
            process.http() as session,
            session.patch("/conversations/points", json={"queue": "steer"}) as answer,
        ):
            assert answer.status == 200, await answer.text()
        steering = await _ask(process, "and a dove")
        with suppress(aiohttp.ClientError):
            await _post(process, f"/approvals/{asked['approval']}", decision="approve")
        assert await process.wait_for_exit() == -9
        await process.start()
        log = await _until(process, "turn.completed", 2)
        async with process.http() as session, session.get(steering["statusUrl"]) as answer:
            status = await answer.json()
        await process.stop()
    assert (status["state"], status["merged_into"]) == ("completed", asked_turn(log))
    received = [message for message in model.bodies[-1]["messages"] if message["content"] == "and a dove"]
    assert len(received) == 1
    assert len(_of_kind(log, "tool.completed")) == 1


def asked_turn(log: list[dict[str, Any]]) -> str:
    """Return the turn that asked for an approval."""
    return next(str(event["turn"]) for event in log if event["type"] == "approval.requested")


@pytest.mark.parametrize("point", ["turn.release.before_commit", "turn.release.after_commit"])
async def test_a_turn_survives_a_stop_that_is_killed_at(point: str, process: GatewayProcess) -> None:
    """Killed while a stop requeues a turn, it ends once after the start and reports the interruption."""
    await process.start(env={"DOVECOTE_FAULT_POINT": point})
    await _ask(process, "!sleep 30; echo pigeon")
    await _until(process, "tool.called")
    assert await process.kill(signal.SIGTERM) == -9
    await process.start()
    log = await _until(process, "turn.completed")
    assert check_log(log, turns=1) is None
    (ran,) = _of_kind(log, "tool.completed")
    assert "it may have run in part or whole" in ran["output"]


@pytest.mark.parametrize("point", ["turn.cancel.before_commit", "turn.cancel.after_commit"])
async def test_a_turn_is_cancelled_despite_a_kill_at(point: str, process: GatewayProcess) -> None:
    """Killed there, a cancelled turn ends once as cancelled; an uncommitted cancel has no effect."""
    await process.start(env={"DOVECOTE_FAULT_POINT": point})
    queued = await _ask(process, "!sleep 30; echo pigeon")
    await _until(process, "tool.called")
    path = f"/turns/{queued['turnId']}/cancel"
    with suppress(aiohttp.ClientError):
        await _post(process, path)
    assert await process.wait_for_exit() == -9
    await process.start()
    if point.endswith("before_commit"):
        # Nothing was accepted, so the turn goes on, and says how its command ended.
        log = await _until(process, "turn.completed")
        assert check_log(log, turns=1) is None
    else:
        log = await _until(process, "turn.cancelled")
        assert not _of_kind(log, "turn.completed")


@pytest.mark.parametrize("point", ["delivery.recover.before_commit", "delivery.recover.after_commit"])
async def test_a_message_is_never_said_twice_despite_a_kill_at(point: str, process: GatewayProcess) -> None:
    """With at_most_once a send that may have arrived is left alone, through a kill in the decision too."""
    async with simulate() as platform:
        process.env |= telegram_settings(platform) | {
            "DOVECOTE_CHANNELS__TELEGRAM__AMBIGUOUS": "at_most_once"
        }
        await process.start(env={"DOVECOTE_FAULT_POINT": "delivery.after_send"})
        await platform.say(7, "!echo pigeon")
        assert await process.wait_for_exit() == -9
        await process.start(env={"DOVECOTE_FAULT_POINT": point}, wait=False)
        assert await process.wait_for_exit() == -9
        await platform.say(7, "!echo second")
        await process.start()
        await platform.wait_until(lambda: platform.messages(7)[-1].text == "second", seconds=PATIENCE)
        async with process.http() as session, session.get("/deliveries?state=ambiguous") as answer:
            (left,) = (await answer.json())["items"]
        await process.stop()
    assert [post.text for post in platform.messages(7)] == ["pigeon", "second"]
    assert left["state"] == "ambiguous"

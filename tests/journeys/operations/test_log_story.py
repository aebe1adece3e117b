"""Each log line of a story has the ids that lead to the rest; a dead letter is logged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from gateway_process import GatewayProcess, gateway
from webhook_receiver import respond, webhook_receiver

IDS = {
    "turn.": {"turn", "conversation"},
    "job.": {"job", "turn", "conversation"},
    "delivery.dead": {"delivery", "turn", "conversation"},
    "delivery.attempted": {"delivery", "turn", "conversation"},
}
"""Which ids lines must have, by how their event begins."""


def lines(process: GatewayProcess) -> list[dict[str, Any]]:
    """Return the lines of the log."""
    return [json.loads(line) for line in process.log if line.startswith("{")]


async def until_logged(process: GatewayProcess, *events: str) -> None:
    """Wait until each of these events is a line."""
    async with asyncio.timeout(40):
        while True:
            if set(events) <= {line["event"] for line in lines(process)}:
                return
            await asyncio.sleep(0.05)


async def metric(process: GatewayProcess, name: str) -> float:
    """Return the value of a metric."""
    async with process.http() as session, session.get("/metrics") as answer:
        text = await answer.text()
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


async def test_a_story_can_be_followed_by_its_ids(tmp_path: Path) -> None:
    """A turn, its job and a webhook that is refused for good: lines with ids, an event, and a number."""
    env = {
        "DOVECOTE_LOG_FORMAT": "json",
        "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
        "DOVECOTE_WEBHOOK_SCHEDULE": "0.1",
    }
    async with (
        webhook_receiver(*[respond(500)] * 10) as receiver,
        gateway(tmp_path / "d", env=env) as process,
    ):
        asked = {"input": "!&echo pigeon", "webhook": {"url": receiver.url}}
        async with process.http() as session, session.post("/agents/default/turns", json=asked) as answer:
            taken = await answer.json()
        await until_logged(process, "turn.completed", "job.completed", "delivery.dead")
        assert await metric(process, 'dovecote_dead_total{kind="delivery"}') >= 1
        reported = [event["type"] for event in await process.events(taken["conversationId"])]
    assert lines(process)[0]["event"] == "gateway.starting"
    assert "delivery.dead" in reported
    check(lines(process), taken["conversationId"])


def check(story: list[dict[str, Any]], conversation: str) -> None:
    """Every line of the story has its ids, and all are of one conversation."""
    for line in story:
        assert {"timestamp", "level", "logger", "event"} <= line.keys(), line
        for begins, ids in IDS.items():
            if line["event"].startswith(begins):
                assert ids <= line.keys(), line
                assert line["conversation"] == conversation

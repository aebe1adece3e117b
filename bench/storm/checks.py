"""What must hold after a storm: every chat and conversation answers, streams are whole, and nothing waits."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

from bench.chaos.deployment import Deployment
from bench.storm.accounts import StormAccount
from bench.storm.choices import CONVERSATIONS
from bench.storm.clients import count_answers
from bench.storm.plan import StormPlan, StormReport

FIRST_CHAT = 1000
REST_SECONDS = 180.0
"""How long the gateways may take afterwards until nothing waits and every chat is answered."""

WAITING = ("turns.queued", "turns.running", "turns.waiting", "jobs.running", "events.unpublished")
"""Queues that are empty at rest; deliveries to an address that does not answer wait for hours."""

FINAL = ("completed", "failed")
"""How the last turn of a conversation ends: its agent may have been deleted."""


async def let_agents_answer(deployment: Deployment, account: StormAccount, report: StormReport) -> None:
    """Have the agent handle every conversation of an account."""
    url = deployment.replicas[0].url
    async with aiohttp.ClientSession(url, headers=account.headers) as session:
        async with session.get("/conversations?limit=100") as answer:
            conversations = [item["id"] for item in (await answer.json())["items"]]
        for conversation in conversations:
            path = f"/conversations/{conversation}/handover"
            async with session.post(path, json={"state": "agent"}) as answer:
                if answer.status not in {200, 404}:
                    report.errors.append(f"{answer.status} POST {path}: {await answer.text()}")


async def check_answers(deployment: Deployment, plan: StormPlan, report: StormReport) -> None:
    """Ask for an answer in every chat and in every named conversation."""
    chats = range(FIRST_CHAT, FIRST_CHAT + plan.chats)
    async with deployment.replicas[0].http() as session:
        for chat in chats:
            await deployment.platform.say(chat, f"!echo last of {chat}")
        await asyncio.gather(*(_check_turn(session, name, report) for name in CONVERSATIONS))
        await asyncio.gather(*(_check_chat(deployment, chat, report) for chat in chats))


async def _check_chat(deployment: Deployment, chat: int, report: StormReport) -> None:
    """Wait for the answer to the last message of a chat."""
    times = await count_answers(deployment, chat, f"last of {chat}", seconds=REST_SECONDS)
    if times != 1:
        said = [post.text for post in deployment.platform.messages(chat)][-3:]
        report.unanswered.append(f"chat {chat}: {times} answers to its last message; it ends with {said}")


async def _check_turn(session: aiohttp.ClientSession, conversation: str, report: StormReport) -> None:
    """Run a turn in a named conversation, if it is there, and wait for its end."""
    async with session.post(f"/conversations/{conversation}/messages", json={"text": "!echo last"}) as answer:
        turn = await answer.json()
    if answer.status == 404:
        return
    state = str(turn)
    end = time.monotonic() + REST_SECONDS
    while "statusUrl" in turn and state not in FINAL and time.monotonic() < end:
        await asyncio.sleep(0.2)
        async with session.get(turn["statusUrl"]) as found:
            state = (await found.json()).get("state", str(found.status))
    if state not in FINAL:
        report.unanswered.append(f"the last turn of conversation {conversation}: {state}")


async def check_rest(deployment: Deployment, report: StormReport) -> None:
    """Wait until no queue that empties has rows."""
    end = time.monotonic() + REST_SECONDS
    report.waiting = await _measure_waiting(deployment)
    while report.waiting and time.monotonic() < end:
        await asyncio.sleep(2.0)
        report.waiting = await _measure_waiting(deployment)


async def check_streams(deployment: Deployment, report: StormReport) -> None:
    """Read the conversations of the first account as pages: the durable events are numbered without holes."""
    async with deployment.replicas[-1].http() as session, session.get("/conversations?limit=100") as answer:
        conversations = [item["id"] for item in (await answer.json())["items"]]
    for conversation in conversations:
        numbers = [event["n"] for event in await deployment.log_of(conversation)]
        if numbers != list(range(1, len(numbers) + 1)):
            report.missed.append(f"the stream of {conversation}: {numbers}")


async def _measure_waiting(deployment: Deployment) -> dict[str, float]:
    """Return the queues that are not empty, as the metrics tell them."""
    async with deployment.replicas[0].http() as session, session.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    depths = {
        line.split('"')[1]: float(line.split()[-1])
        for line in lines
        if line.startswith("dovecote_queue_depth{")
    }
    return {queue: depths[queue] for queue in WAITING if depths.get(queue)}


def is_error(line: str) -> bool:
    """Return whether a line of a gateway is an error, or the start of a traceback."""
    try:
        entry: Mapping[str, Any] = json.loads(line)
    except ValueError:
        return line.startswith("Traceback")
    return entry.get("level") in {"error", "critical"}

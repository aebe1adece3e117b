"""Run a storm: clients send conflicting requests, people write in chats, and replicas are killed."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.chaos.deployment import Deployment, open_deployment
from bench.storm.choices import CONVERSATIONS, Choices
from bench.storm.receiver import run_receiver
from bench.storm.requests import CHAT_COMMANDS, OPERATIONS, Request, choose_request

FIRST_CHAT = 1000
REQUEST_SECONDS = 30.0
"""An answer that takes longer counts as none."""

KILL_SECONDS = 1.0
"""Seconds after which it is known that a connection broke because its replica was killed."""

COMMAND_SHARE = 0.5
ANSWER_SECONDS = 10.0
REST_SECONDS = 180.0
"""How long the gateways may take afterwards until nothing waits and every chat is answered."""

WAITING = ("turns.queued", "turns.running", "jobs.running", "events.unpublished")
"""Queues that are empty at rest; deliveries to an address that does not answer wait for hours."""

FINAL = ("completed", "failed")
"""How the last turn of a conversation ends: its agent may have been deleted."""

ENV = {
    "DOVECOTE_EGRESS_ALLOW": "127.0.0.1",
    "DOVECOTE_REQUESTS_PER_MINUTE": "1000000",
    "DOVECOTE_LOG_FORMAT": "json",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StormPlan:
    """What to run: so many clients for so many seconds, people in chats, and kills of replicas and NATS."""

    seconds: float = 60.0
    clients: int = 16
    chats: int = 4
    kills: int = 0
    nats_kills: int = 0
    replicas: int = 2
    seed: int = 1
    kinds: Sequence[str] = tuple(OPERATIONS)


@dataclass(slots=True, kw_only=True)
class StormReport:
    """What was counted. `cut` are requests whose replica was killed; every other list is a fault."""

    plan: StormPlan
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    cut: int = 0
    errors: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    deadlocks: int = 0
    waiting: dict[str, float] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many requests were answered."""
        return sum(self.statuses.values())

    @property
    def is_kept(self) -> bool:
        """Whether nothing failed, and everything was at rest afterwards."""
        faults = (*self.errors, *self.late, *self.logged, *self.waiting, *self.unanswered)
        return not faults and not self.deadlocks and set(self.exit_codes) <= {0}


async def run(plan: StormPlan, directory: Path) -> StormReport:
    """Run a plan in an empty directory; the logs and a dump of the database are left there."""
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - before anything runs
    report = StormReport(plan=plan)
    async with (
        run_receiver(plan.seed) as receiver,
        open_deployment(directory, replicas=plan.replicas, env=ENV) as deployment,
    ):
        await _send_all(deployment, plan, Choices(plan.seed, receiver=receiver), report)
        await _check_answers(deployment, plan, report)
        await _check_rest(deployment, report)
        for process in deployment.replicas:
            await process.stop()
            report.exit_codes.append(await process.wait_for_exit())
            report.logged += [line for line in process.log if _is_error(line)]
        if deployment.database is not None:
            logged = deployment.database.log_text()
            report.deadlocks = logged.count("deadlock detected")
            (directory / "postgres.log").write_text(logged)
            dump = deployment.database.dump_database(deployment.replicas[0].env["DOVECOTE_DATABASE_URL"])
            shutil.copy(dump, directory / "database.sql")
    return report


async def _send_all(deployment: Deployment, plan: StormPlan, choices: Choices, report: StormReport) -> None:
    """Send requests and chat messages until the time is over."""
    end = time.monotonic() + plan.seconds
    key = deployment.replicas[0].key
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {key}"}) as session,
        asyncio.TaskGroup() as group,
    ):
        client = StormClient(session=session, deployment=deployment, choices=choices, report=report)
        for _ in range(plan.clients):
            group.create_task(client.send_until(end))
        for chat in range(FIRST_CHAT, FIRST_CHAT + plan.chats):
            group.create_task(_write_until(end, deployment, chat, choices))
        group.create_task(_kill_gateways(deployment, plan))
        group.create_task(_kill_nats(deployment, plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class StormClient:
    """Sends random requests to random replicas, and counts the answers."""

    session: aiohttp.ClientSession
    deployment: Deployment
    choices: Choices
    report: StormReport

    async def send_until(self, end: float) -> None:
        """Send one request after the other."""
        while time.monotonic() < end:
            await self._send(choose_request(self.choices, self.report.plan.kinds))

    async def _send(self, request: Request) -> None:
        process = self.choices.one_of(*self.deployment.replicas)
        body = {"data" if isinstance(request.body, bytes) else "json": request.body}
        pid, was_ready = process.pid, process.ready.is_set()
        try:
            async with (
                asyncio.timeout(REQUEST_SECONDS),
                self.session.request(request.method, process.url + request.path, **body) as answer,
            ):
                text = await answer.text()
        except TimeoutError:
            self.report.late.append(f"{request.method} {request.path} {request.body}")
        except aiohttp.ClientError as error:
            await asyncio.sleep(KILL_SECONDS)
            if was_ready and process.pid == pid:
                self.report.errors.append(f"{error!r} {request.method} {request.path} {request.body}")
            else:
                self.report.cut += 1
        else:
            self._count(request, answer.status, text)

    def _count(self, request: Request, status: int, text: str) -> None:
        self.report.statuses[f"{request.method} {request.route}", status] += 1
        if status >= 500:
            self.report.errors.append(
                f"{status} {request.method} {request.path} {request.body}: {text[:300]}"
            )
        elif status < 300:
            with suppress(ValueError):
                self.choices.remember(json.loads(text))


async def _write_until(end: float, deployment: Deployment, chat: int, choices: Choices) -> None:
    """Write in a chat as a person who waits some seconds for each answer: a deletion may end its turn."""
    number = 0
    while time.monotonic() < end:
        if choices.chance(COMMAND_SHARE):
            await deployment.platform.say(chat, choices.one_of(*CHAT_COMMANDS))
        text = f"{number} of {chat}"
        await deployment.platform.say(chat, f"!echo {text}")
        await _count_answers(deployment, chat, text, seconds=ANSWER_SECONDS)
        number += 1


async def _count_answers(deployment: Deployment, chat: int, text: str, *, seconds: float) -> int:
    """Wait for a message of the bot with a text; returns how many there are."""

    def times() -> int:
        return sum(text in post.text for post in deployment.platform.messages(chat))

    with suppress(TimeoutError):
        await deployment.platform.wait_until(lambda: times() > 0, seconds=seconds)
    return times()


async def _kill_gateways(deployment: Deployment, plan: StormPlan) -> None:
    """Kill one replica after the other with SIGKILL, at equal distances."""
    for number in range(plan.kills):
        await asyncio.sleep(plan.seconds / (plan.kills + 1))
        await deployment.kill_gateway(number % len(deployment.replicas))


async def _kill_nats(deployment: Deployment, plan: StormPlan) -> None:
    """Kill the broker with SIGKILL and start it again, at equal distances."""
    for _ in range(plan.nats_kills):
        await asyncio.sleep(plan.seconds / (plan.nats_kills + 1))
        await deployment.kill_nats()


async def _check_answers(deployment: Deployment, plan: StormPlan, report: StormReport) -> None:
    """Ask for an answer in every chat and in every named conversation, once agents handle all of them."""
    chats = range(FIRST_CHAT, FIRST_CHAT + plan.chats)
    async with deployment.replicas[0].http() as session:
        for conversation in [*(await deployment.conversations()).values(), *CONVERSATIONS]:
            path = f"/conversations/{conversation}/handover"
            async with session.post(path, json={"state": "agent"}) as answer:
                if answer.status not in {200, 404}:
                    report.errors.append(f"{answer.status} POST {path}: {await answer.text()}")
        for chat in chats:
            await deployment.platform.say(chat, f"!echo last of {chat}")
        await asyncio.gather(*(_check_turn(session, name, report) for name in CONVERSATIONS))
        await asyncio.gather(*(_check_chat(deployment, chat, report) for chat in chats))


async def _check_chat(deployment: Deployment, chat: int, report: StormReport) -> None:
    """Wait for the answer to the last message of a chat."""
    times = await _count_answers(deployment, chat, f"last of {chat}", seconds=REST_SECONDS)
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


async def _check_rest(deployment: Deployment, report: StormReport) -> None:
    """Wait until no queue that empties has rows."""
    end = time.monotonic() + REST_SECONDS
    report.waiting = await _measure_waiting(deployment)
    while report.waiting and time.monotonic() < end:
        await asyncio.sleep(2.0)
        report.waiting = await _measure_waiting(deployment)


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


def _is_error(line: str) -> bool:
    """Return whether a line of a gateway is an error, or the start of a traceback."""
    try:
        entry: Mapping[str, Any] = json.loads(line)
    except ValueError:
        return line.startswith("Traceback")
    return entry.get("level") in {"error", "critical"}

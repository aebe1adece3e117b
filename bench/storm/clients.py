"""The clients of a storm: random requests to random replicas, people in chats, and visiting accounts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp

from bench.chaos.deployment import Deployment
from bench.storm.accounts import StormAccount, create_account, delete_account, prepare_account
from bench.storm.choices import Choices
from bench.storm.plan import StormReport
from bench.storm.requests import CHAT_COMMANDS, Request, choose_request
from gateway_process import GatewayProcess

REQUEST_SECONDS = 60.0
"""An answer that takes longer counts as none."""

KILL_SECONDS = 1.0
"""Seconds after which it is known that a connection broke because its replica was killed."""

UNAVAILABLE = 503

COMMAND_SHARE = 0.5
ANSWER_SECONDS = 10.0
VISIT_SECONDS, LEAVING_SECONDS = 5.0, 1.0
VISITOR_CLIENTS = 3
DECISION_SECONDS = 4.0

AUDIT = "/accounts/me/audit"
"""Shows the paths of all requests, also of those that named an id of another account in vain."""

REFUSED_CALL = '"isError": true'
"""In the answer to an MCP client whose call was refused; it names what was not found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StormClient:
    """Sends random requests of accounts to random replicas, and counts the answers."""

    session: aiohttp.ClientSession
    deployment: Deployment
    accounts: list[StormAccount]
    report: StormReport
    may_refuse: Callable[[GatewayProcess], bool]
    """Whether a gateway may refuse a request, or cut it off, at this moment."""

    async def send_until(self, end: float) -> None:
        """Send one request after the other."""
        while time.monotonic() < end:
            account = self.accounts[0].choices.one_of(*self.accounts)
            await self._send(account, choose_request(account.choices, self.report.plan.kinds))

    async def _send(self, account: StormAccount, request: Request) -> None:
        process = account.choices.one_of(*self.deployment.replicas)
        body = {"data" if isinstance(request.body, bytes) else "json": request.body}
        pid, could_refuse = process.pid, self.may_refuse(process)
        try:
            async with (
                asyncio.timeout(REQUEST_SECONDS),
                self.session.request(
                    request.method, process.url + request.path, headers=account.headers, **body
                ) as answer,
            ):
                text = await answer.text()
        except TimeoutError:
            sent = datetime.now(UTC) - timedelta(seconds=REQUEST_SECONDS)
            self.report.late.append(f"{sent:%H:%M:%S} {request.method} {request.path} {request.body}")
        except aiohttp.ClientError as error:
            await asyncio.sleep(KILL_SECONDS)
            if could_refuse or process.pid != pid or self.may_refuse(process):
                self.report.cut += 1
            else:
                self.report.errors.append(f"{error!r} {request.method} {request.path} {request.body}")
        else:
            if answer.status == UNAVAILABLE and (could_refuse or self.may_refuse(process)):
                self.report.cut += 1
            else:
                self._count(account.choices, request, answer.status, text)

    def _count(self, choices: Choices, request: Request, status: int, text: str) -> None:
        self.report.statuses[f"{request.method} {request.route}", status] += 1
        asked = f"{status} {request.method} {request.path} {request.body}"
        if status >= 500:
            self.report.errors.append(f"{asked}: {text[:300]}")
        elif status < 300:
            text = "" if request.route == AUDIT or REFUSED_CALL in text else text
            if foreign := choices.foreign_ids(f"{request.path} {text}"):
                self.report.foreign.append(f"{asked} as {choices.account}: {foreign}")
            with suppress(ValueError):
                choices.remember(json.loads(text))


async def write_until(end: float, deployment: Deployment, chat: int, choices: Choices) -> None:
    """Write in a chat as a person who waits some seconds for each answer: a deletion may end its turn."""
    number = 0
    while time.monotonic() < end:
        if choices.chance(COMMAND_SHARE):
            await deployment.platform.say(chat, choices.one_of(*CHAT_COMMANDS))
        text = f"{number} of {chat}"
        await deployment.platform.say(chat, f"!echo {text}")
        await count_answers(deployment, chat, text, seconds=ANSWER_SECONDS)
        number += 1


async def count_answers(deployment: Deployment, chat: int, text: str, *, seconds: float) -> int:
    """Wait for a message of the bot with a text; returns how many there are."""

    def times() -> int:
        return sum(text in post.text for post in deployment.platform.messages(chat))

    with suppress(TimeoutError):
        await deployment.platform.wait_until(lambda: times() > 0, seconds=seconds)
    return times()


async def decide_until(end: float, deployment: Deployment, account: StormAccount) -> None:
    """Decide as a person who comes now and then: no other request waits for long behind a call that waits."""
    while time.monotonic() < end:
        await asyncio.sleep(DECISION_SECONDS)
        url = account.choices.one_of(*deployment.replicas).url
        with suppress(aiohttp.ClientError, OSError):
            async with aiohttp.ClientSession(url, headers=account.headers) as session:
                await deny_all(session)


async def deny_all(session: aiohttp.ClientSession) -> None:
    """Deny every call that waits, so that the turns behind it can run."""
    async with session.get("/approvals?state=pending&limit=100") as answer:
        pending = (await answer.json()).get("items", ())
    for approval in pending:
        decision = {"decision": "deny"}
        async with session.post(f"/approvals/{approval['id']}", json=decision) as answer:
            await answer.read()


async def visit(client: StormClient, number: int, end: float, **more: Any) -> list[str]:
    """Create accounts, use them, and delete them while they are used; returns the deleted ids."""
    deleted = []
    while time.monotonic() + VISIT_SECONDS + LEAVING_SECONDS < end:
        number += 1
        with suppress(aiohttp.ClientError, OSError):
            url = client.accounts[0].choices.one_of(*client.deployment.replicas).url
            deleted.append(await _visit_once(client, url, number, **more))
    return deleted


async def _visit_once(client: StormClient, url: str, number: int, **more: Any) -> str:
    identity, key = await create_account(client.session, url, f"visitor {number}")
    account = StormAccount(key=key, choices=Choices(number, account=identity, **more))
    await prepare_account(client.session, url, account)
    now = time.monotonic()
    address = f"127.0.{1 + number // 100}.{number % 100}"
    async with _session_from(address) as session, asyncio.TaskGroup() as group:
        visitor = replace(client, session=session, accounts=[account])
        for _ in range(VISITOR_CLIENTS):
            group.create_task(visitor.send_until(now + VISIT_SECONDS + LEAVING_SECONDS))
        await asyncio.sleep(VISIT_SECONDS)
        await _delete(client, identity)
    return identity


async def _delete(client: StormClient, account: str) -> None:
    """Delete an account; after an outage another replica is asked, which may find nothing to delete."""
    accepted = {204}
    while True:
        process = client.accounts[0].choices.one_of(*client.deployment.replicas)
        try:
            status, text = await delete_account(client.session, process.url, account)
        except (aiohttp.ClientError, OSError):
            status, text = UNAVAILABLE, "no answer"
        if status in accepted:
            return
        if status != UNAVAILABLE or not client.may_refuse(process):
            client.report.errors.append(f"{status} DELETE /accounts/{account}: {text}")
            return
        accepted = {204, 404}
        await asyncio.sleep(KILL_SECONDS)


def _session_from(address: str) -> aiohttp.ClientSession:
    """Open a session of a client with this address: one that sends deleted keys is soon limited."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, local_addr=(address, 0)))

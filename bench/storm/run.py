"""Run a storm: clients send conflicting requests, people write in chats, and replicas are killed."""

from __future__ import annotations

import asyncio
import math
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from bench.chaos.deployment import Deployment, open_deployment
from bench.storm.accounts import OPERATOR_KEY, StormAccount, create_account, prepare_account
from bench.storm.checks import (
    FIRST_CHAT,
    check_answers,
    check_rest,
    check_streams,
    is_error,
    let_agents_answer,
)
from bench.storm.choices import Choices
from bench.storm.clients import StormClient, decide_until, visit, write_until
from bench.storm.model import storm_model
from bench.storm.outages import Outages
from bench.storm.plan import StormPlan, StormReport
from bench.storm.readers import StormReader
from bench.storm.receiver import run_receiver
from bench.storm.rooms import check_room, open_rooms, talk_until
from group_room import GroupRoom
from openai_server import OpenAIServer

TABLE = re.compile(r"^COPY public\.(\w+) [^\n]*\n(.*?)^\\\.$", re.MULTILINE | re.DOTALL)
"""A table and its rows in a dump."""

REMEMBER_DELETED = ("audit", "erasures")
"""Tables that keep what they say of deleted accounts."""

VISITS = 100
"""A visitor is fewer accounts than this, one after the other; each has a client address of its own."""

ENV = {
    "DOVECOTE_ADMIN_KEY": OPERATOR_KEY,
    "DOVECOTE_ALLOW_SHARED_HOST": "true",
    "DOVECOTE_EGRESS_ALLOW": "127.0.0.1",
    "DOVECOTE_REQUESTS_PER_MINUTE": "1000000",
    "DOVECOTE_LOG_FORMAT": "json",
    "OPENAI_API_KEY": "a key for a loopback model",
}


async def run(plan: StormPlan, directory: Path) -> StormReport:
    """Run a plan in an empty directory; the logs and a dump of the database are left there."""
    directory.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - before anything runs
    report = StormReport(plan=plan)
    async with (
        run_receiver(plan.seed) as receiver,
        OpenAIServer(storm_model(plan.seed)) as model,
        open_deployment(
            directory, replicas=plan.replicas, env=ENV | {"OPENAI_BASE_URL": model.base_url}
        ) as deployment,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        AsyncExitStack() as stack,
    ):
        given: dict[str, Any] = {"receiver": receiver, "owners": {}}
        accounts = await _open_accounts(session, deployment, plan, **given)
        rooms = await stack.enter_async_context(open_rooms(session, deployment.replicas[0].url, accounts[1]))
        outages = Outages(deployment=deployment, plan=plan)
        client = StormClient(
            session=session,
            deployment=deployment,
            accounts=accounts,
            report=report,
            may_refuse=outages.may_refuse,
        )
        deleted = await _send_all(client, plan, rooms, outages, given)
        await _check_all(client, plan, rooms)
        await _stop(deployment, report)
        _keep_database(deployment, directory, deleted, report)
    return report


async def _open_accounts(
    session: aiohttp.ClientSession,
    deployment: Deployment,
    plan: StormPlan,
    *,
    receiver: str,
    owners: dict[str, str],
) -> list[StormAccount]:
    """Return the first account, to which the chats belong, and a second one."""
    url = deployment.replicas[0].url
    _, second = await create_account(session, url, "second")
    accounts: list[StormAccount] = []
    for name, key in (("first", deployment.replicas[0].key), ("second", second)):
        choices = Choices(plan.seed + len(accounts), receiver=receiver, account=name, owners=owners)
        account = StormAccount(key=key, choices=choices)
        await prepare_account(session, url, account)
        accounts.append(account)
    return accounts


async def _send_all(
    client: StormClient,
    plan: StormPlan,
    rooms: Sequence[GroupRoom],
    outages: Outages,
    given: Mapping[str, Any],
) -> list[str]:
    """Run everything at once until the time is over; returns the accounts that were deleted."""
    end = time.monotonic() + plan.seconds
    first, second = client.accounts
    async with asyncio.TaskGroup() as group:
        for _ in range(plan.clients):
            group.create_task(client.send_until(end))
        for chat in range(FIRST_CHAT, FIRST_CHAT + plan.chats):
            group.create_task(write_until(end, client.deployment, chat, first.choices))
        for room in rooms:
            group.create_task(talk_until(end, room, second.choices))
        for number in range(plan.readers):
            reader = StormReader(
                session=client.session,
                deployment=client.deployment,
                account=client.accounts[number % len(client.accounts)],
                report=client.report,
            )
            group.create_task(reader.read_until(end))
        for account in client.accounts:
            group.create_task(decide_until(end, client.deployment, account))
        visits = [
            group.create_task(visit(client, VISITS * place, end, **given)) for place in range(plan.visitors)
        ]
        outages.start(group, end)
    return [account for one in visits for account in one.result()]


async def _check_all(client: StormClient, plan: StormPlan, rooms: Sequence[GroupRoom]) -> None:
    """Check what must hold afterwards, while people decide about the calls that still wait."""
    deployment, report = client.deployment, client.report
    async with asyncio.TaskGroup() as group:
        deciding = [group.create_task(decide_until(math.inf, deployment, one)) for one in client.accounts]
        for account in client.accounts:
            await let_agents_answer(deployment, account, report)
        await check_answers(deployment, plan, report)
        await asyncio.gather(*(check_room(room, report) for room in rooms))
        await check_rest(deployment, report)
        for task in deciding:
            task.cancel()
    await check_streams(deployment, report)


async def _stop(deployment: Deployment, report: StormReport) -> None:
    """Stop the gateways, and collect how they ended and what they logged as errors."""
    for process in deployment.replicas:
        await process.stop()
        report.exit_codes.append(await process.wait_for_exit())
        report.logged += [line for line in process.log if is_error(line)]


def _keep_database(deployment: Deployment, directory: Path, deleted: list[str], report: StormReport) -> None:
    """Keep a dump of PostgreSQL, and count its deadlocks and what is left of deleted accounts."""
    if deployment.database is None:
        return
    logged = deployment.database.log_text()
    report.deadlocks = logged.count("deadlock detected")
    (directory / "postgres.log").write_text(logged)
    dump = deployment.database.dump_database(deployment.replicas[0].env["DOVECOTE_DATABASE_URL"])
    kept = Path(shutil.copy(dump, directory / "database.sql")).read_text()
    tables = {table: rows for table, rows in TABLE.findall(kept) if table not in REMEMBER_DELETED}
    for account in deleted:
        left = [table for table, rows in tables.items() if account in rows]
        report.missed += [f"rows of the deleted account {account} in {left}"] if left else []

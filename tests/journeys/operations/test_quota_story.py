"""A workspace that may hold only so much: jobs and uploads that fill it end, in words that help."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_process import gateway

TIMEOUT_SECONDS = 40.0
LIMIT = 2_000_000
FILES = "/accounts/me/workspaces/default/files"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaGateway:
    """A gateway whose workspaces hold two megabytes."""

    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Make one request."""
        async with self.session.request(method, path, json=body) as answer:
            return answer.status, await answer.json() if answer.content_length else None

    async def upload(self, name: str, size: int) -> tuple[int, str]:
        """Put a file of so many bytes; returns the status and the refusal."""
        async with self.session.put(f"{FILES}/{name}", data=BytesIO(bytes(size))) as answer:
            return answer.status, (await answer.json())["detail"] if answer.content_length else ""

    async def turn(self, line: str) -> dict[str, Any]:
        """Have the shell agent do a line; returns the ended turn."""
        body = {"input": line, "conversation": "one"}
        _status, taken = await self.ask("POST", "/agents/default/turns", body)
        return await self.ended(taken["turnId"])

    async def ended(self, item: str) -> dict[str, Any]:
        """Return a turn or job once it has ended."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                _status, reported = await self.ask("GET", f"/status/{item}")
                if reported["state"] not in ("queued", "running"):
                    return dict(reported)
                await asyncio.sleep(0.05)


@pytest.fixture
async def quota_gateway(tmp_path: Path) -> AsyncIterator[QuotaGateway]:
    """Run the gateway."""
    env = {
        "DOVECOTE_SANDBOX__HOST__WORKSPACE_BYTES": str(LIMIT),
        "DOVECOTE_RECONCILE_INTERVAL": "0.2",
    }
    async with gateway(tmp_path / "data", env=env) as process, process.http() as session:
        yield QuotaGateway(session=session)


async def test_a_job_that_fills_the_workspace_says_so(quota_gateway: QuotaGateway) -> None:
    """It fails with the reason beside its exit code, in its status and in its chat."""
    await quota_gateway.turn(f"!&head -c {2 * LIMIT} /dev/zero >big; echo filled; sleep 300")
    _status, jobs = await quota_gateway.ask("GET", "/jobs")
    (job,) = jobs["items"]
    reported = await quota_gateway.ended(job["resultId"])
    assert (reported["state"], reported["error"]) == ("failed", "workspace_full")
    _status, shown = await quota_gateway.ask("GET", f"/jobs/{job['resultId']}")
    assert (shown["reason"], shown["exit_code"]) == ("workspace_full", 143)
    _status, found = await quota_gateway.ask("GET", f"/conversations/{job['conversation']}/events?limit=500")
    (failed,) = [event for event in found["items"] if event["type"] == "job.failed"]
    assert failed["data"]["reason"] == "workspace_full"


async def test_uploads_count_against_the_quota(quota_gateway: QuotaGateway) -> None:
    """What has no room is refused with limit and remedy; a record's diskGb wins over the operator's."""
    assert (await quota_gateway.upload("first", LIMIT - 1000))[0] == 204
    status, against = await quota_gateway.upload("second", 2000)
    assert (status, f"may hold {LIMIT}" in against, "diskGb" in against) == (413, True, True)
    assert (await quota_gateway.upload("first", LIMIT))[0] == 204
    options = {"config": {"options": {"diskGb": 0.003}}}
    assert (await quota_gateway.ask("PATCH", "/accounts/me/sandboxes/default", options))[0] == 200
    assert (await quota_gateway.upload("second", 2000))[0] == 204
    assert "3000000" in (await quota_gateway.upload("third", LIMIT))[1]
    assert (await quota_gateway.ask("DELETE", f"{FILES}/first"))[0] == 204
    assert (await quota_gateway.upload("third", LIMIT))[0] == 204

"""A workspace that may hold only so much: a job that fills it is ended, and its chat is told why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway_process import gateway

PATIENCE = 40.0
LIMIT = 2_000_000
FILES = "/accounts/me/workspaces/default/files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A gateway whose workspaces hold two megabytes."""

    session: aiohttp.ClientSession

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Make one request."""
        async with self.session.request(method, path, json=body) as answer:
            return answer.status, await answer.json() if answer.content_length else None

    async def turn(self, line: str) -> dict[str, Any]:
        """Have the shell agent do a line; returns the ended turn."""
        body = {"input": line, "conversation": "one"}
        _status, taken = await self.ask("POST", "/agents/default/turns", body)
        return await self.ended(taken["turnId"])

    async def ended(self, item: str) -> dict[str, Any]:
        """Return a turn or job once it has ended."""
        async with asyncio.timeout(PATIENCE):
            while (told := (await self.ask("GET", f"/status/{item}"))[1])["state"] in ("queued", "running"):
                await asyncio.sleep(0.05)
        return dict(told)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Run the gateway."""
    env = {
        "DOVECOTE_SANDBOX__HOST__WORKSPACE_BYTES": str(LIMIT),
        "DOVECOTE_RECONCILE_INTERVAL": "0.2",
    }
    async with gateway(tmp_path / "data", env=env) as process, process.http() as session:
        yield Stage(session=session)


async def test_a_job_that_fills_the_workspace_says_so(stage: Stage) -> None:
    """It fails with the reason beside its exit code, in its status and in what its chat hears."""
    await stage.turn(f"!&head -c {2 * LIMIT} /dev/zero >big; echo filled; sleep 300")
    _status, jobs = await stage.ask("GET", "/jobs")
    (job,) = jobs["items"]
    told = await stage.ended(job["resultId"])
    assert (told["state"], told["error"]) == ("failed", "workspace_full")
    _status, shown = await stage.ask("GET", f"/jobs/{job['resultId']}")
    assert (shown["reason"], shown["exit_code"]) == ("workspace_full", 143)
    _status, found = await stage.ask("GET", f"/conversations/{job['conversation']}/events?limit=500")
    (failed,) = [event for event in found["items"] if event["type"] == "job.failed"]
    assert failed["data"]["reason"] == "workspace_full"

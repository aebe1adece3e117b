"""M11: the sandbox is the boundary, not the command's text; this machine serves one account by default."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_server import ADMIN_KEY, ApiClient
from gateway_process import gateway

ENDS = ("completed", "failed", "cancelled")


async def _run_and_wait(client: ApiClient, text: str) -> dict[str, Any]:
    """Have an agent of the account's own run a command; return how the turn ended."""
    shell = {"name": "shell", "config": {"model": "builtin:shell"}}
    agent = await client.call("POST", "/accounts/me/agents", shell)
    taken = await client.call("POST", f"/agents/{agent.body['id']}/turns", {"input": text})
    assert taken.status == 202, taken.body
    async with asyncio.timeout(40):
        while True:
            status = await client.call("GET", f"/status/{taken.body['turnId']}")
            if status.body["state"] in ENDS:
                return dict(status.body)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("shared", [False, True])
async def test_m11_another_account_runs_here_only_where_the_operator_says_so(
    tmp_path: Path, *, shared: bool
) -> None:
    """A second account's command is refused with the remedy, and runs with --allow-shared-host."""
    options = ["--allow-shared-host"] if shared else []
    env = {"DOVECOTE_ADMIN_KEY": ADMIN_KEY}
    async with (
        gateway(tmp_path / "data", env=env, options=options) as process,
        aiohttp.ClientSession() as session,
    ):
        mine = ApiClient(session=session, url=process.url, key=process.key)
        operator = ApiClient(session=session, url=process.url, key=ADMIN_KEY)
        made = await operator.call("POST", "/accounts", {"name": "second"})
        second = ApiClient(session=session, url=process.url, key=made.body["key"])
        here, there = await asyncio.gather(
            _run_and_wait(mine, "!echo pig''eon"), _run_and_wait(second, "!echo pig''eon")
        )
    assert "pigeon" in str(here)
    assert ("pigeon" in str(there)) is shared, there
    assert shared or "--allow-shared-host" in str(there["error"]), there["error"]

"""M19, M10: a job is completed by its own token, once; a workspace link leads nowhere over HTTP."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from api_server import ApiClient, ApiServer, open_api_server
from delivery.database.engine import Database
from gateway.accounts.vault import associated_data, open_vault
from gateway.store.turns import jobs
from gateway_process import GatewayProcess, gateway

RACE_SECONDS = 5.0
CANARY = b"canary-outside-the-workspace"


async def _token(process: GatewayProcess, job: str) -> str:
    """Return a job's token from the gateway's own database; otherwise only the job's sandbox has it."""
    database = Database(f"sqlite+aiosqlite:///{process.data / 'dovecote.db'}")
    async with database.read() as connection:
        found = await jobs.get_by_id(connection, job)
    await database.close()
    assert found is not None
    vault = open_vault(process.data)
    return vault.decrypt(associated_data("jobs", job, "token"), found.token_sealed.decode())


async def _two_jobs(process: GatewayProcess, mine: ApiClient) -> list[str]:
    for _ in range(2):
        body = {"input": "!& sleep 120", "conversation": "jobs"}
        assert (await mine.call("POST", "/agents/default/turns", body)).status == 202
    async with asyncio.timeout(30):
        while len(items := (await mine.call("GET", "/jobs")).body["items"]) < 2:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    return [str(item["resultId"]) for item in items]


def _wrong(token: str, other: str) -> list[dict[str, str]]:
    """Return headers that are not this token's, though some hold it."""
    basic = base64.b64encode(f"job:{token}".encode()).decode()
    shown = [
        other,
        "wrong",
        token[:-1],
        token + "x",
        token.swapcase(),
        token[::-1],
        f"{token} {token}",
        "x" * 4000,
    ]
    return [
        {},
        *({"Authorization": f"Bearer {text}"} for text in shown),
        {"Authorization": token},
        {"Authorization": f"Basic {basic}"},
        {"Authorization": f"Token {token}"},
        {"X-Job-Token": token},
        {"Proxy-Authorization": f"Bearer {token}"},
    ]


async def test_m19_a_job_ends_by_its_own_token_and_once(tmp_path: Path) -> None:
    """Wrong, foreign, misplaced and cut tokens are one 401, as unknown jobs are; the right one counts."""
    env = {"DOVECOTE_DRAIN_TIMEOUT": "0.2"}
    async with gateway(tmp_path / "data", env=env) as process, aiohttp.ClientSession() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        anonymous = ApiClient(session=session, url=process.url, key="")
        job, other = await _two_jobs(process, mine)
        token, foreign = await _token(process, job), await _token(process, other)
        body = {"exit_code": 0, "output": "forged"}

        async def reported(path: str, shown: dict[str, str]) -> tuple[int, Any]:
            answer = await anonymous.call("POST", path, body, **shown)
            return answer.status, answer.body

        path, unknown = f"/sandbox-jobs/{job}/complete", "/sandbox-jobs/job_nobody/complete"
        refused = [await reported(path, shown) for shown in _wrong(token, foreign)]
        refused += [await reported(f"{path}?token={token}&access_token={token}", {})]
        refused += [await reported(unknown, {"Authorization": f"Bearer {token}"})]
        assert {status for status, _ in refused} == {401}
        assert len({str(problem) for _, problem in refused if problem}) == 1
        in_body = await anonymous.call("POST", path, {**body, "token": token})
        assert in_body.status in (401, 422)
        assert (await mine.call("POST", path, body)).status == 401
        assert (await mine.call("GET", f"/jobs/{job}")).body["state"] == "running"
        own = {"Authorization": f"Bearer {token}"}
        assert (await reported(path, own))[0] == 200
        again = await anonymous.call("POST", path, {"exit_code": 9, "output": "second"}, **own)
        after = (await mine.call("GET", f"/jobs/{job}")).body
        assert again.status == 200
        assert (after["state"], after["exit_code"]) == ("completed", 0)
        assert (await mine.call("GET", f"/jobs/{other}")).body["state"] == "running"
        assert (await mine.call("GET", "/jobs", None, **own)).status == 401


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """A face with one workspace."""
    async with open_api_server(tmp_path) as running:
        yield running


def _race(workspace: Path, outside: Path, stop: threading.Event) -> None:
    """Swap a name in the workspace between a directory and links out of it, as fast as can be."""
    link = workspace / "link"
    while not stop.is_set():
        for target in ("real", str(outside), "../outside", "/proc/self/root", str(outside / "file")):
            link.symlink_to(target)
            link.rename(workspace / "swapped")


async def test_m10_a_racing_link_never_leads_out_over_http(api: ApiServer, tmp_path: Path) -> None:
    """While a directory is swapped for links, no download, listing, upload or removal reaches outside."""
    files = f"{api.url}/accounts/me/workspaces/default/files"
    key = {"Authorization": f"Bearer {api.mine.key}"}
    session = api.mine.session
    async with session.put(f"{files}/real/file", data=BytesIO(b"inside"), headers=key) as answer:
        assert answer.status == 204
    (workspace,) = [path.parents[1] for path in (tmp_path / "workspaces").rglob("real/file")]
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(CANARY)
    stop, seen = threading.Event(), set[bytes]()
    racer = threading.Thread(target=_race, args=(workspace, outside, stop))
    racer.start()
    until, asked = time.monotonic() + RACE_SECONDS, 0
    try:
        while time.monotonic() < until:
            for method, path in (
                ("GET", "file"),
                ("GET", ""),
                ("PUT", "new"),
                ("DELETE", "file/x"),
                ("DELETE", "new"),
            ):
                sent = {"data": BytesIO(b"inside")} if method == "PUT" else {}
                url = f"{files}/swapped/{path}".rstrip("/")
                async with session.request(method, url, headers=key, data=sent) as answer:
                    asked += 1
                    assert answer.status < 500, await answer.text()
                    if method == "GET":
                        seen.add(await answer.read())
    finally:
        stop.set()
        racer.join()
    assert asked > 50
    assert not [body for body in seen if CANARY in body or b'"proc"' in body or b'"etc"' in body]
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_bytes() == CANARY

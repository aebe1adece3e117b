"""G13: `/readyz` is about what the process needs; an account's channels are shown to the account only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from api_server import ApiClient, open_api_server
from gateway.cli.doctor.check import CheckState
from gateway.cli.doctor.local_checks import check_disk
from gateway.config.load import load
from gateway.observability.readiness import Health
from gateway_process import channel_env, gateway
from small_disks import mount_small_disk

PATIENCE = 60.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 64 MB; needs the right to mount."""
    with mount_small_disk(tmp_path / "disk", 64) as place:
        yield place


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a gateway's answer changes."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110 - the answer of another process
            await asyncio.sleep(0.1)


async def test_a_check_can_be_left_out(tmp_path: Path) -> None:
    """With `exclude` the check is still reported; other missing parts count."""
    checks = {"database": "ok", "channels": "not loaded"}

    async def health() -> Health:
        return Health(ready=all(state == "ok" for state in checks.values()), checks=dict(checks))

    async with open_api_server(tmp_path, health=health) as face:
        early = await face.anonymous.call("GET", "/readyz")
        assert (early.status, early.body["status"], early.body["checks"]) == (503, "not ready", checks)
        excused = await face.anonymous.call("GET", "/readyz?exclude=channels")
        assert (excused.status, excused.body["checks"]) == (200, {"database": "ok"})
        assert excused.body["degraded"] == {"channels": "not loaded"}
        assert (await face.anonymous.call("GET", "/readyz?exclude=database")).status == 422
        checks["database"] = "away"
        assert (await face.anonymous.call("GET", "/readyz?exclude=channels")).status == 503


async def test_broken_channels_and_a_full_disk(small_disk: Path) -> None:
    """A broken channel changes only what its account sees; a full disk is named, and space is enough."""
    settings = {"kind": "telegram", "token": "123:wrong", "base_url": "http://127.0.0.1:9", "allow": ["*"]}
    env = channel_env("canary", settings)
    async with gateway(small_disk / "data", env=env) as process, process.http() as session:
        mine = ApiClient(session=session, url=process.url, key=process.key)
        anonymous = ApiClient(session=session, url=process.url, key="")
        (channel,) = (await mine.call("GET", "/accounts/me/channels")).body["items"]

        async def is_broken() -> bool:
            status = await mine.call("GET", f"/accounts/me/channels/{channel['id']}/status")
            assert status.status == 200, status.body
            return bool(status.body["state"] == "trouble" and status.body["reason"])

        await until(is_broken)
        ready = await anonymous.call("GET", "/readyz")
        assert ready.status == 200, ready.body
        assert channel["name"] not in json.dumps(ready.body)
        assert channel["id"] not in json.dumps(ready.body)

        filler = small_disk / "filler"
        await asyncio.to_thread(_fill, filler)

        async def is_unready() -> bool:
            return (await anonymous.call("GET", "/readyz")).status == 503

        await until(is_unready)
        full = await anonymous.call("GET", "/readyz")
        assert full.body["checks"]["disk"] != "ok"
        refused = await _post_until_refused(mine, filler)
        assert "disk" in refused["detail"], refused
        assert "database does not answer" not in refused["detail"]
        filler.unlink()
        await until(lambda: _is_accepted(mine))

        async def is_ready() -> bool:
            return (await anonymous.call("GET", "/readyz")).status == 200

        await until(is_ready)


async def test_workspaces_on_a_disk_of_their_own(tmp_path: Path) -> None:
    """A disk that only reads, or is full, degrades; the doctor names its directory."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    settings = load(env={"DOVECOTE_DATA_DIR": str(data)}, directory=tmp_path)
    with mount_small_disk(data / "workspaces", 32) as disk:
        async with gateway(data) as process, process.http() as session:
            anonymous = ApiClient(session=session, url=process.url, key="")

            async def is_reported(problem: str) -> bool:
                ready = await anonymous.call("GET", "/readyz")
                assert ready.status == 200, ready.body
                return str(ready.body["degraded"].get("disk", "")).startswith(problem)

            assert (await anonymous.call("GET", "/readyz")).body["degraded"] == {}
            assert all(one.state is CheckState.OK for one in check_disk(settings))
            await _remount(disk, "ro")
            await until(lambda: is_reported("workspaces: cannot be used: Read-only"))
            (found,) = [one for one in check_disk(settings) if one.state is CheckState.FAILED]
            assert found.detail == f"{disk}: cannot be used: Read-only file system"
            await _remount(disk, "rw")
            await asyncio.to_thread(_fill, disk / "filler")
            await until(lambda: is_reported("workspaces: cannot be used: No space left"))
            (disk / "filler").unlink()

            async def is_healthy() -> bool:
                return not (await anonymous.call("GET", "/readyz")).body["degraded"]

            await until(is_healthy)


async def _remount(disk: Path, mode: str) -> None:
    remounting = await asyncio.create_subprocess_exec("mount", "-o", f"remount,{mode}", str(disk))
    assert await remounting.wait() == 0


async def _is_accepted(mine: ApiClient) -> bool:
    return (await mine.call("POST", "/agents/default/turns", {"input": "!echo after"})).status == 202


async def _post_until_refused(mine: ApiClient, filler: Path) -> dict[str, str]:
    """Post turns of 150 KB until the database finds no space; returns the problem."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await mine.call("POST", "/agents/default/turns", {"input": f"!true {'x' * 150_000}"})
            if answer.status == 503:
                return dict(answer.body)
            assert answer.status in {202, 429}, answer.body
            await asyncio.to_thread(_fill, filler)


def _fill(filler: Path) -> None:
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"\1" * size)
            except OSError:
                continue

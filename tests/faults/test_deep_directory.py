"""A data directory may lie deeper than the kernel's sockets can be named."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway_process import gateway


async def test_a_job_comes_home_in_a_deep_data_directory(tmp_path: Path) -> None:
    """With more than a hundred bytes of path the gateway starts, and a job's sandbox still reaches it."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    async with gateway(deep / "data", env={"DOVECOTE_RECONCILE_INTERVAL": "15"}) as process:
        body = {"input": "!&echo pigeon", "conversation": "deep"}
        async with process.http() as session, session.post("/agents/default/turns", json=body) as answer:
            assert answer.status == 202
        async with asyncio.timeout(30), process.http() as session, session.ws_connect("/ws") as socket:
            await socket.send_json({"type": "subscribe", "conversation": "deep", "after": 0})
            while (event := await socket.receive_json())["type"] != "job.completed":
                continue
    assert event["data"]["output"] == "pigeon\n"

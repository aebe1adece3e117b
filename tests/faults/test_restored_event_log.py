"""An event log that is put back from a copy, behind the database, or that is damaged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.deployment import large_nats_server
from gateway_process import GatewayProcess, gateway
from turn_requests import is_finished, poll_until, start_turn


async def ask(process: GatewayProcess, conversation: str, text: str = "!echo hi") -> None:
    """Start a turn and wait for its end."""
    turn = await start_turn(process, text, conversation=conversation)
    await poll_until(process, f"/status/{turn['turnId']}", is_finished)


async def test_events_that_an_older_log_lacks_are_published(tmp_path: Path) -> None:
    """At the start, without another event: of a conversation that the log has, and of one that it lacks."""
    data = tmp_path / "data"
    async with gateway(data) as process:
        await ask(process, "one")
        await process.stop()
        shutil.copytree(data / "nats", tmp_path / "older")
        await process.start()
        for conversation in ("one", "two"):
            await ask(process, conversation)
        before = {name: await process.events(name) for name in ("one", "two")}
        await process.stop()
        shutil.rmtree(data / "nats")
        shutil.copytree(tmp_path / "older", data / "nats")
        await process.start()
        await expect_events(process, before)


async def test_the_events_of_a_damaged_log_are_published(tmp_path: Path) -> None:
    """NATS finds no stream in damaged files; the gateway says that the log is another one."""
    data = tmp_path / "data"
    async with gateway(data) as process:
        for conversation in ("one", "two"):
            await ask(process, conversation)
        before = {name: await process.events(name) for name in ("one", "two")}
        await process.stop()
        for file in (data / "nats" / "store").rglob("*"):
            if file.is_file():
                file.write_bytes(b"damaged")
        await process.start()
        await expect_events(process, before)
        assert any("stream.replaced" in line for line in process.log)


@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_events_of_a_damaged_part_of_the_log_are_published_again(tmp_path: Path, index: str) -> None:
    """NATS leaves out what it cannot read, and has the events before and after it."""
    data = tmp_path / "data"
    async with gateway(data, env={"DOVECOTE_EVENT_LOG_BYTES": str(16 * 1024**2)}) as process:
        for number in range(30):  # more than one file of this log takes
            await ask(process, ("one", "two")[number % 2], "!head -c 45000 /dev/urandom | base64 -w 0")
        before = {name: await process.events(name) for name in ("one", "two")}
        await process.stop()
        (messages,) = (data / "nats" / "store").rglob("EVENTS/msgs")
        damage_middle(messages / "1.blk")
        assert (messages / "2.blk").exists()
        if index == "lost":
            (messages / "index.db").unlink()
        await process.start()
        await expect_events(process, before)
        assert any("stream.hole_found" in line for line in process.log)


def damage_middle(file: Path) -> None:
    """Overwrite a few bytes in the middle of a file."""
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = bytes(20)
    file.write_bytes(content)


async def test_events_that_are_lost_while_the_gateway_runs_are_published_again(tmp_path: Path) -> None:
    """A copy replaces the files of the NATS server, as when a volume is put back; the gateway stays."""
    async with AsyncExitStack() as stack:
        server = large_nats_server(tmp_path / "nats")
        stack.push_async_callback(server.stop)
        await server.start()
        url = f"nats://{server.token}@127.0.0.1:{server.port}"
        process = await stack.enter_async_context(gateway(tmp_path / "data", env={"DOVECOTE_NATS_URL": url}))
        await ask(process, "one")
        await server.stop()
        shutil.copytree(tmp_path / "nats" / "store", tmp_path / "older")
        await server.start()
        for conversation in ("one", "two"):
            await ask(process, conversation)
        before = {name: await process.events(name) for name in ("one", "two")}
        await server.stop()
        shutil.rmtree(tmp_path / "nats" / "store")
        shutil.copytree(tmp_path / "older", tmp_path / "nats" / "store")
        await server.start()
        await expect_events(process, before)


async def expect_events(process: GatewayProcess, before: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Wait until conversations have the events that they had."""
    for name, events in before.items():
        wanted = [(event["n"], event["id"]) for event in events]
        async with asyncio.timeout(30):
            found: list[tuple[int, str]] = []
            while found != wanted:
                found = [(event["n"], event["id"]) for event in await process.events(name)]

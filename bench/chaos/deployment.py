"""Set up a chaos run: one or several gateway replicas, their broker and database, Telegram on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from channels.telegram.simulator import Simulator, simulate
from gateway_process import GatewayProcess, channel_env
from nats_servers import NatsServer
from postgres import PostgresCluster, postgres_cluster

KEYS = "a-key-for-two-replicas-of-one-proof"
REPLICAS = {"DOVECOTE_REPLICAS": "2", "DOVECOTE_SHARED_FILES": "true"}
"""Two or more gateways on one database; no turn of a plan reads files that the other replica wrote."""
LONG_QUEUE = {"DOVECOTE_QUEUE_LIMIT": "1000"}
"""People who cannot be answered for minutes wait in line: a refusal would be neither an answer nor a loss."""

READY_WITHIN = 90.0
"""Seconds a replica may take to start on a machine that others use too."""


@dataclass(slots=True, kw_only=True)
class Deployment:
    """The parts that a run drives. `nats` and `database` are None if the gateway has its own."""

    platform: Simulator
    replicas: list[GatewayProcess]
    nats: NatsServer | None = None
    database: PostgresCluster | None = None
    gateway_kills: int = 0
    nats_kills: int = 0
    freezes: int = 0
    recoveries: list[float] = field(default_factory=list)

    async def kill_gateway(self, replica: int) -> None:
        """Kill a replica with SIGKILL and start it again at once; records how long it took to be ready."""
        process = self.replicas[replica]
        await process.kill()
        self.gateway_kills += 1
        begun = asyncio.get_running_loop().time()
        await process.start(wait=False)
        await process.until_ready(READY_WITHIN)
        self.recoveries.append(asyncio.get_running_loop().time() - begun)

    async def freeze_gateway(self, replica: int, seconds: float) -> None:
        """Stop a replica's process for a while with SIGSTOP, and continue it."""
        self.freezes += 1
        pid = self.replicas[replica].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)

    async def kill_nats(self) -> None:
        """Kill the broker with SIGKILL; its gateway restarts an embedded one, the run restarts its own."""
        self.nats_kills += 1
        if self.nats is not None:
            await self.nats.restart()
            return
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            pid = int((self.replicas[0].data / "nats" / "server.pid").read_text())
            os.kill(pid, signal.SIGKILL)

    async def conversations(self) -> dict[int, str]:
        """Return the conversation of each chat."""
        found: dict[int, str] = {}
        async with self.replicas[0].http() as session:
            cursor: str | None = None
            while True:
                query = {"limit": "100", "sort": "created"} | ({"cursor": cursor} if cursor else {})
                async with session.get("/conversations", params=query) as answer:
                    page = await answer.json()
                for item in page["items"]:
                    if item.get("address"):
                        found[int(item["address"]["room"])] = item["id"]
                cursor = page["next"]
                if not cursor:
                    return found

    async def log_of(self, conversation: str) -> list[dict[str, Any]]:
        """Return all lasting events of a conversation."""
        events: list[dict[str, Any]] = []
        seen = 0
        async with self.replicas[0].http() as session:
            while True:
                query = {"after": str(seen), "limit": "500"}
                path = f"/conversations/{conversation}/events"
                async with session.get(path, params=query) as answer:
                    page = await answer.json()
                events += [event for event in page["items"] if "n" in event]
                if not page["items"] or page["items"][-1]["seq"] >= page["last_seq"]:
                    return events
                seen = page["items"][-1]["seq"]

    async def until_relayed(self, conversation: str, *, ended: int, seconds: float = 30.0) -> None:
        """Wait until the stream has so many ended turns; a timeout is silent, because the count shows it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # Asked over HTTP as anybody would; there is no event to wait for.
                while sum(event["type"] in _ENDS for event in await self.log_of(conversation)) < ended:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)


_ENDS = frozenset({"turn.completed", "turn.failed", "turn.cancelled"})


@asynccontextmanager
async def open_deployment(
    directory: Path,
    *,
    replicas: int,
    env: Mapping[str, str] | None = None,
    upgrade_from: Path | None = None,
) -> AsyncIterator[Deployment]:
    """Run one embedded gateway, or several replicas over PostgreSQL and a nats-server of their own.

    `upgrade_from` is a checkout of an earlier version, which a replica runs until its first kill.
    """
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(simulate())
        shared = (
            telegram_settings(platform) | {"DOVECOTE_LOG_LEVEL": "warning", **LONG_QUEUE} | dict(env or {})
        )
        nats: NatsServer | None = None
        database: PostgresCluster | None = None
        if replicas > 1:
            database = stack.enter_context(postgres_cluster())
            nats = large_nats_server(directory / "nats")
            await nats.start()
            stack.push_async_callback(nats.stop)
            shared |= {
                "DOVECOTE_NATS_URL": nats.url.replace("://", f"://{nats.token}@"),
                "DOVECOTE_DATABASE_URL": database.create_database(),
                "DOVECOTE_SECRET_KEYS": KEYS,
                **REPLICAS,
            }
        processes = [GatewayProcess(directory / f"replica{place}", env=shared) for place in range(replicas)]
        for process in processes:
            stack.callback(_keep_log, process)
            stack.push_async_callback(process.stop)
            await process.start(env=_code_of(upgrade_from), wait=False)
            await process.until_ready(READY_WITHIN)
        yield Deployment(platform=platform, replicas=processes, nats=nats, database=database)


def _code_of(checkout: Path | None) -> dict[str, str]:
    """Return the environment in which Python imports the packages of a checkout; None: the installed ones."""
    return {} if checkout is None else {"PYTHONPATH": str(checkout.resolve(strict=True))}


def _keep_log(process: GatewayProcess) -> None:
    """Collect what a replica logged over all its starts."""
    process.data.with_suffix(".log").write_text("\n".join(process.log))


def telegram_settings(platform: Simulator) -> dict[str, str]:
    """Return the settings of a Telegram channel on the simulator that is open to everybody."""
    return channel_env("telegram", platform.settings())


def large_nats_server(directory: Path) -> NatsServer:
    """Return a nats-server of our own with room for the gateway's streams as they are by default."""
    jetstream = {
        "store_dir": str(directory / "store"),
        "max_memory_store": 64_000_000,
        "max_file_store": 8_000_000_000,
        "sync_interval": "1s",
    }
    return NatsServer(directory, settings={"jetstream": jetstream})

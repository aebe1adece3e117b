"""The rig of a chaos run: one or two gateway replicas, their broker and database, Telegram on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway_process import GatewayProcess
from nats_servers import NatsServer
from postgres import cluster

from channels.telegram.simulator import Simulator, simulate

KEYS = "a-key-for-two-replicas-of-one-proof"


@dataclass(slots=True, kw_only=True)
class Rig:
    """What a run drives. `nats` is None when the gateway embeds its own."""

    platform: Simulator
    replicas: list[GatewayProcess]
    nats: NatsServer | None = None
    gateway_kills: int = 0
    nats_kills: int = 0
    recoveries: list[float] = field(default_factory=list)

    async def kill_gateway(self, replica: int) -> None:
        """Kill -9 a replica and start it again at once; remembers how long it took to be ready."""
        process = self.replicas[replica]
        await process.kill()
        self.gateway_kills += 1
        begun = asyncio.get_running_loop().time()
        await process.start()
        self.recoveries.append(asyncio.get_running_loop().time() - begun)

    async def kill_nats(self) -> None:
        """Kill -9 the broker; an embedded one is started again by its gateway, ours by us."""
        self.nats_kills += 1
        if self.nats is not None:
            await self.nats.kill()
            await self.nats.start()
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
                query = {"limit": "100"} | ({"cursor": cursor} if cursor else {})
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
        async with self.replicas[0].http() as session:
            while True:
                query = {"after": str(events[-1]["seq"] if events else 0), "limit": "500"}
                path = f"/conversations/{conversation}/events"
                async with session.get(path, params=query) as answer:
                    page = await answer.json()
                events += [event for event in page["items"] if "n" in event]
                if not page["items"] or page["items"][-1]["seq"] >= page["last_seq"]:
                    return events


@asynccontextmanager
async def rig(directory: Path, *, replicas: int, env: Mapping[str, str] | None = None) -> AsyncIterator[Rig]:
    """Run one embedded gateway, or two replicas over PostgreSQL and a nats-server of their own."""
    async with AsyncExitStack() as stack:
        platform = await stack.enter_async_context(simulate())
        channel = {
            f"DOVECOTE_CHANNELS__TELEGRAM__{name.upper()}": "*" if name == "allow" else str(value)
            for name, value in platform.settings().items()
        }
        shared = channel | {"DOVECOTE_LOG_LEVEL": "warning"} | dict(env or {})
        nats: NatsServer | None = None
        if replicas > 1:
            nats = NatsServer(directory / "nats")
            await nats.start()
            stack.push_async_callback(nats.stop)
            database = stack.enter_context(cluster()).fresh()
            shared |= {
                "DOVECOTE_NATS_URL": nats.url.replace("://", f"://{nats.token}@"),
                "DOVECOTE_DATABASE_URL": database,
                "DOVECOTE_SECRET_KEYS": KEYS,
            }
        processes = [GatewayProcess(directory / f"replica{place}", env=shared) for place in range(replicas)]
        for process in processes:
            stack.push_async_callback(process.stop)
            await process.start()
        yield Rig(platform=platform, replicas=processes, nats=nats)

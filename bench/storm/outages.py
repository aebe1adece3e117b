"""The outages of a storm: replicas are killed and stopped, NATS, PostgreSQL and the platform fail."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bench.chaos.deployment import READY_WITHIN, Deployment
from bench.storm.plan import StormPlan
from gateway_process import GatewayProcess

FAULT_PAUSE_SECONDS = (1.0, 4.0)
RECOVERY_SECONDS = 20.0
"""How long requests may be refused after the database returns: connections are opened again."""


@dataclass(slots=True, kw_only=True)
class Outages:
    """Causes the outages of a plan at equal distances, and knows who is away."""

    deployment: Deployment
    plan: StormPlan
    refusals_until: float = field(default=0.0, init=False)
    """Until when a gateway may refuse requests because its database was away."""

    stopping: set[GatewayProcess] = field(default_factory=set, init=False)

    def may_refuse(self, process: GatewayProcess) -> bool:
        """Whether a gateway may refuse a request at this moment: it stops, starts, or has no database."""
        is_down = process in self.stopping or not process.ready.is_set()
        return is_down or time.monotonic() < self.refusals_until

    def start(self, group: asyncio.TaskGroup, end: float) -> None:
        """Start every kind of outage."""
        plan = self.plan
        group.create_task(self._repeat(plan.kills, self._kill_gateway))
        group.create_task(self._repeat(plan.restarts, self._restart_gateway))
        group.create_task(self._repeat(plan.nats_kills, lambda _: self.deployment.kill_nats()))
        group.create_task(self._repeat(plan.database_restarts, self._restart_database))
        group.create_task(self._break_platform(end))

    async def _repeat(self, times: int, cause: Callable[[int], Awaitable[None]]) -> None:
        for number in range(times):
            await asyncio.sleep(self.plan.seconds / (times + 1))
            await cause(number)

    async def _kill_gateway(self, number: int) -> None:
        """Kill a replica with SIGKILL."""
        await self.deployment.kill_gateway(number % len(self.deployment.replicas))

    async def _restart_gateway(self, number: int) -> None:
        """Stop a replica with SIGTERM, the last one first, and start it again."""
        process = self.deployment.replicas[-1 - number % len(self.deployment.replicas)]
        self.stopping.add(process)
        await process.stop()
        await process.start(wait=False)
        await process.until_ready(READY_WITHIN)
        self.stopping.discard(process)

    async def _restart_database(self, _: int) -> None:
        """Stop PostgreSQL at once, as a crash does, and start it again."""
        database = self.deployment.database
        if database is None:
            return
        self.refusals_until = float("inf")
        await asyncio.to_thread(database.stop)
        await asyncio.to_thread(database.resume)
        self.refusals_until = time.monotonic() + RECOVERY_SECONDS

    async def _break_platform(self, end: float) -> None:
        """Have the platform of the chats fail, drop connections and answer late."""
        chosen, platform = random.Random(self.plan.seed), self.deployment.platform
        while time.monotonic() < end:
            await asyncio.sleep(chosen.uniform(*FAULT_PAUSE_SECONDS))
            kind = chosen.choice(("error", "rate limit", "cut before", "cut after", "late"))
            match kind:
                case "error":
                    await platform.fail(502)
                case "rate limit":
                    await platform.fail(429, retry_after=1)
                case "late":
                    await platform.answer_late(2.0)
                case _:
                    await platform.cut(after=kind == "cut after")
        await platform.well()

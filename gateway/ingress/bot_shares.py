"""The share of the bots for which this replica receives, among all replicas that receive.

Every replica announces itself by a lease, and each bot belongs to the replica that ranks first for it
(rendezvous hashing). A replica that joins or leaves therefore moves its own share only. The lease of the bot
still decides who receives; a share says who should ask for it first.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress

import structlog

from delivery.background import log_errors
from delivery.broker.port import Leases
from delivery.errors import DeliveryError

log = structlog.get_logger(__name__)

KIND = "r"
"""The kind of the leases by which replicas announce that they receive."""

POLL_SECONDS = 1.0
_RETRY_SECONDS = 0.2


class BotShares:
    """This replica's share, by the names of bots; `replica` is unique among the processes.

    Until the others are known, no bot belongs to this replica.
    """

    def __init__(self, leases: Leases, *, replica: str, ttl: float) -> None:
        self._leases = leases
        self._replica = replica
        self._ttl = ttl
        self._replicas: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        """Be one of the replicas that receive until `stop`, and learn of the others."""
        announcing = asyncio.create_task(self._announce())
        try:
            while not stop.is_set():
                await self._look_up()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await stop.wait()
        finally:
            announcing.cancel()
            await asyncio.wait({announcing})

    async def _announce(self) -> None:
        while True:
            with log_errors("bot_shares.announce"), suppress(DeliveryError):  # the broker is away
                async with self._leases.acquire(f"{KIND}:{self._replica}", ttl=self._ttl) as lease:
                    await lease.wait_lost()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _look_up(self) -> None:
        with log_errors("bot_shares.look_up"), suppress(DeliveryError):  # the shares stay as they are
            held = await self._leases.list_held(KIND)
            self._update(frozenset(name.removeprefix(f"{KIND}:") for name in held) | {self._replica})

    def _update(self, replicas: frozenset[str]) -> None:
        if replicas == self._replicas:
            return
        log.info("bot_shares.changed", replicas=len(replicas), before=len(self._replicas))
        self._replicas = replicas
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def owns(self, bot: str) -> bool:
        """Return whether a bot belongs to this replica."""
        first = max(self._replicas, key=lambda replica: _rank(replica, bot), default=None)
        return first == self._replica

    def next_change(self) -> asyncio.Event:
        """Return the event that is set when a replica joins or leaves from now on."""
        return self._changed

    async def wait_to_hand_over(self, bot: str, changed: asyncio.Event) -> None:
        """Return when another replica should receive for a bot that this one receives for.

        `changed` is the next change after this replica decided to receive. If the owner has left the bot
        alone, this replica goes on until then: an owner that cannot connect would get it again and again.
        """
        while True:
            await changed.wait()
            changed = self._changed
            if not self.owns(bot):
                return


def _rank(replica: str, bot: str) -> bytes:
    return hashlib.sha256(f"{replica}\x1f{bot}".encode()).digest()

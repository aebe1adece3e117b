"""The guard: one replica at a time works on a sandbox, by an expiring, renewed and fenced lease.

Within one process any number of calls share the lease; whoever wants the sandbox alone (to suspend, save or
delete it) gets it only when nobody uses it. Where no other process can be alive, no lease is written.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from sandbox.errors import Busy, Unreachable

LOOK_EVERY = 0.1
RENEWALS = 3
MARGIN = 0.1
"""The part of a lease's life at the end of which it is no longer believed in."""


class Leases(Protocol):
    """The leases' rows. A lease ends by itself `ttl` seconds after it was taken or renewed."""

    @abstractmethod
    async def take(self, label: str, *, ttl: float) -> int | None:
        """Take the lease if nobody else has it; returns its fence, which grows each time, or None.

        Asked only while this process does not hold it: one that stands under our name is a leftover.
        """

    @abstractmethod
    async def renew(self, label: str, fence: int, *, ttl: float) -> bool:
        """Go on holding it; False when somebody else has taken it since."""

    @abstractmethod
    async def leave(self, label: str, fence: int) -> None:
        """Give it up, if it is still ours."""


@dataclass(slots=True)
class _Hold:
    """What this process does with one sandbox."""

    users: int = 0
    alone: bool = False
    fence: int | None = None
    until: float = 0.0
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Guard:
    """Lets calls to sandboxes through. `leases` None: this process is the only one.

    `patience` bounds how long a call waits for another replica, and for whoever has the sandbox alone.
    """

    def __init__(self, leases: Leases | None = None, *, ttl: float = 30.0, patience: float = 60.0) -> None:
        self._leases = leases
        self._ttl = ttl
        self._patience = patience
        self._holds: dict[str, _Hold] = {}
        self._doubts = 0
        self._doubted = asyncio.Event()

    def doubt(self) -> None:
        """Look now whether what this process holds is still its own: others may have taken it for dead."""
        self._doubts += 1
        self._doubted.set()
        self._doubted = asyncio.Event()

    @asynccontextmanager
    async def use(self, label: str) -> AsyncIterator[None]:
        """Share the sandbox with the other calls of this process; raises Busy when that takes too long.

        A lease that is lost on the way ends the call inside with Unreachable: nothing more is written.
        """
        hold = await self._enter(label, alone=False, patience=self._patience)
        try:
            async with self._renewed(label, hold):
                yield
        finally:
            hold.users -= 1
            await self._leave(label, hold)

    @asynccontextmanager
    async def alone(self, label: str, *, patience: float = 0.0) -> AsyncIterator[None]:
        """Have the sandbox to oneself; raises Busy when somebody uses it."""
        hold = await self._enter(label, alone=True, patience=patience)
        try:
            async with self._renewed(label, hold):
                yield
        finally:
            hold.alone = False
            await self._leave(label, hold)

    async def _enter(self, label: str, *, alone: bool, patience: float) -> _Hold:
        deadline = time.monotonic() + patience
        while True:
            hold = self._holds.setdefault(label, _Hold())
            if await self._try(label, hold, alone=alone):
                return hold
            if time.monotonic() >= deadline:
                raise Busy
            await asyncio.sleep(LOOK_EVERY)

    async def _try(self, label: str, hold: _Hold, *, alone: bool) -> bool:
        async with hold.changing:
            if hold is not self._holds.get(label) or hold.alone or (alone and hold.users):
                return False
            if self._leases is not None and hold.fence is None:
                asked = time.monotonic()
                hold.fence = await self._leases.take(label, ttl=self._ttl)
                hold.until = asked + self._ttl
                if hold.fence is None:
                    self._forget(label, hold)
                    return False
            hold.alone = alone
            hold.users += not alone
            return True

    async def _leave(self, label: str, hold: _Hold) -> None:
        async with hold.changing:
            if hold.users or hold.alone:
                return
            self._forget(label, hold)
            if self._leases is not None and hold.fence is not None:
                await self._leases.leave(label, hold.fence)

    def _forget(self, label: str, hold: _Hold) -> None:
        if self._holds.get(label) is hold:
            del self._holds[label]

    @asynccontextmanager
    async def _renewed(self, label: str, hold: _Hold) -> AsyncIterator[None]:
        if self._leases is None:
            yield
            return
        try:
            async with asyncio.timeout(None) as bound:
                renewing = asyncio.create_task(self._renew(label, hold, bound))
                try:
                    yield
                finally:
                    renewing.cancel()
                    with suppress(asyncio.CancelledError):
                        await renewing
        except TimeoutError:
            if bound.expired():
                raise Unreachable("the right to work on the sandbox was lost; the call was ended") from None
            raise

    async def _renew(self, label: str, hold: _Hold, bound: asyncio.Timeout) -> None:
        """Renew until cancelled; a lease that cannot be renewed ends what runs under it."""
        assert self._leases is not None
        doubts = self._doubts
        while True:
            if doubts == self._doubts:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._ttl / RENEWALS):
                        await self._doubted.wait()
            doubted, doubts = doubts != self._doubts, self._doubts
            asked = time.monotonic()
            old = hold.until - asked < self._ttl * (1 - 1 / RENEWALS) + MARGIN
            if (old or doubted) and not await self._renew_once(label, hold, asked):
                bound.reschedule(asyncio.get_running_loop().time())
                return

    async def _renew_once(self, label: str, hold: _Hold, asked: float) -> bool:
        assert self._leases is not None
        assert hold.fence is not None
        try:
            async with asyncio.timeout(self._ttl / RENEWALS):
                if not await self._leases.renew(label, hold.fence, ttl=self._ttl):
                    return False
        except (TimeoutError, Unreachable):
            return time.monotonic() < hold.until - self._ttl * MARGIN
        hold.until = asked + self._ttl
        return True

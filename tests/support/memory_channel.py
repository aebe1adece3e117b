"""A chat platform in memory behind the channel port: rooms that people can read, and trouble on demand."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from channels.errors import Ambiguous, ChannelError, Rejected, Unsupported
from channels.message import Address, Command, File, Press, Reply, Sent
from channels.port import Channel


@dataclass(slots=True)
class MemoryChannel(Channel):
    """Keeps what was said in each room; raises the next of `trouble` instead of taking a call.

    `lost_answers`: so many calls are carried out and then reported as Ambiguous. While `frozen` is set, a
    call waits on it.
    """

    trouble: deque[ChannelError] = field(default_factory=deque)
    rooms: dict[str, dict[str, Reply]] = field(default_factory=lambda: defaultdict(dict))
    calls: list[tuple[str, Reply]] = field(default_factory=list)
    lost_answers: int = 0
    frozen: asyncio.Event | None = None
    called: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def texts(self, room: str) -> list[str]:
        """Return what a person in the room reads, in order."""
        return [reply.text for reply in self.rooms[room].values()]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the rooms or calls holds; raises TimeoutError."""
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def _take(self, call: str, reply: Reply) -> None:
        self.calls.append((call, reply))
        self.called.set()
        self.changed.set()
        if self.frozen is not None:
            await self.frozen.wait()
        if self.trouble:
            raise self.trouble.popleft()

    def _answer(self) -> None:
        self.changed.set()
        if self.lost_answers:
            self.lost_answers -= 1
            raise Ambiguous

    async def send(self, address: Address, reply: Reply) -> Sent:
        """Add a message to the room."""
        await self._take("send", reply)
        platform_id = str(len(self.rooms[address.room]) + 1)
        self.rooms[address.room][platform_id] = reply
        self._answer()
        return Sent(platform_id=platform_id)

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> Sent:
        """Make a message show something else."""
        await self._take("edit", reply)
        if platform_id not in self.rooms[address.room]:
            raise Rejected("message to edit not found")
        self.rooms[address.room][platform_id] = reply
        self._answer()
        return Sent(platform_id=platform_id)

    async def typing(self, address: Address) -> None:
        """Count as a call."""
        await self._take("typing", Reply(text="", key=""))

    async def upload(self, address: Address, file: File, *, key: str) -> Sent:
        """Refuse: not a feature."""
        raise Unsupported

    async def _nothing(self) -> AsyncIterator[bytes]:
        raise Unsupported
        yield b""

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Refuse: not a feature."""
        return self._nothing()

    async def answer(self, to: Press | Command, text: str) -> None:
        """Refuse: not a feature."""
        raise Unsupported

"""A chat platform in memory behind the channel port: rooms that people can read, and trouble on demand."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime

from channels.errors import Ambiguous, ChannelError, Rejected, Unsupported
from channels.message import Address, Command, File, Press, Reply, Sent, Showing
from channels.port import Channel


@dataclass(slots=True)
class MemoryChannel(Channel):
    """Keeps what was said in each room; raises the next of `trouble` instead of taking a call.

    `lost_answers`: so many calls are carried out and then reported as Ambiguous. While `frozen` is set, a
    call waits on it. `previews`: what is shown is no message and is gone with the next one. An edit of what
    was shown ends the showing, and gives the message an id of its own.
    """

    trouble: deque[ChannelError] = field(default_factory=deque)
    rooms: dict[str, dict[str, Reply]] = field(default_factory=lambda: defaultdict(dict))
    calls: list[tuple[str, Reply]] = field(default_factory=list)
    showings: list[Showing] = field(default_factory=list)
    preview: str = ""
    previews: bool = False
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
        self.preview = ""
        platform_id = str(len(self.rooms[address.room]) + 1)
        self.rooms[address.room][platform_id] = reply
        self._answer()
        return Sent(platform_id=platform_id)

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> Sent:
        """Make a message show something else."""
        await self._take("edit", reply)
        room = self.rooms[address.room]
        ended = platform_id.removeprefix("showing ")
        if platform_id not in room and ended not in room:
            raise Rejected("message to edit not found")
        room.pop(platform_id, None)
        platform_id = ended
        room[platform_id] = reply
        self._answer()
        return Sent(platform_id=platform_id)

    async def show(self, address: Address, showing: Showing) -> Sent | None:
        """Show a preview, or a message that only grows: what it showed stays, the rest is added."""
        await self._take("show", Reply(text=showing.text, key=showing.key))
        self.showings.append(showing)
        if self.previews:
            self.preview = showing.text
            self._answer()
            return None
        room = self.rooms[address.room]
        platform_id = showing.platform_id or f"showing {len(room) + 1}"
        before = room[platform_id].text if platform_id in room else ""
        more = showing.text.removeprefix(before) if showing.text.startswith(before) else f" / {showing.text}"
        room[platform_id] = Reply(text=before + more, key=showing.key)
        self._answer()
        return Sent(platform_id=platform_id)

    async def find(self, address: Address, key: str, *, since: datetime) -> Sent | None:
        """Look the key up in the room."""
        await self._take("find", Reply(text=since.isoformat(), key=key))
        room = self.rooms[address.room]
        return next((Sent(platform_id=one) for one, reply in room.items() if reply.key == key), None)

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

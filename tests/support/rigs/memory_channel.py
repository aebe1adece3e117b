"""A chat platform in memory behind the channel port: rooms that tests can read, and errors on demand."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime

from channels.errors import Ambiguous, ChannelError, Rejected, Unsupported
from channels.message import (
    Address,
    ButtonPress,
    Command,
    DraftText,
    File,
    Reply,
    SentMessage,
    ToolSteps,
)
from channels.port import Sender


@dataclass(slots=True)
class MemoryChannel(Sender):
    """Stores the messages of each room; raises the next of `errors` instead of accepting a call.

    `lost_answers`: so many calls are carried out and then reported as Ambiguous. While `frozen` is set, a
    call waits on it. `previews`: what is shown is no message and is gone with the next one. An edit of what
    was shown ends the showing, and gives the message an id of its own.
    """

    errors: deque[ChannelError] = field(default_factory=deque)
    rooms: dict[str, dict[str, Reply]] = field(default_factory=lambda: defaultdict(dict))
    calls: list[tuple[str, Reply]] = field(default_factory=list)
    draft_updates: list[DraftText] = field(default_factory=list)
    step_updates: list[ToolSteps] = field(default_factory=list)
    reactions: list[tuple[str, str, str]] = field(default_factory=list)
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
        async with asyncio.timeout(30):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def _record_call(self, call: str, reply: Reply) -> None:
        self.calls.append((call, reply))
        self.called.set()
        self.changed.set()
        if self.frozen is not None:
            await self.frozen.wait()
        if self.errors:
            raise self.errors.popleft()

    def _finish_call(self) -> None:
        self.changed.set()
        if self.lost_answers:
            self.lost_answers -= 1
            raise Ambiguous

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction to a message of the room."""
        if self.errors:
            raise self.errors.popleft()
        self.reactions.append((address.room, platform_id, emoji))

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Add a message to the room."""
        await self._record_call("send", reply)
        self.preview = ""
        platform_id = str(len(self.rooms[address.room]) + 1)
        self.rooms[address.room][platform_id] = reply
        self._finish_call()
        return SentMessage(platform_id=platform_id)

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Make a message show something else."""
        await self._record_call("edit", reply)
        room = self.rooms[address.room]
        ended = platform_id.removeprefix("showing ")
        if platform_id not in room and ended not in room:
            raise Rejected("message to edit not found")
        room.pop(platform_id, None)
        platform_id = ended
        room[platform_id] = reply
        self._finish_call()
        return SentMessage(platform_id=platform_id)

    async def update_draft(self, address: Address, draft: DraftText) -> SentMessage | None:
        """Show a preview, or a message that only grows: what it showed stays, the rest is added."""
        await self._record_call("show", Reply(text=draft.text, key=draft.key))
        self.draft_updates.append(draft)
        if self.previews:
            self.preview = draft.text
            self._finish_call()
            return None
        room = self.rooms[address.room]
        platform_id = draft.platform_id or f"showing {len(room) + 1}"
        before = room[platform_id].text if platform_id in room else ""
        more = draft.text.removeprefix(before) if draft.text.startswith(before) else f" / {draft.text}"
        room[platform_id] = Reply(text=before + more, key=draft.key)
        self._finish_call()
        return SentMessage(platform_id=platform_id)

    async def delete(self, address: Address, platform_id: str) -> None:
        """Remove a message."""
        await self._record_call("delete", Reply(text=platform_id, key=""))
        self.rooms[address.room].pop(platform_id, None)
        self._finish_call()

    async def show_steps(self, address: Address, steps: ToolSteps) -> SentMessage | None:
        """Show the steps as the lines of one message."""
        text = "\n".join(f"{step.title} {step.state}" for step in steps.steps)
        await self._record_call("steps", Reply(text=text, key=steps.key))
        self.step_updates.append(steps)
        if self.previews:
            return None
        room = self.rooms[address.room]
        platform_id = steps.platform_id or f"steps {len(room) + 1}"
        room[platform_id] = Reply(text=text, key=steps.key)
        self._finish_call()
        return SentMessage(platform_id=platform_id)

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Look the key up in the room."""
        await self._record_call("find", Reply(text=since.isoformat(), key=key))
        room = self.rooms[address.room]
        return next((SentMessage(platform_id=one) for one, reply in room.items() if reply.key == key), None)

    async def typing(self, address: Address) -> None:
        """Count as a call."""
        await self._record_call("typing", Reply(text="", key=""))

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Refuse: not a feature."""
        raise Unsupported

    async def _nothing(self) -> AsyncIterator[bytes]:
        raise Unsupported
        yield b""

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Refuse: not a feature."""
        return self._nothing()

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Refuse: not a feature."""
        raise Unsupported

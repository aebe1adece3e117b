"""What an app remembers to catch up after a gap: its rooms, its threads, and until when it received.

A room is noted when its first message arrives, a thread when the bot first writes there. After a gap each of
them is noted as unread until it was read. The notes are hints: losing one loses only what was said there
during a gap.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import structlog

from channels.message import Address
from channels.port import RECENT_PREFIX, ChannelState
from channels.receiving.bounded_dict import BoundedDict
from channels.slack.workspaces import ENTERPRISE, TEAM, find_place

ROOM_PREFIX, TEAM_PREFIX = "room:", "team:"
THREAD_PREFIX, OWNER_PREFIX = f"{RECENT_PREFIX}thread:", f"{RECENT_PREFIX}thread-owner:"
RECEIVED_UNTIL = "received-until"
MAX_REMEMBERED = 10_000
MAX_THREADS = 200
"""Threads that are read after a gap, the newest first."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadLocation:
    """A room of a workspace, or a thread in it."""

    room: str
    thread: str = ""
    team: str = ""
    enterprise: str = ""

    @classmethod
    def of(cls, address: Address, *, thread: str = "") -> ThreadLocation:
        """Return the room of an address, or a thread in it."""
        return cls(room=address.room, thread=thread, **find_place(address))

    def encode(self) -> str:
        """Return the location as text, for `decode`."""
        return f"{self.enterprise}|{self.team}|{self.room}|{self.thread}"

    @classmethod
    def decode(cls, text: str) -> ThreadLocation:
        """Return the location that `encode` wrote."""
        enterprise, team, room, thread = (*text.split("|"), "", "", "", "")[:4]
        return cls(room=room, thread=thread, team=team, enterprise=enterprise)


class ThreadLocations:
    """The stored rooms and threads of one app."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state
        self._noted = BoundedDict[str, None](MAX_REMEMBERED)

    async def note_room(self, address: Address) -> None:
        """Note the room of a message."""
        await self._note(ROOM_PREFIX + ThreadLocation.of(address).encode())

    async def note_thread(self, address: Address) -> None:
        """Note a thread in which the bot writes."""
        if not address.thread:
            return
        try:
            await self._note(THREAD_PREFIX + ThreadLocation.of(address, thread=address.thread).encode())
            if owner := "|".join(find_place(address).values()).rstrip("|"):
                await self._note(f"{OWNER_PREFIX}{address.room}|{address.thread}", owner)
        except Exception as error:  # noqa: BLE001 - a message is sent whether or not it is noted
            log.warning("slack.thread_save_failed", error=repr(error))

    async def note_team(self, person: str, team: str) -> None:
        """Note the workspace of a person of another one (Slack Connect), as streams for them name it."""
        await self._note(TEAM_PREFIX + person, team)

    async def rooms(self) -> list[ThreadLocation]:
        """Return the noted rooms."""
        found = await self._state.list(ROOM_PREFIX)
        return [ThreadLocation.decode(name.removeprefix(ROOM_PREFIX)) for name in found]

    async def threads(self) -> list[ThreadLocation]:
        """Return the newest of the noted threads."""
        found = await self._state.list(THREAD_PREFIX)
        return [ThreadLocation.decode(name.removeprefix(THREAD_PREFIX)) for name in list(found)[:MAX_THREADS]]

    async def owner_of(self, room: str, thread: str) -> dict[str, str]:
        """Return the workspace whose bot writes in a thread, as `SlackWorkspaces.find` takes it."""
        team, _, enterprise = (await self._state.get(f"{OWNER_PREFIX}{room}|{thread}") or "").partition("|")
        return {TEAM: team, ENTERPRISE: enterprise} if team or enterprise else {}

    async def received_until(self) -> float | None:
        """Return when the app last received, None if it never did."""
        noted = await self._state.get(RECEIVED_UNTIL)
        return float(noted) if noted else None

    async def set_received(self) -> None:
        """Note that the app receives now, and that what it missed before is noted as unread."""
        await self._state.set({RECEIVED_UNTIL: f"{time.time():.0f}"})

    async def _note(self, name: str, value: str = "1") -> None:
        """Store a name with a value once in this process."""
        if name in self._noted:
            return
        await self._state.set({name: value})
        self._noted[name] = None

"""Catch up after a gap: read the messages since then, and pass them on as if they had just arrived.

Slack repeats an event for some minutes. After a longer gap the noted rooms and threads are unread from the
moment until which the app received, and their histories are read beside the connection. Each room is noted as
unread until it was read, so that a failure or a restart loses nothing. A message has the same key in both
ways, so it counts once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from channels.errors import ChannelError, NotPermitted
from channels.inbox.text import text_at, to_number
from channels.receiving.attempts import repeat_when_limited
from channels.receiving.unread_rooms import RETRY_SECONDS, UnreadRooms
from channels.slack.addresses import room_kind_of
from channels.slack.thread_locations import ThreadLocation, ThreadLocations
from channels.slack.workspaces import SlackWorkspaces, Workspace

GAP_SECONDS = 120.0
"""A gap from which on the histories are read; for a shorter one Slack repeats the events."""

NOTE_SECONDS = 30.0
OVERLAP_SECONDS = 120.0
PAGE_SIZE, MAX_PAGES = 200, 10
READ_SECONDS = (0.0, *RETRY_SECONDS)
"""Seconds before each attempt to read the unread rooms."""

Dispatch = Callable[[dict[str, Any]], Awaitable[bool]]
"""Store the body of an event; return whether it was stored."""

log = structlog.get_logger(__name__)


class CatchUp:
    """Notes what an app missed, reads it beside the connection, and notes until when the app received."""

    def __init__(self, workspaces: SlackWorkspaces, locations: ThreadLocations, unread: UnreadRooms) -> None:
        self._workspaces = workspaces
        self._locations = locations
        self._unread = unread

    async def begin(self) -> None:
        """Note the rooms and threads in which something was missed, if the gap was long."""
        await self._unread.load()
        since = await self._locations.received_until()
        if since is not None and time.time() - since >= GAP_SECONDS:
            await self._unread.put(await self._missed_since(since - OVERLAP_SECONDS))
        await self._locations.set_received()

    async def read(self, dispatch: Dispatch) -> None:
        """Read the unread rooms, each in its order, until cancelled."""

        async def read_room(room: str, note: str) -> None:
            count = 0
            for place, since in json.loads(note).items():
                count += await self._read_location(ThreadLocation.decode(place), since, dispatch)
            log.info("slack.room_read", room=room, messages=count)

        await self._unread.run(read_room)

    async def note_receiving(self, is_receiving: Callable[[], bool]) -> None:
        """Note every half minute that the app receives, until cancelled."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            try:
                if is_receiving():
                    await self._locations.set_received()
            except Exception as error:  # noqa: BLE001 - a note that cannot be stored is stored later
                log.warning("slack.position_not_stored", error=repr(error))

    async def _missed_since(self, since: float) -> dict[str, str]:
        """Return a note for each room: its location and those of its threads, each with its time."""
        places: dict[str, dict[str, float]] = {}
        for location in [*await self._locations.rooms(), *await self._locations.threads()]:
            places.setdefault(location.room, {})[location.encode()] = since
        return {
            room: json.dumps(missed | json.loads(self._unread.note(room) or "{}"))
            for room, missed in places.items()
        }

    async def _read_location(self, location: ThreadLocation, since: float, dispatch: Dispatch) -> int:
        """Read a room or thread, return the number of its messages; skip what the bot may not read."""
        workspace = await self._workspaces.find(team=location.team, enterprise=location.enterprise)
        if workspace is None:
            return 0
        try:
            found = await self._find_messages(workspace, location, since)
        except ChannelError as error:
            if error.remedy != "give_up" and not isinstance(error, NotPermitted):
                raise
            log.warning("slack.room_not_readable", room=location.room, error=str(error))
            return 0
        for ts in sorted(found, key=to_number):
            if to_number(ts) > since and not await dispatch(_event_body(workspace, location.room, found[ts])):
                raise ConnectionError("a message that was missed cannot be stored")
        return len(found)

    async def _find_messages(
        self, workspace: Workspace, location: ThreadLocation, since: float
    ) -> dict[str, dict[str, Any]]:
        """Return the messages of a room or thread since a time, and those of the threads begun in it."""
        found = {str(one.get("ts")): one async for one in self._messages(workspace, location, since)}
        for ts, message in list(found.items()):
            if not location.thread and message.get("reply_count"):
                thread = ThreadLocation(room=location.room, thread=ts)
                found |= {str(one.get("ts")): one async for one in self._messages(workspace, thread, since)}
        return found

    async def _messages(
        self, workspace: Workspace, location: ThreadLocation, since: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of a room or thread since a time."""
        method = "conversations.replies" if location.thread else "conversations.history"
        thread = {"ts": location.thread} if location.thread else {}
        asked = {"channel": location.room, **thread, "oldest": f"{since:.6f}", "limit": PAGE_SIZE}
        cursor: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            call = partial(workspace.api.call, method, {**asked, **cursor})
            page = await repeat_when_limited(call)
            for message in page.get("messages") or ():
                if isinstance(message, dict):
                    yield message
            following = text_at(page, "response_metadata", "next_cursor")
            if not following:
                return
            cursor = {"cursor": following}
        log.warning("slack.catch_up_incomplete", room=location.room)


def workspace_of(note: str) -> str:
    """Return the workspace of a room's note: rate limits of one hold up no other."""
    location = ThreadLocation.decode(next(iter(json.loads(note))))
    return f"{location.enterprise}|{location.team}"


def _event_body(workspace: Workspace, room: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of a history as the body of the event that Slack sent or would have sent."""
    kind = {"channel_type": "im"} if room_kind_of(room, None) == "direct" else {}
    owner = {"team_id": workspace.bot.team, "enterprise_id": workspace.bot.enterprise or None}
    event = {**message, "type": "message", "channel": room, **kind}
    return {"type": "event_callback", **owner, "event": event}

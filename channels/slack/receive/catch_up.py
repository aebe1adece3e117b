"""Catch up after a gap: read the messages since then, and pass it on as if it had just arrived.

Slack repeats an event for some minutes. After a longer gap the histories of the noted rooms and threads are
read from the moment until which the app received. A message has the same key in both ways, so it counts once.
Each room and thread is noted as unread until it was read, so that a failure or a restart loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import structlog

from channels.errors import ChannelError, NotPermitted, RateLimited
from channels.slack.addresses import room_kind_of
from channels.slack.receive.backoff import BACKOFF_SECONDS
from channels.slack.thread_locations import ThreadLocation, ThreadLocations
from channels.slack.workspaces import SlackWorkspaces, Workspace

GAP_SECONDS = 120.0
"""A gap from which on the histories are read; for a shorter one Slack repeats the events."""

NOTE_SECONDS = 30.0
OVERLAP_SECONDS = 120.0
CATCH_UP_SECONDS = 600.0
PAGE_SIZE, MAX_PAGES = 200, 10
RETRY_SECONDS = BACKOFF_SECONDS[:5]
"""Seconds between attempts to read a page that Slack fails to give."""

Dispatch = Callable[[dict[str, Any]], Awaitable[bool]]
"""Store the body of an event; return whether it was stored."""

log = structlog.get_logger(__name__)


class CatchUp:
    """Catches up when the app receives again, and notes while it does."""

    def __init__(
        self,
        workspaces: SlackWorkspaces,
        locations: ThreadLocations,
        *,
        pauses: Sequence[float] = RETRY_SECONDS,
        limit_seconds: float = CATCH_UP_SECONDS,
    ) -> None:
        self._workspaces = workspaces
        self._locations = locations
        self._pauses = pauses
        self._limit_seconds = limit_seconds

    async def run(self, dispatch: Dispatch) -> None:
        """Read what was missed, if the gap was long, or is still unread; later messages wait until then."""
        since = await self._locations.received_until()
        if since is not None and time.time() - since >= GAP_SECONDS:
            await self._locations.set_unread(since - OVERLAP_SECONDS)
        else:
            await self._locations.set_received()
        try:
            async with asyncio.timeout(self._limit_seconds):
                await self._read_all(dispatch)
        except TimeoutError:
            log.warning("slack.catch_up_incomplete", limit_seconds=self._limit_seconds)

    async def note_receiving(self, is_receiving: Callable[[], bool]) -> None:
        """Note every half minute that the app receives, until cancelled."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            try:
                if is_receiving():
                    await self._locations.set_received()
            except Exception as error:  # noqa: BLE001 - a note that cannot be stored is stored later
                log.warning("slack.position_not_stored", error=repr(error))

    async def _read_all(self, dispatch: Dispatch) -> None:
        """Read all unread rooms and threads, each in its order; what cannot be read now stays unread."""
        unread, count = await self._locations.unread(), 0
        for location, since in unread.items():
            try:
                count += await self._read_location(location, since, dispatch)
            except ChannelError as error:
                log.warning("slack.catch_up_failed", room=location.room, error=str(error))
                if error.remedy != "give_up" and not isinstance(error, NotPermitted):
                    continue
            await self._locations.set_read(location)
        if unread:
            log.info("slack.catch_up_completed", messages=count)

    async def _read_location(self, location: ThreadLocation, since: float, dispatch: Dispatch) -> int:
        workspace = await self._workspaces.find(team=location.team, enterprise=location.enterprise)
        if workspace is None:
            return 0
        found = {str(one.get("ts")): one async for one in self._messages(workspace, location, since)}
        for ts, message in list(found.items()):
            if not location.thread and message.get("reply_count"):
                thread = ThreadLocation(room=location.room, thread=ts)
                found |= {str(one.get("ts")): one async for one in self._messages(workspace, thread, since)}
        for ts in sorted(found, key=_seconds):
            if _seconds(ts) > since and not await dispatch(_event_body(workspace, location.room, found[ts])):
                raise ConnectionError("a message that was missed cannot be stored")
        return len(found)

    async def _messages(
        self, workspace: Workspace, location: ThreadLocation, since: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the messages of a room or thread since a time."""
        method = "conversations.replies" if location.thread else "conversations.history"
        thread = {"ts": location.thread} if location.thread else {}
        asked = {"channel": location.room, **thread, "oldest": f"{since:.6f}", "limit": PAGE_SIZE}
        cursor = ""
        for _ in range(MAX_PAGES):
            page = await self._call(workspace, method, {**asked, **({"cursor": cursor} if cursor else {})})
            for message in page.get("messages") or ():
                if isinstance(message, dict):
                    yield message
            cursor = str((page.get("response_metadata") or {}).get("next_cursor") or "")
            if not cursor:
                return
        log.warning("slack.catch_up_incomplete", room=location.room)

    async def _call(self, workspace: Workspace, method: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Call a method as slowly as Slack asks, and some times again if Slack fails; raises ChannelError."""
        pauses = iter(self._pauses)
        while True:
            try:
                return await workspace.api.call(method, asked)
            except RateLimited as limit:
                pause = limit.retry_after
            except ChannelError as error:
                pause = next(pauses, -1.0) if error.remedy == "retry" else -1.0
                if pause < 0:
                    raise
            await asyncio.sleep(pause)


def _event_body(workspace: Workspace, room: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of a history as the body of the event that Slack sent or would have sent."""
    kind = {"channel_type": "im"} if room_kind_of(room, None) == "direct" else {}
    owner = {"team_id": workspace.bot.team, "enterprise_id": workspace.bot.enterprise or None}
    event = {**message, "type": "message", "channel": room, **kind}
    return {"type": "event_callback", **owner, "event": event}


def _seconds(ts: str) -> float:
    try:
        return float(ts)
    except ValueError:
        return 0.0

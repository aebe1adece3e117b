"""Catch up after a gap: read what was said meanwhile, and pass it on as if it had just arrived.

Slack repeats an event for some minutes. After a longer gap the histories of the noted rooms and threads are
read from the moment until which the app received. A message has the same key in both ways, so it counts once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from channels.errors import ChannelError, RateLimited
from channels.slack.addresses import room_kind_of
from channels.slack.places import Place, Places
from channels.slack.workspaces import Workspace, Workspaces

GAP_SECONDS = 120.0
"""A gap from which on the histories are read; for a shorter one Slack repeats the events."""

NOTE_SECONDS = 30.0
OVERLAP_SECONDS = 120.0
CATCH_UP_SECONDS = 600.0
PAGE_SIZE, MAX_PAGES = 200, 10

Dispatch = Callable[[dict[str, Any]], Awaitable[bool]]
"""Store the body of an event; return whether it was stored."""

log = logging.getLogger(__name__)


class CatchUp:
    """Catches up when the app receives again, and notes while it does."""

    def __init__(self, workspaces: Workspaces, places: Places) -> None:
        self._workspaces = workspaces
        self._places = places

    async def run(self, dispatch: Dispatch) -> None:
        """Read what was missed, if the gap was long; later messages wait until then."""
        since = await self._places.received_until()
        if since is not None and time.time() - since >= GAP_SECONDS:
            try:
                async with asyncio.timeout(CATCH_UP_SECONDS):
                    await self._read_all(since - OVERLAP_SECONDS, dispatch)
            except TimeoutError:
                log.warning("slack.catch_up_incomplete: it took longer than %d s", CATCH_UP_SECONDS)
        await self._places.set_received()

    async def note_receiving(self, is_receiving: Callable[[], bool]) -> None:
        """Note every half minute that the app receives, until cancelled."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            try:
                if is_receiving():
                    await self._places.set_received()
            except Exception as error:  # noqa: BLE001 - a note that cannot be stored is stored later
                log.warning("slack.position_not_stored: %r", error)

    async def _read_all(self, since: float, dispatch: Dispatch) -> None:
        """Read all noted rooms and threads, each in its order."""
        count = 0
        for place in [*await self._places.rooms(), *await self._places.threads()]:
            try:
                count += await self._read_place(place, since, dispatch)
            except ChannelError as error:
                log.warning("slack.catch_up_failed: room %s: %s", place.room, error)
        log.info("slack.caught_up: %d messages", count)

    async def _read_place(self, place: Place, since: float, dispatch: Dispatch) -> int:
        workspace = await self._workspaces.find(team=place.team, enterprise=place.enterprise)
        if workspace is None:
            return 0
        found = {str(one.get("ts")): one async for one in _messages(workspace, place, since)}
        for ts, message in list(found.items()):
            if not place.thread and message.get("reply_count"):
                thread = Place(room=place.room, thread=ts)
                found |= {str(one.get("ts")): one async for one in _messages(workspace, thread, since)}
        for ts in sorted(found, key=_seconds):
            if _seconds(ts) > since and not await dispatch(_event_body(workspace, place.room, found[ts])):
                raise ConnectionError("a message that was missed cannot be stored")
        return len(found)


async def _messages(workspace: Workspace, place: Place, since: float) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of a room or thread since a time."""
    method = "conversations.replies" if place.thread else "conversations.history"
    thread = {"ts": place.thread} if place.thread else {}
    asked = {"channel": place.room, **thread, "oldest": f"{since:.6f}", "limit": PAGE_SIZE}
    cursor = ""
    for _ in range(MAX_PAGES):
        page = await _call(workspace, method, {**asked, **({"cursor": cursor} if cursor else {})})
        for message in page.get("messages") or ():
            if isinstance(message, dict):
                yield message
        cursor = str((page.get("response_metadata") or {}).get("next_cursor") or "")
        if not cursor:
            return
    log.warning("slack.catch_up_incomplete: room %s has more messages", place.room)


async def _call(workspace: Workspace, method: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Call a method, as slowly as Slack asks."""
    while True:
        try:
            return await workspace.api.call(method, asked)
        except RateLimited as limit:
            await asyncio.sleep(limit.retry_after)


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

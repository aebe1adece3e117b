"""Read GitHub's log of webhook deliveries: all of them when polling, the failed ones after a gap.

GitHub does not repeat a delivery that failed, and keeps the log for three days. So the log is read from the
stored position on, and what was not answered with 2xx is received from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from channels.github.api import Api
from channels.github.settings import GitHubSettings
from channels.github.threads import EVENTS
from channels.inbox.polling import UpdateFeed
from channels.inbox.text import clean, iso_time, mapping
from channels.port import ChannelState

POSITION = "deliveries:position"
MAX_PAGES = 30
MAX_ROWS = 100
"""Deliveries that are fetched before the position is stored."""

IN_PROGRESS_SECONDS = 15
"""GitHub waits 10 s for an answer; younger deliveries may still be in progress in webhook mode."""

_SUCCESS = range(200, 300)


class WebhookDeliveries(UpdateFeed):
    """The deliveries after the stored position, oldest first."""

    def __init__(self, api: Api, settings: GitHubSettings, state: ChannelState) -> None:
        self._api = api
        self._state = state
        self._polls = settings.mode == "polling"
        self._position: int | None = None
        self.pause = settings.poll_seconds if self._polls else settings.catch_up_seconds

    async def start(self) -> None:
        """Load the position; a new channel begins after the deliveries there are now."""
        stored = await self._state.get(POSITION) or ""
        if stored.isdecimal():
            self._position = int(stored)
            return
        newest, _ = await self._api.as_app_paged("/app/hook/deliveries?per_page=1")
        self._position = max(map(_id_of, newest), default=0)
        await self._state.set({POSITION: str(self._position)})

    async def fetch(self) -> Sequence[Mapping[str, Any]]:
        """Return the deliveries to receive, each as {id, event, delivery, payload}."""
        await self.start()  # another replica may have moved the position
        updates = []
        for row in sorted(await self._rows(), key=_id_of)[:MAX_ROWS]:
            is_wanted = row.get("event") in (*EVENTS, "repository")
            has_arrived = not self._polls and row.get("status_code") in _SUCCESS
            payload = None
            if is_wanted and not has_arrived:
                path = "/app/hook/deliveries/{id}"
                detail = mapping(await self._api.as_app("GET", path, id=str(_id_of(row))))
                payload = mapping(detail.get("request")).get("payload")
            envelope = {"event": row.get("event"), "delivery": clean(row.get("guid")), "payload": payload}
            updates.append({"id": _id_of(row), **envelope})
        return updates

    async def confirm(self, raw: Mapping[str, Any]) -> None:
        """Store the position."""
        await self._state.set({POSITION: str(raw["id"])})
        self._position = raw["id"]

    async def _rows(self) -> list[Mapping[str, Any]]:
        """Return the log's rows after the position."""
        rows: list[Mapping[str, Any]] = []
        path = "/app/hook/deliveries?per_page=100"
        for _ in range(MAX_PAGES):
            page, following = await self._api.as_app_paged(path)
            known = [mapping(row) for row in page]
            rows += [row for row in known if _id_of(row) > (self._position or 0) and self._has_ended(row)]
            if following is None or any(_id_of(row) <= (self._position or 0) for row in known):
                break
            path = following
        return rows

    def _has_ended(self, row: Mapping[str, Any]) -> bool:
        age = datetime.now(UTC) - iso_time(row.get("delivered_at"))
        return self._polls or age.total_seconds() > IN_PROGRESS_SECONDS


def _id_of(row: object) -> int:
    number = mapping(row).get("id")
    return number if isinstance(number, int) else 0

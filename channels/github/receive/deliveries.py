"""Read GitHub's log of webhook deliveries: all of them when polling, the failed ones after a gap.

GitHub does not repeat a delivery that failed, and keeps the log for three days. So the log is read from the
stored position on, and what was not answered with 2xx is received from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from channels.github.api import Api
from channels.github.settings import GitHubSettings
from channels.github.threads import SUBJECTS
from channels.inbox.polling import PositionFeed, load_in_order, log, or_nothing
from channels.inbox.receiver import Complete
from channels.inbox.text import clean, integer_id, iso_time, mapping
from channels.port import ChannelState

MAX_LOG_ROWS = 2900
"""Rows of the log that are read, from the newest on; earlier ones are given up."""

MAX_ROWS = 100
"""Deliveries that are fetched before the position is stored."""

IN_PROGRESS = timedelta(seconds=15)
"""GitHub waits 10 s for an answer; younger deliveries may still be in progress in webhook mode."""

_PATH = "/app/hook/deliveries"


class WebhookDeliveries(PositionFeed):
    """The deliveries after the stored position, oldest first."""

    position_name = "deliveries:position"

    def __init__(self, api: Api, settings: GitHubSettings, state: ChannelState, complete: Complete) -> None:
        super().__init__(state, settings.pause_seconds)
        self._api = api
        self._settings = settings
        self._complete = complete

    async def prepare(self) -> None:
        """Tell GitHub where to post, if the gateway knows its URL."""
        url, secret = self._settings.webhook_url, self._settings.posting_secret
        if url and secret:
            config = {"url": url, "content_type": "json", "secret": secret.get_secret_value()}
            await self._api.call("PATCH", "/app/hook/config", config)

    async def newest(self) -> str:
        """Return the id of the latest delivery."""
        return str(integer_id(await anext(self._api.rows(f"{_PATH}?per_page=1"), {})))

    async def fetch(self) -> Sequence[Mapping[str, Any]]:
        """Return the deliveries to receive, each as {id, event, delivery, payload}."""
        rows = sorted(await self._rows_after(int(await self.start())), key=integer_id)
        return await load_in_order(rows[:MAX_ROWS], self._load)

    async def confirm(self, raw: Mapping[str, Any]) -> None:
        """Store the position."""
        await self.move(str(raw["id"]))

    async def _rows_after(self, position: int) -> list[Mapping[str, Any]]:
        """Return the log's rows after a position."""
        rows: list[Mapping[str, Any]] = []
        async for row in self._api.rows(f"{_PATH}?per_page=100"):
            if integer_id(row) <= position:
                break
            if len(rows) == MAX_LOG_ROWS:
                log.warning("github.deliveries_expired", before=row.get("delivered_at"))
                break
            age = datetime.now(UTC) - iso_time(row.get("delivered_at"))
            rows += [row] if self._settings.polls or age > IN_PROGRESS else []
        return rows

    async def _load(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a delivery, with the payload of an event that is wanted and has not arrived."""
        number, event, detail = integer_id(row), clean(row.get("event")), mapping(None)
        has_arrived = self._settings.takes_posts and row.get("status_code") in range(200, 300)
        if event.startswith((*SUBJECTS, "repository", "installation")) and not has_arrived:
            detail = mapping(await or_nothing(self._api.call("GET", f"{_PATH}/{{id}}", id=str(number))))
        payload = mapping(detail.get("request")).get("payload")
        found = {"id": number, "event": event, "delivery": clean(row.get("guid")), "payload": payload}
        return mapping(await self._complete(found))

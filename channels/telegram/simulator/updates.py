"""Deliver updates to the bot: by long poll, or posted to a webhook until it answers 2xx."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientSession, ClientTimeout

from channels.telegram.simulator.failure import ApiFailure, bad_request
from channels.telegram.simulator.world import Raw, World

POST_TIMEOUT_SECONDS = 10.0
BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between attempts to post; Telegram's own are longer."""


class Updates:
    """Delivers a world's updates."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._poller = 0
        self._webhook = ""
        self._secret = ""
        self._failure: Raw = {}
        self.posts = 0

    async def poll(self, *, offset: int, limit: int, seconds: int) -> list[Raw]:
        """Return updates from `offset` on, waiting up to `seconds`; a newer poll ends an older one."""
        if self._webhook:
            raise ApiFailure(
                409,
                "Conflict: can't use getUpdates method while webhook is active; "
                "use deleteWebhook to delete the webhook first",
            )
        self._poller += 1
        mine = self._poller
        self._world.confirm(offset)
        await self._world.notify_changed()
        try:
            async with asyncio.timeout(min(max(seconds, 0), 50)):
                await self._world.wait_until(lambda: bool(self._world.updates) or self._poller != mine)
        except TimeoutError:
            return []
        if self._poller != mine:
            raise ApiFailure(
                409,
                "Conflict: terminated by other getUpdates request; "
                "make sure that only one bot instance is running",
            )
        return self._world.pending(min(max(limit, 1), 100))

    async def set_webhook(self, url: str, secret: str) -> None:
        """Set or remove the webhook; raises ApiFailure for one Telegram would refuse."""
        parts = urlsplit(url)
        if url and parts.scheme != "https" and parts.hostname not in {"127.0.0.1", "localhost", "::1"}:
            raise bad_request("bad webhook: An HTTPS URL must be provided for webhook")
        if secret and not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", secret):
            raise bad_request("secret token contains unallowed characters")
        self._webhook, self._secret, self._failure = url, secret, {}
        self._poller += bool(url)
        await self._world.notify_changed()

    def info(self) -> Raw:
        """Return the WebhookInfo."""
        return {
            "url": self._webhook,
            "has_custom_certificate": False,
            "pending_update_count": len(self._world.updates),
            **({"allowed_updates": self._world.kinds} if self._world.kinds else {}),
            **self._failure,
        }

    def store(self, name: str, content: bytes) -> Raw:
        """Store a file; return the fields that all kinds of files share."""
        number = f"file-{secrets.token_hex(8)}"
        self._world.files[number] = (f"files/{number}/{name or 'file'}", content)
        return {"file_id": number, "file_unique_id": number, "file_size": len(content)}

    async def run_webhook(self) -> None:
        """Post updates one after the other, until cancelled."""
        failures = 0
        async with ClientSession(timeout=ClientTimeout(total=POST_TIMEOUT_SECONDS)) as session:
            while True:
                await self._world.wait_until(lambda: bool(self._webhook and self._world.updates))
                number, update = next(iter(self._world.updates.items()))
                problem = await self._post(session, update)
                if problem:
                    self._failure = {"last_error_date": int(time.time()), "last_error_message": problem}
                    await asyncio.sleep(BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)])
                    failures += 1
                else:
                    failures = 0
                    self._world.updates.pop(number, None)
                await self._world.notify_changed()

    async def _post(self, session: ClientSession, update: Raw) -> str:
        """Post one update; return the error, or ""."""
        headers = {"X-Telegram-Bot-Api-Secret-Token": self._secret} if self._secret else {}
        self.posts += 1
        try:
            async with session.post(
                self._webhook, json=update, headers=headers, allow_redirects=False
            ) as response:
                well = 200 <= response.status < 300  # noqa: PLR2004 - success is any 2xx
                return "" if well else f"Wrong response from the webhook: {response.status} {response.reason}"
        except (ClientError, OSError, TimeoutError) as error:
            return f"Connection failed: {type(error).__name__}"

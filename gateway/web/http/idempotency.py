"""`Idempotency-Key`: a repeated POST is processed once, and gets the first response again.

Stored responses are encrypted, because they can contain keys and secrets.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from aiohttp import web

from delivery.background import run_shielded
from delivery.database.clock import utc_now
from gateway.accounts.vault import AssociatedData, associated_data
from gateway.store.accounts import idempotency as store
from gateway.web.http.context import WebContext
from gateway.web.http.problems import HttpProblem, invalid_field

HEADER = "header/Idempotency-Key"
_KEY_PATTERN = re.compile(r"^[\x21-\x7e]{1,200}$")
_ABANDONED_AFTER = timedelta(seconds=60)
_REPLICA_GRACE = timedelta(seconds=10)
"""Time after which a request of a replica that seems dead is taken over; it may have lost only NATS."""
_POLL_SECONDS = 0.05
_STORED_STATUS_BELOW = 400

RunRequest = Callable[[], Awaitable[web.Response]]
RunStream = Callable[[], Awaitable[web.StreamResponse]]


def parse_key(request: web.Request) -> str | None:
    """Return the request's idempotency key, if it is a POST with one; 422 for a malformed one."""
    if request.method != "POST":
        return None
    response = request.headers.getall("Idempotency-Key", [])
    if not response:
        return None
    if len(response) > 1 or not _KEY_PATTERN.match(response[0]):
        raise invalid_field(HEADER, "an Idempotency-Key is 1 to 200 visible ASCII characters")
    return response[0]


def request_digest(request: web.Request, body: bytes) -> str:
    """Return the digest that two identical requests share."""
    request_bytes = b"\n".join([request.method.encode(), request.path_qs.encode(), body])
    return hashlib.sha256(request_bytes).hexdigest()


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request with an Idempotency-Key."""

    context: WebContext
    account: str
    key: str
    digest: str

    async def run(self, run_request: RunRequest) -> web.Response:
        """Process the request, or return the stored response of the first one with this key."""
        if not await self._claim():
            earlier = await self._wait_for_first()
            if earlier is not None:
                return earlier
        try:
            response = await run_request()
        except BaseException:
            await run_shielded(self._release())
            raise
        await self._save(response)
        return response

    async def join(self, run_stream: RunStream) -> web.StreamResponse:
        """Process a request for a stream; its handler finds the turn of the first one with this key."""
        is_first = await self._claim()
        if not is_first:
            async with self.context.database.read() as connection:
                self._require_same(await store.get(connection, self.account, self.key))
        try:
            return await run_stream()
        except HttpProblem:
            if is_first:
                await self._release()
            raise

    def _require_same(self, row: store.IdempotencyRow | None) -> None:
        if row is not None and row.digest != self.digest:
            raise invalid_field(HEADER, "this Idempotency-Key was used for a different request")

    async def _claim(self) -> bool:
        database, holder = self.context.database, self._holder
        return await store.claim(database, self.account, self.key, self.digest, holder=holder)

    @property
    def _holder(self) -> str | None:
        return self.context.presence.name if self.context.presence is not None else None

    async def _wait_for_first(self) -> web.Response | None:
        """Return the first request's response once it exists; None when this request takes over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.context.limits.idempotency_wait
        while loop.time() < until:
            async with self.context.database.read() as connection:
                row = await store.get(connection, self.account, self.key)
            self._require_same(row)
            if row is not None and row.status is not None:
                return self._replay(row)
            if await self._take_over(row):
                return None
            await asyncio.sleep(_POLL_SECONDS)
        raise HttpProblem(
            409, "the first request with this key is still in progress", headers={"Retry-After": "2"}
        )

    async def _take_over(self, row: store.IdempotencyRow | None) -> bool:
        """Claim the key of a first request that was refused or whose process died."""
        if row is None:
            return await self._claim()
        if not await self._is_abandoned(row):
            return False
        async with self.context.database.begin() as connection:
            return await store.reclaim(
                connection, self.account, self.key, since=row.created_at, holder=self._holder
            )

    async def _is_abandoned(self, row: store.IdempotencyRow) -> bool:
        alone_since, presence = self.context.sole_process_since, self.context.presence
        if alone_since is not None and row.created_at < alone_since:
            return True
        age = abs(utc_now() - row.created_at)  # a clock that was fast has written a time ahead
        if presence is None or row.holder is None:
            return age >= _ABANDONED_AFTER
        is_dead = age >= _REPLICA_GRACE and await presence.is_dead(row.holder)
        return is_dead or presence.is_own_earlier_boot(row.holder) or age >= _ABANDONED_AFTER

    def _associated_data(self) -> AssociatedData:
        return associated_data("replies", self.account or "operator", self.key)

    def _replay(self, row: store.IdempotencyRow) -> web.Response:
        text = self.context.records.vault.decrypt(self._associated_data(), row.body) if row.body else ""
        return web.Response(
            status=row.status or 200,
            body=text.encode(),
            content_type="application/json" if text else None,
            headers={"Idempotency-Replayed": "true", "Cache-Control": "no-store"},
        )

    async def _save(self, response: web.Response) -> None:
        if response.status >= _STORED_STATUS_BELOW:
            await self._release()
            return
        raw = response.body if isinstance(response.body, bytes) else b""
        sealed = (
            self.context.records.vault.encrypt(self._associated_data(), raw.decode()).encode() if raw else b""
        )
        async with self.context.database.begin() as connection:
            await store.save(connection, self.account, self.key, status=response.status, body=sealed)

    async def _release(self) -> None:
        async with self.context.database.begin() as connection:
            await store.release(connection, self.account, self.key)

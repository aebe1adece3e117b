"""`Idempotency-Key`: the same POST twice is carried out once, and answered twice the same.

The answer is kept sealed, because it may hold a key or a secret that is told once.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from aiohttp import web

from delivery.database.clock import utc_now
from gateway.accounts.vault import Context, context
from gateway.store.accounts import idempotency as store
from gateway.web.http.context import Surface
from gateway.web.http.problems import Problem, misplaced

HEADER = "header/Idempotency-Key"
_FORM = re.compile(r"^[\x21-\x7e]{1,200}$")
_ABANDONED = timedelta(seconds=60)
_LINGERING = timedelta(seconds=10)
"""How long a request may be at work in a replica that seems to be gone, but may only miss the broker."""
_LOOK_AGAIN = 0.05
_STORED_BELOW = 400

Perform = Callable[[], Awaitable[web.Response]]


def key_of(request: web.Request) -> str | None:
    """Return the request's idempotency key, if it is a POST with one; 422 for a malformed one."""
    if request.method != "POST":
        return None
    given = request.headers.getall("Idempotency-Key", [])
    if not given:
        return None
    if len(given) > 1 or not _FORM.match(given[0]):
        raise misplaced(HEADER, "an Idempotency-Key is 1 to 200 visible ASCII characters")
    return given[0]


def digest_of(request: web.Request, body: bytes) -> str:
    """Return what makes two requests the same one."""
    whole = b"\n".join([request.method.encode(), request.path_qs.encode(), body])
    return hashlib.sha256(whole).hexdigest()


@dataclass(frozen=True, slots=True)
class Once:
    """One request under its key."""

    surface: Surface
    account: str
    key: str
    digest: str

    async def answer(self, perform: Perform) -> web.Response:
        """Carry the request out, or answer as the first one with this key was answered."""
        if not await self._claim():
            earlier = await self._earlier()
            if earlier is not None:
                return earlier
        try:
            given = await perform()
        except BaseException:
            await asyncio.shield(self._release())
            raise
        await self._keep(given)
        return given

    async def _claim(self) -> bool:
        database, holder = self.surface.database, self._holder
        return await store.claim(database, self.account, self.key, self.digest, holder=holder)

    @property
    def _holder(self) -> str | None:
        return self.surface.presence.name if self.surface.presence is not None else None

    async def _earlier(self) -> web.Response | None:
        """Return the first request's answer once there is one; None when this one takes its place."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.surface.bounds.idempotency_wait
        while loop.time() < until:
            async with self.surface.database.read() as connection:
                kept = await store.find(connection, self.account, self.key)
            if kept is not None and kept.digest != self.digest:
                raise misplaced(HEADER, "this Idempotency-Key was used for a different request")
            if kept is not None and kept.status is not None:
                return self._replayed(kept)
            if await self._replaces(kept):
                return None
            await asyncio.sleep(_LOOK_AGAIN)
        raise Problem(409, "the first request with this key is still at work", headers={"Retry-After": "2"})

    async def _replaces(self, kept: store.Kept | None) -> bool:
        """Take the place of a first request that was refused or died."""
        if kept is None:
            return await self._claim()
        if not await self._is_abandoned(kept):
            return False
        async with self.surface.database.begin() as connection:
            return await store.take_over(
                connection, self.account, self.key, since=kept.created_at, holder=self._holder
            )

    async def _is_abandoned(self, kept: store.Kept) -> bool:
        alone_since, presence = self.surface.alone_since, self.surface.presence
        if alone_since is not None and kept.created_at < alone_since:
            return True
        age = utc_now() - kept.created_at
        if presence is None or kept.holder is None:
            return age >= _ABANDONED
        gone = age >= _LINGERING and await presence.is_gone(kept.holder)
        return gone or presence.is_past(kept.holder) or age >= _ABANDONED

    def _where(self) -> Context:
        return context("replies", self.account or "operator", self.key)

    def _replayed(self, kept: store.Kept) -> web.Response:
        text = self.surface.book.vault.reveal(self._where(), kept.body) if kept.body else ""
        return web.Response(
            status=kept.status or 200,
            body=text.encode(),
            content_type="application/json" if text else None,
            headers={"Idempotency-Replayed": "true", "Cache-Control": "no-store"},
        )

    async def _keep(self, given: web.Response) -> None:
        if given.status >= _STORED_BELOW:
            await self._release()
            return
        raw = given.body if isinstance(given.body, bytes) else b""
        sealed = self.surface.book.vault.seal(self._where(), raw.decode()).encode() if raw else b""
        async with self.surface.database.begin() as connection:
            await store.keep(connection, self.account, self.key, status=given.status, body=sealed)

    async def _release(self) -> None:
        async with self.surface.database.begin() as connection:
            await store.release(connection, self.account, self.key)

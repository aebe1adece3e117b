"""The tokens of an Official Account: an access token of about 25 hours, renewed by a token used once.

Each renewal gives the next refresh token. It is stored among the channel's state, encrypted with a key made
from the app's secret, so that a restart and other replicas find it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import TypeVar

import aiohttp
import structlog
from cryptography.fernet import Fernet, InvalidToken

from channels.errors import ChannelError, RateLimited, Unauthorized
from channels.inbox.calls import call, parse_seconds
from channels.inbox.text import clean, identifier, mapping
from channels.inbox.tokens import TokenCache
from channels.port import ChannelState
from channels.zalo.errors import RETRY_SECONDS
from channels.zalo.settings import ZaloSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")

HOLDER = "oa"
RENEW_SECONDS = 600.0
STORE_SECONDS = 0.5
"""Seconds after which another replica, which has used the refresh token, has stored the next one."""

DEFAULT_LIFE_SECONDS = 90_000.0
PIECE = 900
"""Characters of one value of the channel's state."""


class ZaloAccessTokens:
    """The access token of one Official Account; its repr shows none."""

    def __init__(self, session: aiohttp.ClientSession, settings: ZaloSettings, state: ChannelState) -> None:
        self._session = session
        self._settings = settings
        self._state = state
        self._unstored = ""
        """The newest refresh token while storing it fails; Zalo accepts no other."""
        self._cache = TokenCache(self._renew, early=RENEW_SECONDS)
        if settings.access_token is not None:
            self._cache.put(HOLDER, settings.access_token.get_secret_value())

    async def use(self, call: Callable[[str], Awaitable[T]]) -> T:
        """Make a call with a valid access token; raises Unauthorized if no refresh token is accepted."""
        if self._unstored:
            await self._store(self._unstored)
        return await self._cache.use(HOLDER, call)

    async def _renew(self, _holder: str) -> tuple[str, float]:
        """Return a new access token and its seconds."""
        settings, tried = self._settings, set()
        if settings.refresh_token is None or settings.app_secret is None:
            raise Unauthorized("access_token has ended: set a new one, or refresh_token and app_secret")
        async for token in self._list_refresh_tokens(settings.refresh_token.get_secret_value()):
            renewed = await self._try(token) if token and token not in tried else None
            if renewed is not None:
                return renewed
            tried.add(token)
        raise Unauthorized("Zalo refuses the refresh token: authorize the Official Account again")

    async def _list_refresh_tokens(self, given: str) -> AsyncIterator[str]:
        """Yield the tokens that may be valid, the last one when another replica has had time to store it."""
        yield self._unstored
        yield await self._load()
        yield given
        await asyncio.sleep(STORE_SECONDS)
        yield await self._load()

    async def _try(self, token: str) -> tuple[str, float] | None:
        settings = self._settings
        assert settings.app_secret is not None
        response = await call(
            self._session,
            "POST",
            f"{settings.oauth_url}/v4/oa/access_token",
            what="oa/access_token",
            headers={"secret_key": settings.app_secret.get_secret_value()},
            data={"refresh_token": token, "app_id": settings.app_id, "grant_type": "refresh_token"},
        )
        answer = mapping(response.json)
        access, following = clean(answer.get("access_token")), clean(answer.get("refresh_token"))
        if response.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise RateLimited(response.retry_after or RETRY_SECONDS, scope="account")
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR or response.json is None:
            raise ChannelError(f"oa/access_token: HTTP {response.status}, and no tokens")
        if not access or not following:
            return None
        await self._store(following)
        return access, parse_seconds(identifier(answer.get("expires_in"))) or DEFAULT_LIFE_SECONDS

    async def _load(self) -> str:
        pieces = await self._state.list("refresh:")
        sealed = "".join(pieces[name] for name in sorted(pieces))
        try:
            return self._cipher().decrypt(sealed.encode()).decode()
        except (InvalidToken, ValueError):
            return ""

    async def _store(self, token: str) -> None:
        sealed = self._cipher().encrypt(token.encode()).decode()
        pieces = [sealed[start : start + PIECE] for start in range(0, 9 * PIECE, PIECE)]
        self._unstored = token
        try:
            await self._state.set({f"refresh:{number}": piece for number, piece in enumerate(pieces)})
        except Exception as error:  # noqa: BLE001 - any state error; the next call tries again
            log.warning("zalo.refresh_token_not_stored", error=repr(error))
        else:
            self._unstored = ""

    def _cipher(self) -> Fernet:
        secret = self._settings.app_secret.get_secret_value() if self._settings.app_secret else ""
        return Fernet(base64.urlsafe_b64encode(hashlib.sha256(f"zalo:{secret}".encode()).digest()))

"""The tokens of an Official Account: an access token of about 25 hours, renewed by a token used once.

Each renewal gives the next refresh token. It is stored among the channel's state, encrypted with a key made
from the app's secret, so that a restart and other replicas find it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import time

import aiohttp
from cryptography.fernet import Fernet, InvalidToken

from channels.errors import ChannelError, Unauthorized
from channels.inbox.calls import call
from channels.inbox.text import clean, mapping
from channels.port import ChannelState
from channels.zalo.settings import ZaloSettings

RENEW_SECONDS = 600.0
DEFAULT_LIFE_SECONDS = 90_000.0
PIECE = 900
"""Characters of one value of the channel's state."""


class AccessTokens:
    """The access token of one Official Account; its repr shows none."""

    def __init__(self, session: aiohttp.ClientSession, settings: ZaloSettings, state: ChannelState) -> None:
        self._session = session
        self._settings = settings
        self._state = state
        self._access = settings.access_token.get_secret_value() if settings.access_token else ""
        self._expires_at = float("inf")
        self._renewal = asyncio.Lock()

    async def get(self) -> str:
        """Return a valid access token; raises ChannelError."""
        if not self._access or self._expires_at - time.monotonic() < RENEW_SECONDS:
            await self.renew(self._access)
        return self._access

    async def renew(self, refused: str) -> None:
        """Replace a refused access token; raises Unauthorized if no refresh token is accepted."""
        async with self._renewal:
            if self._access == refused:
                await self._renew()

    async def _renew(self) -> None:
        settings, tried = self._settings, set()
        if settings.refresh_token is None or settings.app_secret is None:
            raise Unauthorized("access_token has ended: set a new one, or refresh_token and app_secret")
        for token in (await self._load(), settings.refresh_token.get_secret_value(), await self._load()):
            if token and token not in tried and await self._try(token):
                return
            tried.add(token)
        raise Unauthorized("Zalo refuses the refresh token: authorize the Official Account again")

    async def _try(self, token: str) -> bool:
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
        if response.status >= 500:  # noqa: PLR2004
            raise ChannelError(f"oa/access_token: HTTP {response.status}")
        if not access or not following:
            return False
        await self._store(following)
        life = str(answer.get("expires_in") or "")
        self._access = access
        self._expires_at = time.monotonic() + (float(life) if life.isdecimal() else DEFAULT_LIFE_SECONDS)
        return True

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
        await self._state.set({f"refresh:{number}": piece for number, piece in enumerate(pieces)})

    def _cipher(self) -> Fernet:
        secret = self._settings.app_secret.get_secret_value() if self._settings.app_secret else ""
        return Fernet(base64.urlsafe_b64encode(hashlib.sha256(f"zalo:{secret}".encode()).digest()))

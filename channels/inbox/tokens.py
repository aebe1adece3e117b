"""Keep access tokens in memory: each is replaced before its end, or when the platform refuses it.

One that cannot be replaced for now is used until its end.

Private keys, for platforms whose tokens an app signs itself, are read here.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import structlog
from pydantic import AfterValidator, SecretStr

from channels.errors import ChannelError, Unauthorized, before_sending

T = TypeVar("T")

log = structlog.get_logger(__name__)

Renew = Callable[[str], Awaitable[tuple[str, float]]]
"""Return a new token of a holder, and the seconds it lasts; raises ChannelError."""


async def finish_renewal(renewal: Awaitable[T]) -> T:
    """Await a renewal that goes on if the caller is cancelled, and raise its error.

    The platform may have used up the old refresh token already, and names the next one once.
    """
    task = asyncio.ensure_future(renewal)
    task.add_done_callback(_drop_error)
    await asyncio.wait({task})  # a cancellation ends the wait and not the task
    return task.result()


def _drop_error(task: asyncio.Future[Any]) -> None:
    """Have asyncio regard the error of a renewal without a caller as handled."""
    if not task.cancelled():
        task.exception()


class TokenCache:
    """The tokens of the holders that `renew` knows; its repr shows none."""

    def __init__(self, renew: Renew, *, early: float) -> None:
        self._renew = renew
        self._early = early
        self._tokens: dict[str, tuple[str, float]] = {}
        self._renewals: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def put(self, holder: str, token: str, seconds: float = float("inf")) -> None:
        """Keep a token that lasts so many seconds."""
        self._tokens[holder] = token, time.monotonic() + seconds

    async def use(self, holder: str, call: Callable[[str], Awaitable[T]]) -> T:
        """Make a call with a holder's token; a refused token is replaced once, because nothing was done."""
        token = await self._get(holder)
        try:
            return await call(token)
        except Unauthorized:
            self._forget(holder, token)
        return await call(await self._get(holder))

    def _forget(self, holder: str, refused: str) -> None:
        kept, _ = self._tokens.get(holder, ("", 0.0))
        if kept is refused:  # another call may have replaced it
            del self._tokens[holder]

    async def _get(self, holder: str) -> str:
        token, ends_at = self._tokens.get(holder, ("", 0.0))
        if token and ends_at - time.monotonic() >= self._early:
            return token
        return await finish_renewal(self._get_renewed(holder))

    async def _get_renewed(self, holder: str) -> str:
        async with self._renewals[holder]:
            token, ends_at = self._tokens.get(holder, ("", 0.0))
            left = ends_at - time.monotonic()
            if token and left >= self._early:
                return token
            try:
                with before_sending():
                    renewed, seconds = await self._renew(holder)
            except ChannelError as error:
                if not token or left <= 0 or error.remedy != "retry":
                    raise
                log.warning("channel.token_not_renewed", error=str(error), valid_seconds=round(left))
                return token
            self.put(holder, renewed, seconds)
            return renewed


@lru_cache(maxsize=16)
def read_private_key(pem: str) -> Any:
    """Return a private key as PyJWT takes it; raises ValueError or TypeError.

    The last keys are kept: reading one proves that its numbers belong together, which blocks the event loop
    for 35 ms with 2048 bits of RSA.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return load_pem_private_key(pem.encode(), password=None)


def _check_key(key: SecretStr) -> SecretStr:
    # An environment variable often holds the key with escaped line ends.
    text = key.get_secret_value().replace("\\n", "\n").strip() + "\n"
    try:
        read_private_key(text)
    except (ValueError, TypeError):
        raise ValueError(
            "private_key is not a private key: paste the whole .pem file of the app, BEGIN and END lines too"
        ) from None
    return SecretStr(text)


PrivateKey = Annotated[SecretStr, AfterValidator(_check_key)]
"""The private key of an app, in PEM."""

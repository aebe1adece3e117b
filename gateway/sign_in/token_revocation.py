"""Revocation of deleted tokens at their authorization server (RFC 7009), in the background.

The tokens are deleted here first: a server that fails or cannot be reached only keeps them valid there.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
import structlog
from yarl import URL

from delivery.background import log_errors
from delivery.fair_queue import FairQueue
from delivery.fair_scheduler import PoolSize
from egress.guard import EgressGuard
from egress.policy import EgressPolicy, refusal
from egress.sessions import open_session
from egress.urls import is_same_origin

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 10.0
STOP_SECONDS = 5.0
"""Seconds for revocations that wait when the process stops."""

MAX_WAITING = 100
"""Revocations of one account that wait."""

WORKERS = 4
_HTTPS_ONLY = frozenset({("https", 443)})
_KINDS = ("refresh_token", "access_token")
"""The refresh token first: a server may end its access tokens with it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenRevocation:
    """The tokens of a sign-in and their authorization server.

    `guard` checks the connection if the endpoint has the origin of `address`, the server that was used.
    """

    endpoint: str
    tokens: Mapping[str, Any] = field(repr=False)
    client: Mapping[str, Any] = field(repr=False)
    address: str
    guard: EgressGuard

    def forms(self) -> list[dict[str, str]]:
        """Return the forms to send, one for each token."""
        known = {"client_id": str(self.client.get("client_id", ""))}
        if self._secret and not self._uses_basic:
            known["client_secret"] = self._secret
        return [
            {"token": str(self.tokens[kind]), "token_type_hint": kind, **known}
            for kind in _KINDS
            if self.tokens.get(kind)
        ]

    def headers(self) -> dict[str, str]:
        """Return the headers, which authenticate the client if it was registered to do so by them."""
        if not self._secret or not self._uses_basic:
            return {}
        pair = f"{quote(str(self.client.get('client_id', '')), safe='')}:{quote(self._secret, safe='')}"
        return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}

    @property
    def _secret(self) -> str:
        return str(self.client.get("client_secret") or "")

    @property
    def _uses_basic(self) -> bool:
        return self.client.get("token_endpoint_auth_method") == "client_secret_basic"


class TokenRevocations:
    """Sends revocations, fairly by account. `policy` holds for servers that only metadata names."""

    def __init__(self, policy: EgressPolicy) -> None:
        self._policy = EgressPolicy(allow=policy.allow, ports=_HTTPS_ONLY)
        self._queue: FairQueue[TokenRevocation] = FairQueue(PoolSize(places=WORKERS))

    def revoke_soon(self, account: str, revocation: TokenRevocation) -> None:
        """Queue a revocation of an account; never blocks. One of too many is dropped, and logged."""
        if self._queue.waiting(account) >= MAX_WAITING:
            log.warning("token.revocation_failed", host=URL(revocation.endpoint).host, error="too many wait")
            return
        self._queue.put(account, revocation)

    async def run(self, stop: asyncio.Event) -> None:
        """Send what is queued until stopped; then send the rest, as far as the time suffices."""
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._work()) for _worker in range(WORKERS)]
            await stop.wait()
            self._queue.close()
            _done, late = await asyncio.wait(workers, timeout=STOP_SECONDS)
            for one in late:
                log.warning("token.revocation_failed", error="the gateway stops")
                one.cancel()

    async def _work(self) -> None:
        while True:
            async with self._queue.take() as entry:
                if entry is None:
                    return
                await self._revoke(entry[1])

    async def _revoke(self, revocation: TokenRevocation) -> None:
        with log_errors("token_revocations"):
            host = URL(revocation.endpoint).host
            try:
                for form in revocation.forms():
                    await self._send(revocation, form)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                refused = refusal(error)
                why = refused.why if refused is not None else str(error) or type(error).__name__
                log.warning("token.revocation_failed", host=host, error=why)
            else:
                log.info("token.revoked", host=host)

    async def _send(self, revocation: TokenRevocation, form: Mapping[str, str]) -> None:
        """Send a form; raises OSError unless the server accepts it."""
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with (
            open_session(self._guard(revocation), timeout=timeout, force_close=True) as session,
            session.post(
                revocation.endpoint, data=dict(form), headers=revocation.headers(), allow_redirects=False
            ) as answer,
        ):
            if not 200 <= answer.status < 300:  # noqa: PLR2004 - success
                raise OSError(f"the authorization server answers with status {answer.status}")

    def _guard(self, revocation: TokenRevocation) -> EgressGuard:
        """Return the guard of the endpoint; raises EgressRefused for one that cannot be called."""
        if is_same_origin(revocation.endpoint, revocation.address):
            return revocation.guard
        _url, scope = self._policy.check_url(revocation.endpoint)
        return EgressGuard(policy=self._policy, scope=scope)

"""Requests to an identity provider: guarded connections, bounded bodies and times, no redirects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from egress.guard import TRUSTED, EgressGuard
from egress.policy import EgressPolicy, EgressRefused, refusal
from egress.sessions import open_session
from egress.urls import is_same_origin
from gateway.sign_in.errors import SignInFailed

MAX_BODY_BYTES = 256 * 1024
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConnection:
    """Sends requests to a provider: to the issuer's origin, and guarded to others that it names."""

    issuer: str
    policy: EgressPolicy

    async def get(self, url: str) -> Mapping[str, Any]:
        """Return the JSON object at a URL; raises SignInFailed."""
        status, body = await self._request("GET", url)
        if status != 200 or not isinstance(body, Mapping):  # noqa: PLR2004 - OK
            raise SignInFailed("unavailable", f"{url} answers with status {status} and no JSON object")
        return body

    async def status_of(self, url: str) -> int:
        """Return the status of an answer to a GET; raises SignInFailed."""
        status, _body = await self._request("GET", url)
        return status

    async def post(
        self, url: str, form: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, Any]]:
        """Return the status and the JSON object of an answer to a form; raises SignInFailed."""
        status, body = await self._request("POST", url, data=form, headers=headers)
        return status, body if isinstance(body, Mapping) else {}

    async def _request(self, method: str, url: str, **more: Any) -> tuple[int, Any]:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        try:
            guard = self._guard(url)
            async with (
                open_session(guard, timeout=timeout, force_close=True) as session,
                session.request(method, url, allow_redirects=False, **more) as answer,
            ):
                return answer.status, _json(await _read(answer, url))
        except (aiohttp.ClientError, EgressRefused) as error:
            refused = refusal(error)
            why = refused.why if refused is not None else type(error).__name__
            raise SignInFailed("unavailable", f"{url} cannot be read: {why}") from error
        except TimeoutError:
            raise SignInFailed("unavailable", f"{url} does not answer in {TIMEOUT_SECONDS:g} s") from None

    def _guard(self, url: str) -> EgressGuard:
        """Return the guard of a URL; raises EgressRefused for one that cannot be called."""
        if is_same_origin(url, self.issuer):
            return TRUSTED
        parsed, scope = self.policy.check_url(url)
        if parsed.scheme != "https":
            raise EgressRefused("only https is allowed")
        return EgressGuard(policy=self.policy, scope=scope)


async def _read(answer: aiohttp.ClientResponse, url: str) -> bytes:
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise SignInFailed("unavailable", f"{url} answers with more than {MAX_BODY_BYTES} bytes")
    return bytes(content)


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None

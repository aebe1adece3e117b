"""Post requests to models' servers: keys go to their vendor only, and failures are tried again."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from egress.guard import TRUSTED
from egress.sessions import open_session
from egress.urls import Origin, origin_of
from gateway.agents.clients.errors import ModelCallError, ModelRequestRefused, ModelUnreachable
from gateway.agents.clients.reply import Deadline

CONNECT_SECONDS = 30.0
FIRST_PAUSE = 0.5
MAX_PAUSE = 8.0
MAX_RETRY_AFTER = 60.0
MAX_ERROR_BYTES = 64 * 1024
_RETRIED = frozenset({408, 409, 425, 429})
_FIRST_ERROR = 300
_FIRST_CLIENT_ERROR = 400
REDIRECTED = "it redirects, and redirects are not followed: set agent.base_url to the address it redirects to"
_FIRST_SERVER_ERROR = 500

ErrorOf = Callable[[str, int, str, float | None], ModelCallError]
"""Return the error of a model, by status, the beginning of the body, and the seconds to wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAddress:
    """Where a model is asked: the URL, the headers with the key, and how failures are named and retried."""

    model: str
    url: str
    headers: Mapping[str, str]
    error_of: ErrorOf
    retries: int = 0
    seconds: float = 0.0


_ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))


def to_json(value: object) -> str:
    """Return a value as requests contain it; lone surrogates are escaped, so that it can be encoded."""
    return _ENCODER.encode(value)


def sends_foreign_key(
    headers: Iterable[str], origin: Origin, bound_keys: Mapping[str, frozenset[Origin]]
) -> bool:
    """Return whether the values of headers are or hold, as a bearer token, a key of other origins.

    Part of a value does not count: keys of servers of one's own are as short as "1".
    """
    sent = {value.removeprefix("Bearer ") for value in headers}
    return any(key in sent and origin not in origins for key, origins in bound_keys.items())


class ModelHttp:
    """The connections to all models' servers. Each key is sent to its vendor's origins only."""

    def __init__(self, bound_keys: Mapping[str, frozenset[Origin]]) -> None:
        self._bound_keys = bound_keys
        self._proxies = {scheme: url for scheme, url in getproxies().items() if url.startswith("http")}
        self._session = open_session(
            TRUSTED,
            limit=0,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers={"Accept-Encoding": "identity", "User-Agent": "dovecote"},
        )

    async def aclose(self) -> None:
        """Close all connections; requests under way fail."""
        await self._session.close()

    @asynccontextmanager
    async def post(
        self, address: ModelAddress, body: str, deadline: Deadline
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a JSON document, again if it fails for a passing reason; yields the response with its headers.

        Raises ModelCallError. The connection is closed if the response was not read to its end.
        """
        self._refuse_foreign_keys(address)
        response = await self._send_until_accepted(address, body.encode(), deadline)
        try:
            yield response
        finally:
            response.release() if response.content.at_eof() else response.close()

    def _refuse_foreign_keys(self, address: ModelAddress) -> None:
        origin = origin_of(address.url)
        if sends_foreign_key(address.headers.values(), origin, self._bound_keys):
            raise ModelUnreachable(address.model, f"{origin} is not an address to which this key may be sent")

    async def _send_until_accepted(
        self, address: ModelAddress, body: bytes, deadline: Deadline
    ) -> aiohttp.ClientResponse:
        attempt, may_reconnect = 0, True
        while True:
            try:
                return await self._send(address, body, deadline)
            except aiohttp.ServerDisconnectedError as error:
                # A connection that was kept open may be closed by its server at any time.
                if not may_reconnect:
                    raise ModelUnreachable(address.model, str(error)) from error
                may_reconnect = False
            except ModelCallError as error:
                pause = _pause(attempt, error.retry_after)
                if attempt >= address.retries or not _is_retried(error) or not deadline.allows(pause):
                    raise
                attempt += 1
                await asyncio.sleep(pause)

    async def _send(self, address: ModelAddress, body: bytes, deadline: Deadline) -> aiohttp.ClientResponse:
        """Send once; returns the response if its status is a success."""
        try:
            async with asyncio.timeout_at(deadline.next_byte_at()):
                response = await self._session.post(
                    address.url,
                    data=body,
                    headers={"Content-Type": "application/json", **address.headers},
                    allow_redirects=False,
                    proxy=self._proxy(address.url),
                )
                if response.status >= _FIRST_ERROR:
                    raise await _refusal(response, address)
                return response
        except aiohttp.ServerDisconnectedError:
            raise
        except aiohttp.ClientError as error:
            raise ModelUnreachable(address.model, str(error) or type(error).__name__) from error
        except TimeoutError:
            raise deadline.error() from None
        except OSError as error:
            raise ModelUnreachable(address.model, str(error) or type(error).__name__) from error

    def _proxy(self, url: str) -> str | None:
        """Return the proxy that the environment names for a URL, or None."""
        parsed = URL(url)
        proxy = self._proxies.get(parsed.scheme)
        return proxy if proxy and not proxy_bypass(parsed.raw_host or "") else None


async def _refusal(response: aiohttp.ClientResponse, address: ModelAddress) -> ModelCallError:
    """Return the error of a response with an error status, with the beginning of its body."""
    if response.status < _FIRST_CLIENT_ERROR:
        response.close()
        return ModelRequestRefused(address.model, REDIRECTED, status=response.status)
    try:
        body = (await response.content.read(MAX_ERROR_BYTES)).decode(errors="replace")
    finally:
        response.close()
    return address.error_of(address.model, response.status, body, _retry_after(response.headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that a server states (RFC 9110, section 10.2.3; in seconds only)."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) / unit)
        except (KeyError, ValueError):
            continue
    return None


def _pause(attempt: int, retry_after: float | None) -> float:
    """Return the seconds before the next attempt: as the server states, else doubling with jitter."""
    if retry_after is not None:
        return retry_after
    pause: float = min(MAX_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.75, 1.0)  # noqa: S311 - jitter
    return pause


def _is_retried(error: ModelCallError) -> bool:
    if error.retry_after is not None and error.retry_after > MAX_RETRY_AFTER:
        return False
    if error.status is None:
        return isinstance(error, ModelUnreachable)
    return error.may_pass and (error.status in _RETRIED or error.status >= _FIRST_SERVER_ERROR)

"""Requests over HTTP that are repeated until a gateway answers: it may restart at any moment.

Each POST has an idempotency key, so a repetition of one that was done has the same answer and no effect.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from dovecote.client.errors import GatewayAway, RequestRefused

PASSING = frozenset({429, 502, 503, 504})
"""Statuses after which a request is repeated."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
MAX_ANSWER = 64 * 2**20
"""Bytes of an answer."""

_TIMEOUT = aiohttp.ClientTimeout(total=60, connect=5)
_REDIRECT = 300


class Requests:
    """Sends requests with one key to one gateway."""

    def __init__(self, url: str, key: str, *, patience: float) -> None:
        self.url = url.rstrip("/")
        self.patience = patience
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """Return the session, opened when it is first used; call it inside the event loop."""
        if self._session is None or self._session.closed:
            headers = {"Authorization": f"Bearer {self._key}"}
            self._session = aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT)
        return self._session

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def send(
        self,
        method: str,
        *path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> Any:
        """Send a request until it is answered; raises RequestRefused and GatewayAway."""
        deadline = asyncio.get_running_loop().time() + self.patience
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._send_once(method, self._address(path), body, query, key)
            except _Passing as passing:
                wait = min(max(pause, passing.retry_after), LONGEST_PAUSE)
                if asyncio.get_running_loop().time() + wait > deadline:
                    raise GatewayAway(f"{self.url}: {passing}") from passing
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - spreads clients, no secret
            pause *= 2

    def _address(self, path: tuple[str, ...]) -> str:
        for part in path:
            if part in {"", ".", ".."}:
                raise RequestRefused(404, f"{part!r} is neither an id nor a name")
        return self.url + "".join(f"/{quote(part, safe='')}" for part in path)

    async def _send_once(
        self,
        method: str,
        address: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        key: str | None,
    ) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        options: dict[str, Any] = {"json": body} if body is not None else {}
        try:
            async with self.session().request(
                method, address, params=query, headers=headers, allow_redirects=False, **options
            ) as answer:
                return await _read(answer)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, OSError) as error:
            raise _Passing(str(error) or type(error).__name__) from error


class _Passing(Exception):
    """No answer, or one that says to try again."""

    def __init__(self, text: str, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


async def _read(answer: aiohttp.ClientResponse) -> Any:
    raw = await answer.content.read(MAX_ANSWER)
    if answer.status in PASSING:
        raise _Passing(f"status {answer.status}", _seconds(answer.headers.get("Retry-After", "")))
    found = await _parsed(answer, raw)
    if answer.ok and answer.status < _REDIRECT:
        return found
    problem = found if isinstance(found, dict) else {}
    detail = problem.get("detail") or problem.get("title") or answer.reason or "refused"
    raise RequestRefused(answer.status, str(detail), errors=problem.get("errors") or ())


async def _parsed(answer: aiohttp.ClientResponse, raw: bytes) -> Any:
    import json

    while not answer.content.at_eof():
        block = await answer.content.read(MAX_ANSWER)
        raw += block
        if len(raw) > MAX_ANSWER:
            raise RequestRefused(answer.status, f"the answer exceeds {MAX_ANSWER} bytes")
    if "json" not in answer.content_type:
        return raw.decode(errors="replace")
    try:
        return json.loads(raw)
    except ValueError:
        raise RequestRefused(answer.status, "the answer is not JSON: is this a gateway?") from None


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 4 else 0.0  # noqa: PLR2004 - hours

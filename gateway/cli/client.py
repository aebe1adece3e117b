"""A client of a gateway's HTTP API and WebSocket, for the command line."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp

from gateway.cli.errors import CommandFailed, GatewaySilent, GatewayUnreachable, UsageError, print_error
from gateway.cli.printable import is_unicode
from gateway.cli.progress import progress

TIMEOUT = aiohttp.ClientTimeout(total=30, connect=5)
TRANSFER_TIMEOUT = aiohttp.ClientTimeout(total=600, connect=5)
"""The time for a file in either direction."""
UNAUTHORIZED, UNAVAILABLE = 401, 503
WAITING = "waiting for the gateway"
RESTART_DELAYS = (0.5, 1.0, 2.0, 3.0, 5.0, 5.0, 5.0, 5.0)
"""Seconds between requests to a gateway that has stopped to answer; after the last one the command fails."""


class ApiError(CommandFailed):
    """The gateway returned a problem."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayClient:
    """A client with an open session; `open_gateway` creates it."""

    url: str
    session: aiohttp.ClientSession = field(repr=False)

    async def get(self, *path: str, **query: str | int) -> Any:
        """GET a resource; path segments are quoted."""
        return await self._request("GET", path, params=query)

    async def get_across_restart(self, *path: str) -> Any:
        """GET a resource of a gateway that has answered before; one that restarts has some seconds for it."""
        for number, delay in enumerate(RESTART_DELAYS):
            try:
                return await self.get(*path)
            except (GatewayUnreachable, ApiError) as error:
                if isinstance(error, ApiError) and error.status != UNAVAILABLE:
                    raise
                if number == 0:
                    print_error(f"{error}; trying again")
            await asyncio.sleep(delay)
        return await self.get(*path)

    async def readiness(self) -> dict[str, Any]:
        """Return what the gateway says of its readiness; a gateway that is not ready answers 503."""
        with _connection_errors(self.url), progress(WAITING):
            async with self.session.get(self._address(("readyz",)), allow_redirects=False) as answer:
                if answer.status != UNAVAILABLE:
                    await _raise_for_problem(answer)
                found: dict[str, Any] = await answer.json()
                return found

    async def post(self, *path: str, body: Any = None) -> Any:
        """POST with an idempotency key, so that a retry is harmless."""
        return await self._request(
            "POST",
            path,
            json=body if body is not None else {},
            headers={"Idempotency-Key": secrets.token_hex(16)},
        )

    async def patch(self, *path: str, body: Any) -> Any:
        """PATCH a resource."""
        return await self._request("PATCH", path, json=body)

    async def download(self, *path: str) -> tuple[bytes, bool]:
        """Return a resource's bytes, and whether they are JSON, such as a list."""
        with _connection_errors(self.url), progress("downloading"):
            async with self.session.get(
                self._address(path), allow_redirects=False, timeout=TRANSFER_TIMEOUT
            ) as answer:
                await _raise_for_problem(answer)
                return await answer.read(), answer.content_type == "application/json"

    async def upload(self, *path: str, content: bytes) -> None:
        """PUT bytes."""
        with _connection_errors(self.url), progress("uploading"):
            async with self.session.put(
                self._address(path), data=content, allow_redirects=False, timeout=TRANSFER_TIMEOUT
            ) as answer:
                await _raise_for_problem(answer)

    async def store_file(self, name: str, content: bytes) -> Any:
        """POST a file that a message can attach by the `url` of the answer."""
        with _connection_errors(self.url):
            async with self.session.post(
                self._address(("files",)),
                params={"name": name},
                data=content,
                allow_redirects=False,
                timeout=TRANSFER_TIMEOUT,
            ) as answer:
                await _raise_for_problem(answer)
                return await answer.json()

    async def send_part(self, *path: str, content: bytes, offset: int) -> Any:
        """PATCH bytes of an upload at an offset."""
        with _connection_errors(self.url), progress("uploading"):
            async with self.session.patch(
                self._address(path),
                data=content,
                headers={"Upload-Offset": str(offset)},
                allow_redirects=False,
                timeout=TRANSFER_TIMEOUT,
            ) as answer:
                await _raise_for_problem(answer)
                return await answer.json()

    async def delete(self, *path: str) -> Any:
        """DELETE a resource."""
        return await self._request("DELETE", path)

    async def list_all(self, *path: str, **query: str | int) -> list[dict[str, Any]]:
        """Return all items of a list, page by page."""
        items: list[dict[str, Any]] = []
        cursor: dict[str, str | int] = {}
        with progress("reading the list") as shown:
            while True:
                page = await self.get(*path, limit=200, **query, **cursor)
                items.extend(page.get("items", []))
                shown.detail = f"{len(items)} items"
                if not page.get("next"):
                    return items
                cursor = {"cursor": page["next"]}

    async def _request(self, method: str, path: tuple[str, ...], **options: Any) -> Any:
        url = self._address(path)
        with _connection_errors(self.url), progress(WAITING):
            async with self.session.request(method, url, allow_redirects=False, **options) as answer:
                await _raise_for_problem(answer)
                if "json" in answer.content_type:
                    return await answer.json()
                return await answer.text()

    def _address(self, path: tuple[str, ...]) -> str:
        """Return the URL of a resource; raises UsageError for a part that would name another resource."""
        for part in path:
            if part in {"", ".", ".."}:
                raise UsageError(f"{part!r} is neither an id nor a name")
            if not is_unicode(part):
                raise UsageError(f"{part} has bytes that are not UTF-8, so it is neither an id nor a name")
        return self.url + "".join(f"/{quote(part, safe=':')}" for part in path)

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open the WebSocket, authenticated by the header."""
        with _connection_errors(self.url):
            connecting = self.session.ws_connect(f"{self.url}/ws", heartbeat=20, max_msg_size=16 * 2**20)
            socket = await connecting
        async with socket:
            yield socket


class _connection_errors:  # noqa: N801 - used as a context manager: with _reaching(url)
    """Convert connection errors into one `Unreachable` error."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, aiohttp.WSServerHandshakeError):
            text = f"the gateway refused the WebSocket (status {error.status})"
            raise ApiError(error.status, _explain(error.status, text)) from error
        if isinstance(error, aiohttp.InvalidURL):
            raise UsageError(f"{self._url} is not a URL") from error
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            raise GatewaySilent(
                f"{self._url} accepts connections and does not answer in time: the gateway may hang or be "
                "overloaded (see `dovecote logs`), or this is another program (see --url)"
            ) from error
        if isinstance(error, aiohttp.ClientError | TimeoutError | OSError):
            raise GatewayUnreachable(
                f"no gateway answers at {self._url} ({_reason(error)}): "
                "start one with `dovecote serve`, or pass --url"
            ) from error


def _reason(error: Exception) -> str:
    """Return why a connection failed; asyncio replaces the system's words by the address."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ConnectionError) and cause.errno:
        return os.strerror(cause.errno)
    return getattr(cause, "strerror", None) or str(error) or type(error).__name__


async def _raise_for_problem(answer: aiohttp.ClientResponse) -> None:
    if not answer.ok or answer.status >= 300:  # noqa: PLR2004 - a redirect is not followed with a key
        raise ApiError(answer.status, await _problem_text(answer))


async def _problem_text(answer: aiohttp.ClientResponse) -> str:
    """Return a problem+json document as one line."""
    try:
        problem = await answer.json(content_type=None)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        return _explain(answer.status, answer.reason or "no reason given")
    parts = [str(problem.get("title") or answer.reason)]
    if problem.get("detail"):
        parts.append(str(problem["detail"]))
    parts += [
        f"{one.get('pointer', '')} {one.get('detail', '')}".strip() for one in problem.get("errors") or []
    ]
    return _explain(answer.status, ": ".join(dict.fromkeys(parts)))


def _explain(status: int, text: str) -> str:
    if status == UNAUTHORIZED:
        return f"{text}; pass --key or --data, or set DOVECOTE_KEY"
    return text


@asynccontextmanager
async def open_gateway(url: str, key: str | None) -> AsyncIterator[GatewayClient]:
    """Open a client session for the gateway at `url`; sends nothing yet."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers, timeout=TIMEOUT, trust_env=False) as session:
        yield GatewayClient(url=url.rstrip("/"), session=session)

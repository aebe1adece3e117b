"""Call GitHub's REST and GraphQL APIs as an app, and as its installations.

gidgethub makes and reads the calls; the connection, its limits and the errors are ours. A token of an
installation lasts an hour; it is kept in memory and replaced before it expires, or when GitHub refuses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

import aiohttp
from gidgethub import GitHubException, sansio
from gidgethub.abc import GitHubAPI

from channels.errors import Ambiguous, Unauthorized, Undeliverable
from channels.github.errors import graphql_error, translate_error
from channels.github.settings import GitHubSettings
from channels.github.threads import split_room
from channels.inbox.calls import call
from channels.inbox.text import clean, iso_time
from egress.guard import EgressGuard
from egress.sessions import open_session
from egress.urls import is_same_origin

API_VERSION = "2022-11-28"
RENEW_SECONDS = 300
"""Seconds before its end at which an installation's token is replaced."""

_MOVED = {HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """The app: its name in mentions, `@slug`, and the login of its comments, `slug[bot]`."""

    slug: str

    @property
    def login(self) -> str:
        """The login of the app's user."""
        return f"{self.slug}[bot]"


class _Client(GitHubAPI):
    """gidgethub's client on a guarded session; a renamed repository's redirect is followed once."""

    def __init__(self, session: aiohttp.ClientSession, settings: GitHubSettings) -> None:
        key = settings.private_key.get_secret_value()
        super().__init__("dovecote", app_id=settings.app_id, private_key=key, base_url=settings.base_url)
        self._session = session

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, Mapping[str, str], bytes]:
        sent = {**headers, "X-GitHub-Api-Version": API_VERSION}
        what = f"{method} {url.removeprefix(self.base_url).partition('?')[0]}"
        answer = await call(self._session, method, url, what=what, headers=sent, data=body)
        target = answer.headers.get("Location", "")
        if answer.status in _MOVED and is_same_origin(target, self.base_url):
            answer = await call(self._session, method, target, what=what, headers=sent, data=body)
        return answer.status, answer.headers, answer.body

    async def sleep(self, seconds: float) -> None:
        """Wait; gidgethub asks for it in no call that is used here."""
        await asyncio.sleep(seconds)


class Api:
    """The APIs of GitHub; its repr shows neither the key nor a token."""

    def __init__(self, client: GitHubAPI, settings: GitHubSettings) -> None:
        self._client = client
        self._settings = settings
        self._installations: dict[str, str] = {}
        self._tokens: dict[str, tuple[str, datetime]] = {}

    def __repr__(self) -> str:
        return "Api(<key hidden>)"

    async def as_app(self, method: str, path: str, data: Any = b"", **variables: str) -> Any:
        """Make a call as the app itself; raises ChannelError."""
        answer, _ = await self._send(method, path, data, variables, None)
        return answer

    async def as_app_paged(self, path: str, **variables: str) -> tuple[list[Any], str | None]:
        """Return a page of a list and the URL of the next page; raises ChannelError."""
        answer, following = await self._send("GET", path, b"", variables, None)
        return answer if isinstance(answer, list) else [], following

    async def in_room(
        self, room: str, method: str, path: str, data: Any = b"", **variables: str
    ) -> tuple[Any, str | None]:
        """Make a call for a repository, as the app's installation there; also return the next page."""
        return await self._authorized(room, method, path, data, {**split_room(room), **variables})

    async def graphql(self, room: str, query: str, **variables: Any) -> Mapping[str, Any]:
        """Run a GraphQL query as the installation of a repository; raises ChannelError."""
        body = {"query": query, "variables": variables}
        answer, _ = await self._authorized(room, "POST", self._settings.graphql_url, body, {})
        if not isinstance(answer, dict) or answer.get("errors") or not isinstance(answer.get("data"), dict):
            raise graphql_error(answer if isinstance(answer, dict) else {}, what="graphql")
        return answer["data"]  # type: ignore[no-any-return]

    async def identify(self) -> Bot:
        """Return the app; raises Unauthorized if GitHub does not accept the key."""
        app = await self.as_app("GET", "/app")
        slug = clean(app.get("slug")) if isinstance(app, dict) else ""
        if not slug:
            raise Ambiguous("GET /app: the response describes no app")
        return Bot(slug=slug)

    async def _authorized(
        self, room: str, method: str, path: str, data: Any, variables: Mapping[str, str]
    ) -> tuple[Any, str | None]:
        """Call with the installation's token; a refused token is replaced once, because nothing was done."""
        installation = await self._installation(room)
        try:
            return await self._send(method, path, data, variables, await self._token(installation, room))
        except Unauthorized:
            self._tokens.pop(installation, None)
        return await self._send(method, path, data, variables, await self._token(installation, room))

    async def _send(
        self, method: str, path: str, data: Any, variables: Mapping[str, str], token: str | None
    ) -> tuple[Any, str | None]:
        try:
            # The private method is what getitem, post, patch and delete consist of.
            answer, following, _ = await self._client._make_request(  # noqa: SLF001
                method, path, dict(variables), data, sansio.accept_format(), oauth_token=token
            )
        except (GitHubException, ValueError) as error:
            failure = error if isinstance(error, GitHubException) else GitHubException(str(error))
            raise translate_error(failure, what=f"{method} {path}") from None  # may name a token
        return answer, following

    async def _installation(self, room: str) -> str:
        if room not in self._installations:
            found = await self.as_app("GET", "/repos/{owner}/{repo}/installation", **split_room(room))
            number = found.get("id") if isinstance(found, dict) else None
            if not isinstance(number, int):
                raise Undeliverable(f"the app is not installed in {room}")
            self._installations[room] = str(number)
        return self._installations[room]

    async def _token(self, installation: str, room: str) -> str:
        token, expires = self._tokens.get(installation, ("", None))
        if expires is None or expires.timestamp() - time.time() < RENEW_SECONDS:
            path = "/app/installations/{installation}/access_tokens"
            try:
                made = await self.as_app("POST", path, {}, installation=installation)
            except Undeliverable:  # removed, perhaps installed again under another number
                self._installations.pop(room, None)
                raise
            token, expires = clean(made.get("token")), iso_time(made.get("expires_at"))
            self._tokens[installation] = token, expires
        return token


@asynccontextmanager
async def connect(settings: GitHubSettings, guard: EgressGuard) -> AsyncIterator[Api]:
    """Yield the APIs and close them on exit."""
    # A pooled connection may be dead without our knowing; a send on it would be ambiguous.
    async with open_session(guard, limit=32, force_close=True) as session:
        yield Api(_Client(session, settings), settings)

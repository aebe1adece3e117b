"""Call GitHub's REST and GraphQL APIs as an app, and as its installations.

gidgethub makes and reads the calls; the connection, its limits and the errors are ours. A token of an
installation lasts an hour; it is kept in memory for each repository.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from gidgethub import GitHubException, sansio
from gidgethub.abc import GitHubAPI

from channels.errors import Ambiguous, Unreachable
from channels.github.errors import translate_error
from channels.github.settings import GitHubSettings
from channels.github.threads import split_room
from channels.inbox.calls import call_redirected, connecting
from channels.inbox.errors import graphql_error, graphql_status
from channels.inbox.text import clean, identifier, iso_time, mapping, mappings
from channels.inbox.tokens import TokenCache, read_private_key

ACCEPT, API_VERSION = sansio.accept_format(), "2022-11-28"
RENEW_SECONDS = 300
"""Seconds before its end at which an installation's token is replaced."""

MAX_PAGES = 30

Answer = tuple[Any, str | None]  # its value, and the URL of the next page


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    """The app: its name in mentions, `@slug`, and the login of its comments, `slug[bot]`."""

    slug: str

    @property
    def login(self) -> str:
        """The login of the app's user."""
        return f"{self.slug}[bot]"


class Api(GitHubAPI):
    """The APIs of GitHub, as the app itself or as its installation in a room; raises ChannelError.

    It is gidgethub's client on a guarded session.
    """

    def __init__(self, session: aiohttp.ClientSession, settings: GitHubSettings) -> None:
        key = read_private_key(settings.private_key.get_secret_value())
        super().__init__("dovecote", app_id=settings.app_id, private_key=key, base_url=settings.base_url)
        self._session = session
        self._graphql_url = settings.graphql_url
        self._tokens = TokenCache(self._make_token, early=RENEW_SECONDS)

    async def call(self, method: str, path: str, data: Any = b"", *, room: str = "", **variables: str) -> Any:
        """Make a call and return the answer's value; `variables` are those of the path."""
        answer, _ = await self._send(method, path, data, room, variables)
        return answer

    async def rows(self, path: str, *, room: str = "", **variables: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the rows of a list, page by page as they are wanted."""
        for _ in range(MAX_PAGES):
            page, following = await self._send("GET", path, b"", room, variables)
            for row in mappings(page):
                yield row
            if following is None:
                return
            path = following
        raise Unreachable(f"GET {path.partition('?')[0]}: there are more than {MAX_PAGES} pages")

    async def query(self, room: str, query: str, **variables: Any) -> Mapping[str, Any]:
        """Run a GraphQL query as the installation of a repository."""
        body = {"query": query, "variables": variables}
        answer = mapping(await self.call("POST", self._graphql_url, body, room=room))
        if answer.get("errors") or not isinstance(answer.get("data"), dict):
            raise graphql_error(answer, permission="discussions=write")
        return mapping(answer["data"])

    async def identify(self) -> Bot:
        """Return the app; raises Unauthorized if GitHub does not accept the key."""
        if slug := clean(mapping(await self.call("GET", "/app")).get("slug")):
            return Bot(slug=slug)
        raise Ambiguous("GET /app: the response describes no app")

    async def _send(
        self, method: str, path: str, data: Any, room: str, variables: Mapping[str, str]
    ) -> Answer:
        given = {**split_room(room), **variables}

        async def send(token: str | None) -> Answer:
            try:
                answer, following, _ = await self._make_request(
                    method, path, given, data, ACCEPT, oauth_token=token
                )
            except (GitHubException, ValueError, LookupError, OverflowError) as error:
                raise translate_error(error, what=f"{method} {path}") from None  # may name a token
            return answer, following

        return await self._tokens.use(room, send) if room else await send(None)

    async def _make_token(self, room: str) -> tuple[str, float]:
        """Return a token of the app's installation in a repository, and its seconds."""
        found = mapping(await self.call("GET", "/repos/{owner}/{repo}/installation", **split_room(room)))
        path = "/app/installations/{installation}/access_tokens"
        made = mapping(await self.call("POST", path, {}, installation=identifier(found.get("id"))))
        return clean(made.get("token")), iso_time(made.get("expires_at")).timestamp() - time.time()

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Make a call for gidgethub; a renamed repository's redirect is followed once."""
        what = f"{method} {url.removeprefix(self.base_url).partition('?')[0]}"
        sent: Any = {"headers": {**headers, "X-GitHub-Api-Version": API_VERSION}, "data": body}
        answer = await call_redirected(self._session, method, url, origin=self.base_url, what=what, **sent)
        return graphql_status(answer), answer.headers, answer.body

    async def sleep(self, seconds: float) -> None:
        """Wait; gidgethub asks for it in no call that is used here."""
        await asyncio.sleep(seconds)


connect = connecting(Api)

"""Call a platform whose API takes and returns JSON and whose token is a header, as most do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any

import aiohttp
from pydantic import SecretStr

from channels.errors import ChannelError
from channels.inbox.calls import TIMEOUT_SECONDS, HttpResponse, call, connecting
from channels.inbox.errors import rate_limit, status_error
from channels.inbox.settings import TokenSettings
from egress.guard import EgressGuard

RETRY_SECONDS = 30.0
"""Seconds to wait after a rate limit that names no time."""

_SUCCESSES = range(200, 300)


class JsonApi:
    """The API at a URL, with a bearer token; its repr shows no token.

    `meanings` are the platform's own meanings of HTTP statuses. 401 is Unauthorized, 404 Undeliverable, 429 a
    rate limit of the account, a server's failure Ambiguous, and any other refusal Rejected.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        token: SecretStr,
        meanings: Mapping[int, type[ChannelError]] = MappingProxyType({}),
    ) -> None:
        self._session = session
        self._url = url
        self._token = token
        self._meanings = meanings

    async def call(self, method: str, path: str, *, timeout: float = TIMEOUT_SECONDS, **options: Any) -> Any:
        """Make one request and return the JSON of its response, None if that is empty; raises ChannelError.

        `options` are those of aiohttp, such as `json` and `params`; `timeout` is in seconds. Nothing is
        repeated. The path appears in errors, so it must not contain a secret.
        """
        what, url = f"{method} {path}", f"{self._url}{path}"
        options["headers"] = {"Authorization": f"Bearer {self._token.get_secret_value()}"}
        response = await call(self._session, method, url, what=what, timeout=timeout, **options)
        if response.status in _SUCCESSES and (not response.body or response.json is not None):
            return response.json
        raise self._error(what, response)

    def _error(self, what: str, response: HttpResponse) -> ChannelError:
        limited = rate_limit(response.status, response.headers, RETRY_SECONDS)
        detail = f"{what}: HTTP {response.status}"
        return limited or status_error(response.status, detail, self._meanings)


def connecting_json(
    meanings: Mapping[int, type[ChannelError]] = MappingProxyType({}),
) -> Callable[[TokenSettings, EgressGuard], AbstractAsyncContextManager[JsonApi]]:
    """Return what yields the API at the URL of settings, with their token, and closes it on exit.

    `meanings` are those of `JsonApi`.
    """

    def make(session: aiohttp.ClientSession, settings: TokenSettings) -> JsonApi:
        return JsonApi(session, settings.url, settings.token, meanings)

    return connecting(make)

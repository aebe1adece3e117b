"""Hooks over HTTP: signed requests through guarded connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import structlog
from pydantic import ValidationError

from delivery.database.clock import utc_now
from delivery.webhooks.signing import sign
from egress.guard import EgressGuard
from egress.policy import EgressRefused
from egress.sessions import open_session
from gateway.records.tools.http_requests import HttpHookConfig
from gateway.tools.hooks.answer import ALLOW, Hook, HookAnswer, HookCall, HookFailed

log = structlog.get_logger(__name__)

MAX_ANSWER_BYTES = 256 * 1024
_EMPTY = 204
_OK = 200


class HookSession:
    """The connections of one turn's hooks, opened for the first request."""

    def __init__(self, guard: EgressGuard) -> None:
        self._guard = guard
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> aiohttp.ClientSession:
        """Return the session."""
        if self._session is None:
            self._session = open_session(self._guard, headers={"User-Agent": "Dovecote"})
        return self._session

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


PresentHooks = Callable[[], Awaitable[Mapping[str, HttpHookConfig]]]
"""Returns the HTTP hooks of the agent's record as it is now; raises HookFailed, DatabaseUnavailable."""


class HttpHook(Hook):
    """A URL that is asked: status 200 with a JSON object, or 204, which allows.

    Each question goes to the address, with the secret, that the record has now: a hook that was removed since
    the turn began is not asked any more.
    """

    def __init__(
        self, name: str, config: HttpHookConfig, session: HookSession, present: PresentHooks
    ) -> None:
        self.name = name
        self.points = frozenset(config.points)
        self.on_failure = config.on_failure
        self._session = session
        self._present = present

    async def ask(self, call: HookCall) -> HookAnswer:
        """Send the request once; every other status, and every other answer, is a failure."""
        config = (await self._present()).get(self.name)
        if config is None or call.point not in config.points or not config.is_about(call.tool):
            return ALLOW
        self.on_failure = config.on_failure
        try:
            async with asyncio.timeout(config.timeout):
                return await self._send(config, call)
        except TimeoutError as error:
            raise HookFailed(f"no answer within {config.timeout} s") from error
        except (aiohttp.ClientError, EgressRefused, OSError) as error:
            raise HookFailed(f"{type(error).__name__}: {error}") from error
        except ValidationError as error:
            raise HookFailed(f"its answer is not valid: {error.errors()[0]['msg']}") from error

    async def _send(self, config: HttpHookConfig, call: HookCall) -> HookAnswer:
        body = call.model_dump_json(exclude_none=True).encode("utf-8", "replace")
        secret = config.secret.get_secret_value()
        headers = sign([secret], message_id=call.id, moment=utc_now(), body=body)
        async with self._session.open().post(
            config.url,
            data=body,
            headers={**headers, "Content-Type": "application/json"},
            allow_redirects=False,
        ) as response:
            if response.status == _EMPTY:
                return ALLOW
            if response.status != _OK:
                raise HookFailed(f"it answered with HTTP {response.status}")
            content = await _read(response)
        return HookAnswer.model_validate_json(content)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    while chunk := await response.content.read(MAX_ANSWER_BYTES + 1):
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise HookFailed(f"its answer has more than {MAX_ANSWER_BYTES} bytes")
    return bytes(content)

"""The adapter of Loft: one HTTP client, one receiver, one sender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout

from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Unauthorized,
    Undeliverable,
    Unreachable,
    Unsupported,
)
from channels.message import (
    Address,
    Author,
    ButtonPress,
    Command,
    File,
    Message,
    Reply,
    RoomKind,
    SentMessage,
)
from channels.port import Accept, Receiver, ReceiverStatus, Sender, WebhookRequest, WebhookResponse
from channels.supervision import supervise
from egress.guard import EgressGuard
from egress.sessions import open_session

ERRORS: Mapping[int, type[ChannelError]] = {401: Unauthorized, 403: Undeliverable, 404: Undeliverable}
POLL_SECONDS = 30


@dataclass(frozen=True, slots=True)
class LoftApi:
    """Loft's HTTP API."""

    session: ClientSession
    url: str

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """Make one request and return its JSON; raises ChannelError."""
        try:
            async with self.session.request(
                method, self.url + path, allow_redirects=False, **options
            ) as response:
                if response.status == 429:
                    raise RateLimited(float(response.headers["Retry-After"]))
                if response.status != 200:
                    raise ERRORS.get(response.status, Ambiguous)(f"Loft answers {response.status}")
                return await response.json()
        except ClientConnectorError as error:
            raise Unreachable(str(error)) from error
        except (ClientError, TimeoutError) as error:
            raise Ambiguous(str(error)) from error


@asynccontextmanager
async def open_api(url: str, token: str, guard: EgressGuard) -> AsyncIterator[LoftApi]:
    """Open the API; each call has a connection of its own, because a kept one may just be closing."""
    headers, timeout = {"Authorization": f"Bearer {token}"}, ClientTimeout(total=POLL_SECONDS + 10)
    async with open_session(guard, headers=headers, timeout=timeout, force_close=True) as session:
        yield LoftApi(session, url)


def decode(raw: Mapping[str, Any], channel: str) -> Message | Command:
    """Return the update that Loft describes; the key is Loft's number of the update."""
    common: dict[str, Any] = {
        "key": str(raw["number"]),
        "address": Address(channel=channel, room=raw["room"], thread=raw["thread"]),
        "author": Author(id=raw["author"]),
        "sent_at": datetime.fromtimestamp(raw["time"], UTC),
        "room": RoomKind.GROUP,
        "platform_id": raw["id"],
    }
    if raw["text"].startswith("/"):
        name, _, rest = raw["text"][1:].partition(" ")
        return Command(name=name.lower(), rest=rest, **common)
    return Message(text=raw["text"], edited=raw["edited"], mentions_bot="@bot" in raw["text"], **common)


class LoftReceiver(Receiver):
    """Receives by long polling; the next poll acknowledges the updates before it."""

    def __init__(self, api: LoftApi, channel: str, bot: str) -> None:
        self._api, self._channel, self._bot = api, channel, bot

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Poll until cancelled."""
        stop = asyncio.Event()
        await supervise(self._poll(accept, receiving, stop), stop)

    async def _poll(self, accept: Accept, receiving: ReceiverStatus, stop: asyncio.Event) -> None:
        done, delay = 0, 0.1
        while not stop.is_set():
            try:
                updates = await self._api.call(
                    "GET", "/updates", params={"after": done, "wait": POLL_SECONDS}
                )
                receiving(True)
                for raw in updates:
                    if stop.is_set():
                        return
                    if raw["author"] != self._bot:
                        await accept(decode(raw, self._channel))
                    done, delay = raw["number"], 0.1
            except Unauthorized:
                raise
            except (ChannelError, OSError) as error:  # OSError: `accept` could not store the update
                receiving(False, str(error))
                await asyncio.sleep(delay)
                delay = min(30.0, 2 * delay)

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Refuse: Loft has no webhooks."""
        del request, accept
        return WebhookResponse(status=401)


class LoftSender(Sender):
    """Sends plain text."""

    def __init__(self, api: LoftApi) -> None:
        self._api = api

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message by one request."""
        body = {"room": address.room, "thread": address.thread, "text": reply.text}
        return SentMessage(platform_id=(await self._api.call("POST", "/messages", json=body))["id"])

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Not a feature."""
        raise Unsupported

    async def typing(self, address: Address) -> None:
        """Not a feature."""
        raise Unsupported

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Not a feature."""
        raise Unsupported

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Not a feature."""
        raise Unsupported

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Not a feature."""
        raise Unsupported

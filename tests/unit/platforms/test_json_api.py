"""The shared client of JSON APIs, the probe on top of it, and what a channel has without writing it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from channels.errors import (
    Ambiguous,
    ChannelError,
    RateLimited,
    Rejected,
    Unauthorized,
    Undeliverable,
    Unreachable,
    Unsupported,
)
from channels.inbox.checks import probe_with
from channels.inbox.json_api import JsonApi, connecting_json
from channels.inbox.settings import TokenSettings, token_digest
from channels.message import Address, Author, Command, File, Reply, RoomKind, SentMessage, Update
from channels.port import Accept, Receiver, ReceiverStatus, Sender, WebhookRequest
from egress.guard import TRUSTED, EgressGuard
from egress.sessions import open_session
from egress.urls import endpoint

TOKEN = SecretStr("canary-json-token")
ADDRESS = Address(channel="chn_1", room="attic")


async def _answer(request: web.Request) -> web.Response:
    """Answer with the status and body of the query, and refuse another token."""
    if request.headers.get("Authorization") != f"Bearer {TOKEN.get_secret_value()}":
        return web.Response(status=401)
    return web.Response(
        status=int(request.query.get("status", "200")),
        text=request.query.get("body", ""),
        headers={"Retry-After": "17"} if request.query.get("status") == "429" else {},
    )


@asynccontextmanager
async def serve() -> AsyncIterator[str]:
    """Run the API on loopback, and yield its URL."""
    application = web.Application()
    application.router.add_get("/thing", _answer)
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")


@asynccontextmanager
async def connect(token: SecretStr, guard: EgressGuard) -> AsyncIterator[JsonApi]:
    """Open the API on a loopback server."""
    async with serve() as url, open_session(guard) as session:
        yield JsonApi(session, url, token, {403: Undeliverable})


async def identify(api: JsonApi) -> str:
    """Return the name that the server gives the bot."""
    return str((await api.call("GET", "/thing", params={"body": '{"name": "dove"}'}))["name"])


@pytest.mark.parametrize(("body", "value"), [('{"a": 1}', {"a": 1}), ("[]", []), ("", None)])
async def test_a_success_is_its_json(body: str, value: object) -> None:
    """The JSON of a response is returned, and None for an empty one."""
    async with connect(TOKEN, TRUSTED) as api:
        assert await api.call("GET", "/thing", params={"body": body}) == value


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, "<html>", Ambiguous),
        (302, "{}", Unreachable),
        (400, "{}", Rejected),
        (401, "{}", Unauthorized),
        (403, "{}", Undeliverable),
        (404, "{}", Undeliverable),
        (429, "{}", RateLimited),
        (502, "{}", Ambiguous),
    ],
)
async def test_a_status_has_one_error(status: int, body: str, error: type[ChannelError]) -> None:
    """Each status is the port's error of the shared table, with the platform's own meanings in it."""
    async with connect(TOKEN, TRUSTED) as api:
        with pytest.raises(ChannelError) as caught:
            await api.call("GET", "/thing", params={"status": status, "body": body})
    assert type(caught.value) is error
    assert getattr(caught.value, "retry_after", 17) == 17
    assert TOKEN.get_secret_value() not in f"{caught.value!r}{api!r}{vars(api)!r}"


async def test_the_probe_names_the_bot_or_the_remedy() -> None:
    """A probe has the bot's name; a refused token has the remedy that the author gave."""
    probe = probe_with(connect, identify, operator="Create a new token.")
    (found,) = await probe(TOKEN, TRUSTED)
    assert (found.ok, found.detail) == (True, "dove")
    (found,) = await probe(SecretStr("another-token"), TRUSTED)
    assert (found.ok, found.remedy) == (False, "Create a new token.")


async def test_an_api_is_opened_with_the_url_and_the_token_of_settings() -> None:
    """The opened API has the platform's meanings of statuses, and its session is closed afterwards."""
    async with serve() as url:
        settings = TokenSettings(url=endpoint(url), token=TOKEN)
        async with connecting_json({403: Undeliverable})(settings, TRUSTED) as api:
            assert await identify(api) == "dove"
            with pytest.raises(Undeliverable):
                await api.call("GET", "/thing", params={"status": 403})
        with pytest.raises(RuntimeError):
            await identify(api)
    assert settings.account == token_digest(TOKEN)


def test_an_account_is_named_without_its_token() -> None:
    """Equal tokens have one name, which holds no part of the token."""
    assert token_digest(TOKEN) == token_digest(SecretStr(TOKEN.get_secret_value()))
    assert token_digest(TOKEN) != token_digest(SecretStr("another-token"))
    assert token_digest(TOKEN) not in TOKEN.get_secret_value()


class PlainSender(Sender):
    """Only sends."""

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send nothing."""
        return SentMessage(platform_id="1")


class DeafReceiver(Receiver):
    """Only runs."""

    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive nothing."""


async def test_a_sender_has_only_the_features_that_it_implements() -> None:
    """Each inherited method of a feature raises Unsupported."""
    sender, reply = PlainSender(), Reply(text="x", key="k")
    file = File(name="a", media_type="text/plain", content=b"a")
    author, moment = Author(id="ada"), datetime(2026, 1, 1, tzinfo=UTC)
    command = Command(
        key="k", address=ADDRESS, author=author, sent_at=moment, room=RoomKind.GROUP, name="new", rest=""
    )
    calls = [
        sender.edit(ADDRESS, "1", reply),
        sender.typing(ADDRESS),
        sender.upload(ADDRESS, file, key="k"),
        sender.reply_privately(command, "x"),
    ]
    for call in calls:
        with pytest.raises(Unsupported):
            await call
    with pytest.raises(Unsupported):
        sender.download("ref")


async def test_a_receiver_without_webhooks_refuses_posts() -> None:
    """A post to a channel without webhooks is answered with 401, and nothing is accepted."""
    accepted: list[Update] = []

    async def accept(update: Update) -> None:
        accepted.append(update)

    response = await DeafReceiver().receive(WebhookRequest(headers={}, body=b"{}"), accept)
    assert (response.status, accepted) == (401, [])

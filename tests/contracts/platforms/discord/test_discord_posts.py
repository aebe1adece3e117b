"""Posted interactions are answered in the HTTP response; an answer that misses it arrives all the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from channels.discord.api import Api, connect
from channels.discord.receive.receiver import DiscordReceiver
from channels.discord.send.deferred_replies import RESPONSE_SECONDS, DeferredReplies
from channels.discord.send.sender import DiscordSender
from channels.discord.settings import DiscordSettings
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.message import Address, ButtonPress, Command, Message, Reply, Update
from channels.port import WebhookRequest, WebhookResponse
from channels.testing.memory_state import MemoryChannelSecrets, MemoryChannelState
from egress.guard import TRUSTED

CHAT = 4004
COMMAND = {"type": 2, "data": {"name": "status"}}
QUESTION = {"type": 2, "data": {"name": "ask", "options": [{"name": "q", "type": 3, "value": "how long?"}]}}
PRESS = {"type": 3, "data": {"custom_id": "yes"}, "message": {"id": "5"}}


class PostedBot:
    """A bot in interactions mode whose clock the test moves; it answers while it accepts."""

    def __init__(self, simulator: Simulator, settings: DiscordSettings, api: Api, bot: Any) -> None:
        state = self.state = MemoryChannelState()
        deferred = DeferredReplies(api, state, clock=lambda: self.now)
        self._simulator = simulator
        self._sender = DiscordSender(api, deferred, bot=bot)
        self._receiver = DiscordReceiver(api, settings, state, channel="chn", bot=bot, deferred=deferred)
        self.now = 1_000_000.0
        self.seconds_before = self.seconds_after = 0.0
        self.is_stored = True

    async def _accept(self, update: Update) -> None:
        if isinstance(update, Message):
            return
        assert isinstance(update, ButtonPress | Command)
        self.now += self.seconds_before
        await self._sender.reply_privately(update, "all is well")
        self.now += self.seconds_after
        if not self.is_stored:
            raise OSError("no space left on device")

    async def say(self, text: str) -> None:
        """Send a message to the channel."""
        await self._sender.send(Address(channel="chn", room=str(CHAT)), Reply(text=text, key=text))

    async def post(self, fields: Mapping[str, Any]) -> tuple[WebhookResponse, Any]:
        """Post an interaction; returns the response and the interaction that Discord stored."""
        made, raw = self._simulator.create_interaction(CHAT, dict(fields))
        body = json.dumps(raw).encode()
        headers = self._simulator.signature_headers(body)
        return await self._receiver.receive(WebhookRequest(headers=headers, body=body), self._accept), made


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


@pytest.fixture
async def bot(simulator: Simulator) -> AsyncIterator[PostedBot]:
    """Return a bot to which interactions are posted."""
    given = simulator.settings(mode="interactions", public_key=simulator.public_key)
    settings = DiscordSettings.model_validate(given)
    async with connect(settings, TRUSTED) as api:
        yield PostedBot(simulator, settings, api, await api.identify())


def calls(simulator: Simulator) -> list[str]:
    """Return the names of the calls that answer something."""
    return [name for name, _, _ in simulator.calls if name != "me"]


@pytest.mark.parametrize("fields", [COMMAND, PRESS], ids=["command", "press"])
async def test_the_answer_is_in_the_http_response(
    simulator: Simulator, bot: PostedBot, fields: dict[str, Any]
) -> None:
    """No call is made, and only the user who asked sees the answer."""
    response, _ = await bot.post(fields)
    answer = json.loads(response.body)
    assert (response.status, answer["type"], answer["data"]["content"]) == (200, 4, "all is well")
    assert answer["data"]["flags"] & 64
    assert answer["data"]["allowed_mentions"] == {"parse": []}
    assert calls(simulator) == []


async def test_a_late_answer_acknowledges_by_a_call(simulator: Simulator, bot: PostedBot) -> None:
    """The response would come too late, so the answer is the callback, and the response is empty."""
    bot.seconds_before = RESPONSE_SECONDS
    response, made = await bot.post(COMMAND)
    assert (response.status, response.body, made.notices) == (202, b"", ["all is well"])
    assert calls(simulator) == ["callback"]


async def test_an_answer_whose_response_is_late_is_sent(simulator: Simulator, bot: PostedBot) -> None:
    """Storing took too long after the answer was given: the bot writes it in the channel, once."""
    bot.seconds_after = RESPONSE_SECONDS
    response, made = await bot.post(COMMAND)
    assert (response.status, made.notices) == (202, [])
    assert [post.text for post in simulator.messages()] == ["all is well"]


async def test_a_failed_call_after_a_late_response_is_no_failure_of_the_command(
    simulator: Simulator, bot: PostedBot
) -> None:
    """The command was stored, so Discord gets no other response."""
    bot.seconds_after = RESPONSE_SECONDS
    await simulator.fail(403, code=50013, name="create", message="Missing Permissions")
    response, _ = await bot.post(COMMAND)
    assert response.status == 202


async def test_a_command_that_was_not_stored_is_not_answered(simulator: Simulator, bot: PostedBot) -> None:
    """Discord shows that it failed."""
    bot.is_stored = False
    response, _ = await bot.post(COMMAND)
    assert response.status == 503
    assert calls(simulator) == []


class LostSecrets(MemoryChannelSecrets):
    """A store of secrets that does not answer."""

    async def set(self, name: str, secret: str | None) -> None:
        """Fail."""
        raise OSError("no connection")

    async def list(self, prefix: str, *, after: str = "", limit: int = 200) -> Mapping[str, str]:
        """Fail."""
        raise OSError("no connection")


async def test_a_question_is_acknowledged_and_answered_without_a_store_of_tokens(
    simulator: Simulator, bot: PostedBot
) -> None:
    """The command was stored already; its answer is a message of its own."""
    bot.state.secrets = LostSecrets()
    response, _ = await bot.post(QUESTION)
    await bot.say("long")
    assert (response.status, json.loads(response.body)["type"]) == (200, 5)
    assert [one.text for one in simulator.messages()] == ["long"]


@pytest.mark.parametrize(
    "place",
    [{"context": 2}, {"context": 0, "authorizing_integration_owners": {"1": "7"}}],
    ids=["conversation of others", "server without the bot"],
)
@pytest.mark.parametrize("asked", [QUESTION, COMMAND], ids=["question", "command"])
async def test_a_command_where_the_bot_is_no_member_is_refused(
    bot: PostedBot, asked: dict[str, Any], place: dict[str, Any]
) -> None:
    """A person who installed the app for themselves may use it anywhere; later answers could not be sent."""
    response, _ = await bot.post({**asked, **place})
    body = json.loads(response.body)
    assert (response.status, body["type"], body["data"]["flags"] & 64) == (200, 4, 64)
    assert "not a member" in json.dumps(body["data"])

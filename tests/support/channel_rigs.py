"""One rig for each platform: its simulator behind the few words the channel contract speaks.

A new adapter adds a class here; the contract suite fails for an installed channel without one.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from channels.message import Button, Update
from channels.port import ChannelPlugin, ChannelState, Connection, WebhookRequest
from channels.telegram.simulator import Simulator
from memory_channel_state import MemoryChannelState

CHANNEL = "chn_contract"
WEBHOOK_SECRET = "canary-webhook-secret_1"


@dataclass(frozen=True, slots=True)
class VisibleMessage:
    """What a person reads of the bot."""

    room: str
    thread: str | None
    text: str


class ChannelRig(Protocol):
    """A platform as the contract sees it; all methods act in one group room unless stated otherwise."""

    secrets: Sequence[str]
    unknown_sender: str

    @abstractmethod
    def settings(self, **others: Any) -> dict[str, Any]:
        """Return settings that lead to the simulator."""

    @abstractmethod
    async def say(self, text: str) -> None:
        """Send a message in the room as a user."""

    @abstractmethod
    async def say_in_thread(self, text: str) -> str:
        """Send a message in a thread of a room that has threads; returns the thread."""

    @abstractmethod
    async def echo(self, text: str) -> None:
        """The platform delivers the bot's own words to it."""

    @abstractmethod
    async def press(self, platform_id: str, button: str) -> None:
        """A person presses a button in the room."""

    @abstractmethod
    async def press_with_text(self, platform_id: str, button: Button, text: str) -> None:
        """A person presses a button that asks for words, and gives them; where a channel has PROMPTS."""

    @abstractmethod
    async def send_command(self, text: str) -> None:
        """A person gives the bot an order in the room, as the platform has it."""

    @abstractmethod
    async def edit_message(self, platform_id: str, text: str) -> None:
        """Edit a message as a user."""

    @abstractmethod
    async def react(self, platform_id: str, *, added: bool) -> None:
        """Add or remove a user's reaction on a message of the bot, on channels with REACT."""

    @abstractmethod
    def reactions(self, platform_id: str) -> list[str]:
        """Return the bot's reactions on a message, by the platform's names."""

    def show_keys(self) -> None:
        """Have the platform show the keys of sends, where it is not certain to."""

    def hide_keys(self) -> None:
        """Have the platform hide the keys of sends; where a channel has FIND."""

    @abstractmethod
    async def send_file(self, content: bytes) -> None:
        """A person sends a file."""

    @abstractmethod
    def visible_messages(self) -> list[VisibleMessage]:
        """Return the texts that the bot sent, in order."""

    @abstractmethod
    def send_count(self) -> int:
        """Return how many sends reached the platform, refused ones included."""

    @abstractmethod
    async def throttle(self, seconds: int) -> None:
        """Answer the next send with a rate limit."""

    @abstractmethod
    async def fail(self) -> None:
        """Answer the next send with a fault of the server."""

    @abstractmethod
    async def revoke(self) -> None:
        """Refuse the bot's token from now on."""

    @abstractmethod
    async def kick(self) -> None:
        """Throw the bot out of the room."""

    @abstractmethod
    async def refuse_markup(self) -> None:
        """Refuse the next send because of its markup."""

    @abstractmethod
    async def cut_receiving(self) -> None:
        """Break the connection updates come by, more than once."""

    @abstractmethod
    async def cut_sending(self, *, carried_out: bool) -> None:
        """Break the connection of the next send."""

    @abstractmethod
    def webhook_settings(self) -> dict[str, Any]:
        """Return settings for being posted to."""

    @abstractmethod
    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        """Return a request as the platform would post it, signed with the secret."""

    @abstractmethod
    def update(self, text: str) -> bytes:
        """Return the body that announces a message."""


class _TelegramRig(ChannelRig):
    """Telegram, as its simulator implements it."""

    room = -4004
    forum = -1_000_000_004_004

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self.secrets = (simulator.token, simulator.token.partition(":")[2], WEBHOOK_SECRET)
        self.unknown_sender = "700700700:not-the-token"

    def settings(self, **others: Any) -> dict[str, Any]:
        return self._simulator.settings(poll_seconds=5, **others)

    async def say(self, text: str) -> None:
        await self._simulator.say(self.room, text, user=7)

    async def say_in_thread(self, text: str) -> str:
        await self._simulator.group(self.forum, forum=True)
        topic = await self._simulator.topic(self.forum)
        await self._simulator.say(self.forum, text, user=7, thread=topic)
        return str(topic)

    async def echo(self, text: str) -> None:
        room = self._simulator.world.room(self.room)
        post = self._simulator.world.post(
            room, self._simulator.world.bot, {"text": text}, thread=None, reply_to=None
        )
        await self._simulator.push({"message": post.raw})

    async def press(self, platform_id: str, button: str) -> None:
        await self._simulator.press(self.room, int(platform_id), button, user=7)

    async def press_with_text(self, platform_id: str, button: Button, text: str) -> None:
        raise NotImplementedError("Telegram's buttons ask for nothing")

    async def send_command(self, text: str) -> None:
        await self._simulator.say(self.room, f"/{text}", user=7)

    async def edit_message(self, platform_id: str, text: str) -> None:
        await self._simulator.edit(self.room, int(platform_id), text)

    async def react(self, platform_id: str, *, added: bool) -> None:
        await self._simulator.react(self.room, int(platform_id), "👍" if added else None, user=7)

    def reactions(self, platform_id: str) -> list[str]:
        raw = self._simulator.world.posts[self.room, int(platform_id)].raw
        return [reaction["emoji"] for reaction in raw.get("reactions", [])]

    async def send_file(self, content: bytes) -> None:
        await self._simulator.send_file(self.room, content, name="notes.txt", media_type="text/plain", user=7)

    def visible_messages(self) -> list[VisibleMessage]:
        return [
            VisibleMessage(str(post.chat), str(post.thread) if post.thread else None, post.text)
            for post in self._simulator.messages()
        ]

    def send_count(self) -> int:
        return sum(method == "sendMessage" for method, _ in self._simulator.calls)

    async def throttle(self, seconds: int) -> None:
        await self._simulator.fail(429, retry_after=seconds, method="sendMessage")

    async def fail(self) -> None:
        await self._simulator.fail(502, method="sendMessage")

    async def revoke(self) -> None:
        await self._simulator.fail(401, times=1000, description="Unauthorized")

    async def kick(self) -> None:
        await self._simulator.kick(self.room)

    async def refuse_markup(self) -> None:
        description = "Bad Request: can't parse entities: something is odd"
        await self._simulator.fail(400, method="sendMessage", description=description)

    async def cut_receiving(self) -> None:
        await self._simulator.cut(method="getUpdates", times=3)

    async def cut_sending(self, *, carried_out: bool) -> None:
        await self._simulator.cut(method="sendMessage", after=carried_out)

    def webhook_settings(self) -> dict[str, Any]:
        return self._simulator.settings(
            mode="webhook", webhook_secret=WEBHOOK_SECRET, webhook_url="http://127.0.0.1:9/inbound"
        )

    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        headers = {"content-type": "application/json"}
        signed = {} if secret is None else {"x-telegram-bot-api-secret-token": secret}
        return WebhookRequest(headers={**headers, **signed}, body=body)

    def update(self, text: str) -> bytes:
        person = {"id": 7, "is_bot": False, "first_name": "Ada"}
        chat = {"id": 7, "type": "private"}
        message = {"message_id": 1, "date": 1767225600, "from": person, "chat": chat, "text": text}
        return json.dumps({"update_id": 5, "message": message}).encode()


def _discord(simulator: Any) -> ChannelRig:
    """Discord's rig has a file of its own."""
    from discord_rig import rig

    return rig(simulator)


def _slack(simulator: Any) -> ChannelRig:
    """Slack's rig has a file of its own."""
    from slack_rig import rig

    return rig(simulator)


RIGS: Mapping[str, Callable[[Any], ChannelRig]] = {
    "telegram": _TelegramRig,
    "discord": _discord,
    "slack": _slack,
}


@asynccontextmanager
async def open_rig(plugin: ChannelPlugin) -> AsyncIterator[ChannelRig]:
    """Start a plugin's simulator with its rig."""
    assert plugin.simulate is not None, f"{plugin.name} has no simulator"
    async with plugin.simulate() as (simulator, _):
        yield RIGS[plugin.name](simulator)


@dataclass(slots=True)
class UpdateRecorder:
    """An `accept` that stores the updates it gets, and refuses while it has `refusals` left."""

    updates: list[Update] = field(default_factory=list)
    refused: int = 0
    refusals: int = 0
    states: list[bool] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    _received: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def accept(self, update: Update) -> None:
        """Take an update, or raise as a full disk would."""
        async with self._received:
            self._received.notify_all()
            if self.refusals:
                self.refusals -= 1
                self.refused += 1
                raise OSError("no space left on device")
            self.updates.append(update)

    def record_status(self, yes: bool, why: str = "", /) -> None:
        """Keep whether it receives, and why not."""
        self.states.append(yes)
        self.reasons += [why] if why else []

    async def wait(self, count: int) -> list[Update]:
        """Wait for so many updates."""
        async with asyncio.timeout(20), self._received:
            await self._received.wait_for(lambda: len(self.updates) >= count)
        return self.updates


@asynccontextmanager
async def open_connection(
    plugin: ChannelPlugin, settings: Mapping[str, Any], notes: ChannelState | None = None
) -> AsyncIterator[Connection]:
    """Open a connection from plain settings."""
    async with plugin.open(CHANNEL, plugin.settings(**settings), notes or MemoryChannelState()) as connection:
        yield connection


@asynccontextmanager
async def receiving(connection: Connection, recorder: UpdateRecorder) -> AsyncIterator[asyncio.Task[None]]:
    """Run the inbox in the background."""
    task = asyncio.create_task(connection.receiver.run(recorder.accept, receiving=recorder.record_status))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

"""People and their bot exchange files: results through kill -9, pictures into the inbox, on each platform."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from channels.discord import simulator as discord
from channels.slack import simulator as slack
from channels.telegram import simulator as telegram
from gateway_process import GatewayProcess, channel_env, gateway

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
TIMEOUT_SECONDS = 40.0
FOLLOW_UP = "completed, exit code 0"


class ChatDriver(Protocol):
    """A platform as its users see it: one thread of a group, and a private conversation."""

    kind: str
    simulator: Any

    @abstractmethod
    async def prepare(self) -> None:
        """Make the rooms."""

    @abstractmethod
    async def say(self, text: str) -> None:
        """Say something in the thread."""

    @abstractmethod
    async def send_picture(self, picture: bytes) -> None:
        """Send a picture in private."""

    @abstractmethod
    async def say_privately(self, text: str) -> None:
        """Say something in private."""

    @abstractmethod
    def texts(self) -> list[str]:
        """Return the bot's texts, anywhere."""

    @abstractmethod
    def files(self) -> list[tuple[str, bytes, bool]]:
        """Return (name, bytes, whether it is in the thread) of what the bot attached."""


class TelegramDriver(ChatDriver):
    """A forum's topic, and a private chat."""

    kind = "telegram"

    def __init__(self, simulator: telegram.Simulator) -> None:
        self.simulator = simulator
        self.forum, self.person = -1000000004711, 4711

    async def prepare(self) -> None:
        """Make a forum with a topic."""
        await self.simulator.group(self.forum, forum=True)
        self.topic = await self.simulator.topic(self.forum)

    async def say(self, text: str) -> None:
        """Type into the topic."""
        await self.simulator.say(self.forum, text, thread=self.topic, user=7)

    async def send_picture(self, picture: bytes) -> None:
        """Send a photo."""
        await self.simulator.send_file(self.person, picture)

    async def say_privately(self, text: str) -> None:
        """Type into the private chat."""
        await self.simulator.say(self.person, text)

    def texts(self) -> list[str]:
        """Return the bot's messages."""
        return [post.text for post in self.simulator.messages()]

    def files(self) -> list[tuple[str, bytes, bool]]:
        """Return the bot's documents."""
        return [
            (post.raw["document"]["file_name"], post.file or b"", post.thread == self.topic)
            for post in self.simulator.messages()
            if "document" in post.raw
        ]


class SlackDriver(ChatDriver):
    """A channel's thread, and a direct message."""

    kind = "slack"

    def __init__(self, simulator: slack.Simulator) -> None:
        self.simulator = simulator

    async def prepare(self) -> None:
        """Open a thread in a channel."""
        self.root = await self.simulator.say("C0ROOM", "good morning")

    async def say(self, text: str) -> None:
        """Mention the bot in the thread."""
        await self.simulator.say("C0ROOM", f"<@U0BOT> {text}", thread=self.root)

    async def send_picture(self, picture: bytes) -> None:
        """Send a picture."""
        await self.simulator.send_file("D0ADA", picture, name="photo.jpg", media_type="image/png")

    async def say_privately(self, text: str) -> None:
        """Type into the direct message."""
        await self.simulator.say("D0ADA", text)

    def texts(self) -> list[str]:
        """Return the bot's messages."""
        return [post.text for post in self.simulator.messages()]

    def files(self) -> list[tuple[str, bytes, bool]]:
        """Return the files of the bot's messages."""
        return [
            (file["title"], self.simulator.world.contents[file["id"]], post.thread == self.root)
            for post in self.simulator.messages()
            for file in post.raw.get("files", [])
        ]


class DiscordDriver(ChatDriver):
    """A thread of a server's channel, and a private channel."""

    kind = "discord"

    def __init__(self, simulator: discord.Simulator) -> None:
        self.simulator = simulator

    async def prepare(self) -> None:
        """Open a thread."""
        await self.simulator.server_channel(4004)
        self.thread = await self.simulator.thread(4004)

    async def say(self, text: str) -> None:
        """Say it in the thread."""
        await self.simulator.say(self.thread, text)

    async def send_picture(self, picture: bytes) -> None:
        """Send a picture."""
        await self.simulator.send_file(4711, picture, name="photo.jpg", media_type="image/png")

    async def say_privately(self, text: str) -> None:
        """Say it in private."""
        await self.simulator.say(4711, text)

    def texts(self) -> list[str]:
        """Return the bot's messages."""
        return [post.text for post in self.simulator.messages()]

    def files(self) -> list[tuple[str, bytes, bool]]:
        """Return the attachments of the bot's messages."""
        contents = list(self.simulator.world.files.items())
        return [
            (file["filename"], _named(contents, file["filename"]), int(post.raw["channel_id"]) == self.thread)
            for post in self.simulator.messages()
            for file in post.raw.get("attachments", [])
        ]


def _named(contents: list[tuple[str, bytes]], name: str) -> bytes:
    return next(content for path, content in contents if path.endswith(f"/{name}"))


CHAT_DRIVERS: dict[str, tuple[Any, Callable[[Any], ChatDriver]]] = {
    "telegram": (telegram.simulate, TelegramDriver),
    "slack": (slack.simulate, SlackDriver),
    "discord": (discord.simulate, DiscordDriver),
}


@asynccontextmanager
async def open_chat(kind: str) -> AsyncIterator[ChatDriver]:
    """Run a platform on loopback, with its rooms."""
    simulate, chat_of = CHAT_DRIVERS[kind]
    async with simulate() as simulator:
        chat = chat_of(simulator)
        await chat.prepare()
        yield chat


@pytest.fixture(params=sorted(CHAT_DRIVERS))
async def chat(request: pytest.FixtureRequest) -> AsyncIterator[ChatDriver]:
    """Each platform in turn."""
    async with open_chat(request.param) as one:
        yield one


def env_of(chat: ChatDriver, **more: str) -> dict[str, str]:
    """Return the environment of a gateway whose bot receives every message."""
    return {**channel_env(chat.kind, chat.simulator.settings(allow=["*"], groups="always")), **more}


@pytest.fixture
async def running(chat: ChatDriver, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """Run a gateway on the platform."""
    async with gateway(tmp_path / "data", env=env_of(chat)) as process:
        yield process


async def until(chat: ChatDriver, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds for the bot's messages."""
    await chat.simulator.wait_until(condition, seconds=TIMEOUT_SECONDS)


async def until_settled(process: GatewayProcess) -> None:
    """Wait until no delivery is open."""
    async with asyncio.timeout(TIMEOUT_SECONDS), process.http() as session:
        while True:
            async with session.get("/deliveries") as answer:
                found = (await answer.json())["items"]
            if found and all(one["state"] == "delivered" for one in found):
                return
            await asyncio.sleep(0.05)


async def test_a_job_s_file_comes_home_through_kill_9(chat: ChatDriver, running: GatewayProcess) -> None:
    """The result and the file arrive in the thread that asked, once, although the gateway was killed."""
    await chat.say("!&sleep 2; mkdir -p outbox; echo pigeon > outbox/result.txt; echo all''done")
    await until(chat, lambda: any("Started job" in text for text in chat.texts()))
    await until_settled(running)
    await running.kill()
    await running.start()
    await until(chat, lambda: any("alldone" in text for text in chat.texts()) and bool(chat.files()))
    await until_settled(running)
    assert chat.files() == [("result.txt", b"pigeon\n", True)]


async def test_a_picture_lands_in_the_inbox(chat: ChatDriver, running: GatewayProcess) -> None:
    """A user's file is in inbox/ under its name, and the bot reports it."""
    await chat.send_picture(PNG)
    came = re.compile(r"\[attached: inbox/photo[-\d]*\.jpg, 72 bytes, image/png\]")
    await until(chat, lambda: any(came.search(text) for text in chat.texts()))
    await chat.say_privately("!ls inbox | wc -l; cat inbox/photo* | wc -c")
    await until(chat, lambda: any("1\n72" in text for text in chat.texts()))

"""The simulated Discord as a whole: started, driven, watched."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from channels.discord.simulator.rest import Rest
from channels.discord.simulator.server import Fault, Server
from channels.discord.simulator.sessions import Sessions
from channels.discord.simulator.world import (
    MADE_IN,
    PUBLIC_THREAD,
    TEXT,
    Channel,
    Failure,
    Interaction,
    Post,
    Raw,
    World,
)

BOT = "700700700700700700"
TOKEN = base64.b64encode(BOT.encode()).decode().rstrip("=") + ".simulated.discord-token_1"
PATIENCE = 10.0


class Simulator:
    """One bot's Discord. The public methods are what people, servers and fate do to it."""

    def __init__(self, *, token: str = TOKEN) -> None:
        self.token = token
        bot = {"id": BOT, "username": "dovecote", "bot": True}
        self.world = World(bot, BOT)
        self.sessions = Sessions(self.world, token)
        self.rest = Rest(self.world, self.sessions)
        self.server = Server(self.world, self.rest, self.sessions, token)
        self.key = Ed25519PrivateKey.generate()
        self.port = 0

    @property
    def url(self) -> str:
        """Where all of it is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def public_key(self) -> str:
        """What interactions are verified with."""
        return self.key.public_key().public_bytes_raw().hex()

    @property
    def calls(self) -> list[tuple[str, str, Raw]]:
        """The calls so far: name, path and fields."""
        return self.server.calls

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return channel settings that lead here."""
        return {
            "token": self.token,
            "api_url": f"{self.url}/api",
            "gateway_url": f"ws://127.0.0.1:{self.port}/gateway/",
            "cdn_url": f"{self.url}/cdn",
            "allow": ["*"],
            **others,
        }

    async def say(self, chat: int, text: str, *, user: int = 7, thread: int | None = None) -> str:
        """A person says something; a chat that is not known is a private one."""
        place = self.world.channel(thread or chat)
        return await self._speak(place, self.world.person(user), text)

    async def echo(self, chat: int, text: str) -> str:
        """The bot says something that did not come from us."""
        return await self._speak(self.world.channel(chat), self.world.bot, text)

    async def edit(self, chat: int, number: str, text: str) -> None:
        """A person changes a message."""
        place = self.world.channel(chat)
        message = self.world.message(place, number)
        message.update(content=text, edited_timestamp="2026-01-01T00:00:00+00:00")
        await self._tell("MESSAGE_UPDATE", place, message)

    async def send_file(self, chat: int, content: bytes, *, name: str, media_type: str, user: int = 7) -> str:
        """A person sends a file."""
        place = self.world.channel(chat)
        attachment = self.rest.attach(place, name, media_type, content)
        return await self._speak(place, self.world.person(user), "", attachments=[attachment])

    async def command(self, chat: int, name: str, words: str = "", *, user: int = 7) -> Interaction:
        """A person uses a slash command; it comes by the gateway."""
        option = "words" if name == "dovecote" else "question"
        options = [{"name": option, "type": 3, "value": words}] if words else []
        asked = {"type": 2, "data": {"id": "1", "name": name, "type": 1, "options": options}}
        return await self._interact(chat, asked, user)

    async def press(self, chat: int, number: str, button: str, *, user: int = 7) -> Interaction:
        """A person presses a button of a message; it comes by the gateway."""
        place = self.world.channel(chat)
        message = self.world.message(place, number)
        asked = {"type": 3, "data": {"custom_id": button, "component_type": 2}, "message": message}
        return await self._interact(chat, asked, user)

    def interaction(self, chat: int, asked: Raw, user: int = 7) -> tuple[Interaction, Raw]:
        """Make an interaction without telling anybody; returns it with its object."""
        place = self.world.channel(chat)
        number = self.world.snowflake()
        made = Interaction(number, f"aW50ZXJhY3Rpb24_{number}", place)
        self.world.interactions[made.token] = made
        person = self.world.person(user)
        who: Raw = {"member": {"user": person, "nick": None}} if place.guild else {"user": person}
        raw = {
            "id": number,
            "application_id": self.world.application,
            "token": made.token,
            "version": 1,
            "channel_id": place.id,
            "channel": place.raw,
            **({"guild_id": place.guild} if place.guild else {}),
            **who,
            **asked,
        }
        return made, raw

    def signed(self, body: bytes, *, timestamp: str | None = None) -> dict[str, str]:
        """Return the headers Discord would post a body with."""
        when = timestamp or str(int(time.time()))
        signature = self.key.sign(when.encode() + body).hex()
        return {"x-signature-ed25519": signature, "x-signature-timestamp": when}

    async def post(self, url: str, raw: Raw) -> tuple[int, Raw]:
        """Post an interaction to an endpoint and carry out the reaction; returns status and reaction."""
        body = json.dumps(raw).encode()
        headers = {**self.signed(body), "Content-Type": "application/json"}
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
            reaction = await answer.json() if answer.status == 200 else {}  # noqa: PLR2004 - OK
        asked = self.world.interactions.get(str(raw.get("token")))
        if asked is not None and reaction:
            self.rest.react(asked, reaction)
        await self.world.announce()
        return answer.status, reaction

    async def server_channel(self, chat: int, *, guild: int = MADE_IN) -> Channel:
        """Open a channel in a server."""
        name = str(guild)
        is_new = name not in self.world.guilds
        self.world.guilds.setdefault(name, {"id": name, "name": "Engine Room"})
        channel = self.world.channels[str(chat)] = Channel(str(chat), TEXT, name)
        if is_new:
            await self.sessions.tell("GUILD_CREATE", self.sessions.guild(name))
        else:
            await self.sessions.tell("CHANNEL_CREATE", channel.raw)
        return channel

    async def thread(self, chat: int) -> int:
        """Open a thread in a channel of a server; returns its id."""
        parent = self.world.channels[str(chat)]
        number = self.world.snowflake()
        thread = self.world.channels[number] = Channel(number, PUBLIC_THREAD, parent.guild, parent.id)
        await self.sessions.tell("THREAD_CREATE", thread.raw)
        return int(number)

    async def kick(self, chat: int) -> None:
        """The bot may not see a channel any more."""
        self.world.channel(chat).is_visible = False

    async def mute(self, chat: int) -> None:
        """The bot may not speak in a channel any more."""
        self.world.channel(chat).is_writable = False

    async def push(self, name: str, content: Any) -> None:
        """Dispatch an event of any content, garbage too."""
        await self.sessions.tell(name, content)

    async def fail(
        self, status: int, *, code: int = 0, times: int = 1, name: str | None = None, message: str = ""
    ) -> None:
        """Answer the next calls with a failure."""
        self.server.faults.append(Fault(times, name, Failure(status, code, message or f"Error {status}")))

    async def throttle(
        self, seconds: float, *, everywhere: bool = False, times: int = 1, name: str = "create"
    ) -> None:
        """Answer the next calls with a rate limit."""
        scope = "global" if everywhere else "user"
        headers = {"Retry-After": int(seconds) + 1, "X-RateLimit-Scope": scope}
        extra = {"retry_after": seconds, "global": everywhere}
        failure = Failure(429, 0, "You are being rate limited.", extra=extra, headers=headers)
        self.server.faults.append(Fault(times, name, failure))

    async def cut(self, *, name: str = "create", after: bool = True, times: int = 1) -> None:
        """Hang up on the next calls, after or before carrying them out."""
        self.server.faults.append(Fault(times, name, cuts="after" if after else "before"))

    async def drop(self, *, refusals: int = 0, code: int | None = None, forget: bool = False) -> None:
        """Break the gateway's connections; refuse the next ones; perhaps forget the sessions."""
        self.sessions.refusals = refusals
        await self.sessions.drop(code=code)
        if forget:
            self.sessions.forget()

    async def revoke(self) -> None:
        """The token is not good any more."""
        self.sessions.token = "revoked"  # noqa: S105 - no token at all
        await self.fail(401, times=1000, message="401: Unauthorized")

    def messages(self, chat: int | None = None) -> list[Post]:
        """Return what the bot said, in order."""
        return self.world.posts(chat)

    async def wait_for_messages(
        self, count: int, *, chat: int | None = None, seconds: float = PATIENCE
    ) -> list[Post]:
        """Wait until the bot has said so much; raises TimeoutError."""
        await self.wait_until(lambda: len(self.messages(chat)) >= count, seconds=seconds)
        return self.messages(chat)

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
        """Wait until a condition holds; raises TimeoutError. Conditions are looked at after every call."""
        async with asyncio.timeout(seconds):
            await self.world.until(condition)

    async def _speak(self, place: Channel, author: Raw, text: str, **others: Any) -> str:
        message = self.world.post(place, author, text, **others)
        await self._tell("MESSAGE_CREATE", place, message)
        return str(message["id"])

    async def _interact(self, chat: int, asked: Raw, user: int) -> Interaction:
        made, raw = self.interaction(chat, asked, user)
        await self.sessions.tell("INTERACTION_CREATE", raw)
        return made

    async def _tell(self, name: str, place: Channel, message: Raw) -> None:
        shown = {**message, "guild_id": place.guild} if place.guild else message
        await self.sessions.tell(name, shown, private=place.guild is None)


@asynccontextmanager
async def simulate(*, port: int = 0, **options: Any) -> AsyncIterator[Simulator]:
    """Run a simulated Discord on a loopback port, a free one by default."""
    simulator = Simulator(**options)
    runner = web.AppRunner(
        simulator.server.application(), access_log=None, shutdown_timeout=0.1, handler_cancellation=True
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    simulator.port = int(runner.addresses[0][1])
    simulator.rest.url = simulator.url
    simulator.sessions.url = f"ws://127.0.0.1:{simulator.port}/gateway/"
    try:
        yield simulator
    finally:
        await simulator.sessions.drop()
        await runner.cleanup()

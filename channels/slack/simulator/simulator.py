"""The simulated Slack as a whole: started, driven, watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from channels.slack.simulator.failure import Failure, Fault, Faults
from channels.slack.simulator.methods import Methods
from channels.slack.simulator.outgoing import Envelope, Sockets, push
from channels.slack.simulator.server import Server
from channels.slack.simulator.world import APP, BOT_USER, TEAM, Post, Raw, World, room_id

BOT_TOKEN = "xoxb-simulated-bot-token"  # noqa: S105 - valid at the simulator only
APP_TOKEN = "xapp-simulated-app-token"  # noqa: S105 - valid at the simulator only
SIGNING_SECRET = "simulated-signing-secret"  # noqa: S105 - valid at the simulator only
PATIENCE = 10.0


class Simulator:
    """One app's Slack. The public methods are what people, rooms and fate do to it."""

    def __init__(self) -> None:
        self.tokens = (BOT_TOKEN, APP_TOKEN)
        self.signing_secret = SIGNING_SECRET
        self.world = World()
        self.sockets = Sockets()
        self.faults = Faults()
        self.request_url = ""
        self.statuses: list[list[int]] = []
        self.methods = Methods(self.world, lambda: self.url, self._echo)
        self.server = Server(self.tokens, self.world, self.methods, self.faults, self.sockets)
        self._echoes: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it is; the Web API is below `/api/`."""
        return self.server.url

    @property
    def calls(self) -> list[tuple[str, Raw]]:
        """The calls so far: method and arguments."""
        return self.server.calls

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return channel settings that lead here."""
        tokens = {"bot_token": self.tokens[0], "app_token": self.tokens[1]}
        return {**tokens, "base_url": f"{self.url}/api/", "allow": ["*"], **others}

    async def say(self, room: str | int, text: str, *, user: str = "U0ADA", thread: str | None = None) -> str:
        """A person types into a room; a mention in a channel is told twice. Returns the time stamp."""
        return await self._speak(room, user, {"text": text, "client_msg_id": "0-0"}, thread)

    async def send_file(self, room: str | int, content: bytes, *, name: str, media_type: str) -> str:
        """A person sends a file."""
        number = f"F{next(self.world.numbers):08d}"
        self.world.files[number] = {"id": number, "name": name, "mimetype": media_type, "size": len(content)}
        self.server.keep(number, content)
        words = {"text": "", "subtype": "file_share", "files": [self.world.files[number]]}
        return await self._speak(room, "U0ADA", words, None)

    async def edit(self, room: str | int, ts: str, text: str) -> None:
        """A person edits what they said."""
        name = room_id(room)
        post = self.world.find(name, ts)
        if post is None:
            raise KeyError(ts)
        before = dict(post.raw)
        post.raw = {**post.raw, "text": text, "edited": {"user": post.user, "ts": self.world.stamp()}}
        changed = {"subtype": "message_changed", "message": post.raw, "previous_message": before}
        await self._tell_event({"type": "message", **changed, **self._place(name), "ts": self.world.stamp()})

    async def press(self, room: str | int, ts: str, value: str, *, user: str = "U0ADA") -> None:
        """A person presses a button of the bot."""
        name = room_id(room)
        post = self.world.find(name, ts)
        if post is None or value not in [button.get("value") for button in post.buttons]:
            raise KeyError(f"message {ts} has no button {value!r}")
        thread = {"thread_ts": post.thread} if post.thread else {}
        container = {"type": "message", "message_ts": ts, "channel_id": name, "is_ephemeral": False, **thread}
        button = next(one for one in post.buttons if one.get("value") == value)
        action = {**button, "block_id": "b1", "action_ts": self.world.stamp()}
        who = {"id": user, "username": "ada", "name": "ada", "team_id": TEAM}
        payload = {"type": "block_actions", "team": {"id": TEAM, "domain": "sim"}, "user": who}
        place = {"channel": {"id": name, "name": "room"}, "container": container, "message": post.raw}
        address = {"response_url": f"{self.url}/response", "trigger_id": self._trigger(), "api_app_id": APP}
        await self._tell("interactive", {**payload, **place, **address, "actions": [action]})

    async def slash(self, room: str | int, text: str, *, user: str = "U0ADA") -> None:
        """A person types `/dovecote` and some text."""
        name = self.world.room(room).id
        kind = "directmessage" if name.startswith("D") else "room"
        where = {"team_id": TEAM, "channel_id": name, "channel_name": kind, "user_id": user}
        what = {"command": "/dovecote", "text": text, "trigger_id": self._trigger(), "api_app_id": APP}
        await self._tell("slash_commands", {**where, "user_name": "ada", **what})

    async def kick(self, room: str | int, *, refusal: str = "not_in_channel") -> None:
        """The bot is thrown out of a room."""
        self.world.room(room).refusal = refusal

    async def fail(
        self,
        error: str = "internal_error",
        *,
        status: int = 200,
        times: int = 1,
        method: str | None = None,
        retry_after: int = 0,
    ) -> None:
        """Answer the next calls with a failure."""
        failure = Failure(error, status=status, retry_after=retry_after)
        self.faults.add(Fault(times, method, failure))

    async def cut(self, *, method: str, after: bool, times: int = 1) -> None:
        """Hang up on the next calls, after or before carrying them out."""
        self.faults.add(Fault(times, method, after=after))

    def messages(self, room: str | int | None = None) -> list[Post]:
        """Return what the bot said, in order."""
        said = [post for post in self.world.posts if post.user == BOT_USER]
        return said if room is None else [post for post in said if post.room == room_id(room)]

    async def wait_for_messages(
        self, count: int, *, room: str | int | None = None, seconds: float = PATIENCE
    ) -> list[Post]:
        """Wait until the bot has said so much; raises TimeoutError."""
        await self.wait_until(lambda: len(self.messages(room)) >= count, seconds=seconds)
        return self.messages(room)

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
        """Wait until a condition holds; raises TimeoutError. Conditions are looked at after every call."""
        async with asyncio.timeout(seconds):
            await self.world.until(condition)

    def _place(self, room: str) -> Raw:
        return {"channel": room, "channel_type": self.world.room(room).kind, "event_ts": self.world.stamp()}

    async def _speak(self, room: str | int, user: str, content: Raw, thread: str | None) -> str:
        name = self.world.room(room).id
        post = self.world.post(name, user, {**content, **({"thread_ts": thread} if thread else {})})
        await self._tell_event({**post.raw, **self._place(name)})
        if f"<@{BOT_USER}>" in str(content.get("text")) and not name.startswith("D"):
            mention = {key: value for key, value in self._place(name).items() if key != "channel_type"}
            await self._tell_event({**post.raw, **mention, "type": "app_mention"})
        return post.ts

    def _echo(self, post: Post) -> None:
        """Tell the app of its own message, as Slack does."""
        told = asyncio.create_task(self.tell_again(post))
        self._echoes.add(told)
        told.add_done_callback(self._echoes.discard)

    async def tell_again(self, post: Post) -> None:
        """Tell the app of a message."""
        await self._tell_event({**post.raw, **self._place(post.room)})

    async def _tell_event(self, event: Raw) -> None:
        number = f"Ev{next(self.world.numbers):08d}"
        outer = {"token": "unused", "team_id": TEAM, "api_app_id": APP, "type": "event_callback"}
        await self._tell(
            "events_api", {**outer, "event": event, "event_id": number, "event_time": 1767225600}
        )

    async def _tell(self, kind: str, payload: Raw) -> None:
        if self.request_url:
            self.statuses.append(await push(self.request_url, self.signing_secret, kind, payload))
        else:
            await self.sockets.tell(Envelope(kind, payload, f"env-{next(self.world.numbers)}"))

    def _trigger(self) -> str:
        return f"1767225600.{next(self.world.numbers)}.abc"

    async def close(self) -> None:
        """End what is still being told."""
        for echo in list(self._echoes):
            echo.cancel()
            with suppress(asyncio.CancelledError):
                await echo


@asynccontextmanager
async def simulate(*, port: int = 0) -> AsyncIterator[Simulator]:
    """Run a simulated Slack on a loopback port, a free one by default."""
    simulator = Simulator()
    application = simulator.server.application()
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    simulator.server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield simulator
    finally:
        await simulator.close()
        await runner.cleanup()

"""The simulated Slack: start it, drive it, and inspect it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from channels.slack.simulator.api import scopes
from channels.slack.simulator.api.methods import Methods
from channels.slack.simulator.api.rate_limits import RateLimits
from channels.slack.simulator.clock import SimulatedClock
from channels.slack.simulator.failure import ApiFailure, Fault, Faults
from channels.slack.simulator.installations import CLIENT_ID, CLIENT_SECRET
from channels.slack.simulator.outgoing import Envelope, Poster, Sockets
from channels.slack.simulator.server import Server
from channels.slack.simulator.user_actions import ADA, UserActions
from channels.slack.simulator.world import APP, BOT_USER, TEAM, Post, Raw, Room, World, room_id

BOT_TOKEN = "xoxb-simulated-bot-token"  # noqa: S105 - valid at the simulator only
APP_TOKEN = "xapp-simulated-app-token"  # noqa: S105 - valid at the simulator only
SIGNING_SECRET = "simulated-signing-secret"  # noqa: S105 - valid at the simulator only
TIMEOUT_SECONDS = 30.0


class Simulator(UserActions):
    """One app's Slack; the public methods are actions of users and rooms, and faults.

    Events are posted to `request_url` if it is set, otherwise sent by Socket Mode.
    """

    def __init__(self) -> None:
        self.tokens = (BOT_TOKEN, APP_TOKEN)
        self.signing_secret = SIGNING_SECRET
        self.clock = SimulatedClock()
        self.world = World(self.clock)
        self.sockets = Sockets(on_response=self._on_response)
        self.poster = Poster(self.clock, self.signing_secret, self._on_response)
        self.faults = Faults()
        self.rate_limits = RateLimits(self.clock.now)
        self.request_url = ""
        self.methods = Methods(self.world, lambda: self.url, self._on_message)
        self.server = Server(
            self.tokens,
            self.world,
            self.methods,
            self.faults,
            sockets=self.sockets,
            rate_limits=self.rate_limits,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL; the Web API is below `/api/`."""
        return self.server.url

    @property
    def calls(self) -> list[tuple[str, Raw]]:
        """The calls so far: method and arguments."""
        return self.server.calls

    @property
    def statuses(self) -> list[list[int]]:
        """The response statuses of the app to each post and its retries."""
        return self.poster.statuses

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return channel settings for this simulator."""
        tokens = {"bot_token": self.tokens[0], "app_token": self.tokens[1]}
        return {**tokens, "base_url": f"{self.url}/api/", "allow": ["*"], **others}

    def app_settings(self, **others: Any) -> dict[str, Any]:
        """Return the settings of a channel that many workspaces install."""
        app = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "app_token": self.tokens[1]}
        return {**app, "base_url": f"{self.url}/api/", "allow": ["*"], **others}

    async def uninstall(self, team: str) -> None:
        """Uninstall the app from a workspace, as its admin: its tokens end, and the app gets the event."""
        self.server.installations.revoke(team)
        room = Room("", "", team=team)
        await self.send_team_event(
            room, {"type": "tokens_revoked", "tokens": {"oauth": [], "bot": [BOT_USER]}}
        )
        await self.send_team_event(room, {"type": "app_uninstalled"})

    async def kick(self, room: str | int, *, refusal: str = "channel_not_found") -> None:
        """Remove the bot from a room; a private one disappears for it, a public one is `not_in_channel`."""
        self.world.room(room).refusal = refusal

    async def unarchive(self, room: str | int, *, user: str = ADA) -> None:
        """Open an archived channel again; its members see a message that says so."""
        opened = self.world.room(room)
        opened.refusal = ""
        subtype = "group_unarchive" if opened.kind == "group" else "channel_unarchive"
        text = {"subtype": subtype, "text": f"<@{user}> un-archived the channel"}
        await self.send_message_event(self.world.post(opened.id, user, text))

    async def invite(self, room: str | int) -> None:
        """Add the bot to a channel again; its members see a message that says so."""
        joined = self.world.room(room)
        joined.refusal = ""
        subtype = "group_join" if joined.kind == "group" else "channel_join"
        text = {"subtype": subtype, "text": f"<@{BOT_USER}> has joined the channel"}
        await self.send_message_event(self.world.post(joined.id, BOT_USER, text))

    async def change_id(self, room: str | int, new: str) -> None:
        """Give a private channel another id, as sharing it with a workspace does; the old one ends."""
        old = self.world.room(room)
        self.world.room(new).kind = old.kind
        old.refusal = "channel_not_found"
        for post in self.world.posts:
            post.room = new if post.room == old.id else post.room
        ids = {"old_channel_id": old.id, "new_channel_id": new, "event_ts": self.world.next_ts()}
        await self.send_event({"type": "channel_id_changed", **ids})

    async def fail(
        self,
        error: str = "internal_error",
        *,
        status: int = 200,
        times: int = 1,
        method: str | None = None,
        retry_after: int = 0,
        having: str | None = None,
    ) -> None:
        """Answer the next calls, or those with an argument, with a failure."""
        failure = ApiFailure(error, status=status, retry_after=retry_after)
        self.faults.add(Fault(times, method, failure, having=having))

    async def hide_metadata(self) -> None:
        """Stop to show the metadata of messages, as Slack does to apps that may not see it."""
        self.world.shows_metadata = False

    async def cut(self, *, method: str, after: bool, times: int = 1) -> None:
        """Cut the connection of the next calls, after or before carrying them out."""
        self.faults.add(Fault(times, method, after=after))

    async def answer_late(self, seconds: float, *, method: str | None = None, times: int = 1) -> None:
        """Carry out the next calls at once, and answer them after `seconds`."""
        self.faults.add(Fault(times, method, seconds=seconds))

    async def grant(self, granted: Iterable[str] = scopes.ALL_SCOPES) -> None:
        """Replace the token's scopes."""
        self.server.scopes = frozenset(granted)

    async def advance(self, seconds: float) -> None:
        """Advance the clock: buckets fill, streams and triggers end, retries are made."""
        self.clock.advance(seconds)

    def messages(self, room: str | int | None = None) -> list[Post]:
        """Return the bot's messages in order."""
        said = [post for post in self.world.posts if post.user == BOT_USER]
        return said if room is None else [post for post in said if post.room == room_id(room)]

    async def wait_for_messages(
        self, count: int, *, room: str | int | None = None, seconds: float = TIMEOUT_SECONDS
    ) -> list[Post]:
        """Wait until the bot has sent `count` messages; raises TimeoutError."""
        await self.wait_until(lambda: len(self.messages(room)) >= count, seconds=seconds)
        return self.messages(room)

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until a condition holds, checked after every call; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            await self.world.wait_until(condition)

    async def wait_until_acknowledged(self, *, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until the app has acknowledged all envelopes; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while self.sockets.waiting:
                await self.sockets.changed.wait()

    async def send_event(self, event: Raw) -> None:
        """Send the app an event, if its scopes allow it."""
        if not scopes.is_visible(event, self.server.scopes):
            return
        place = event.get("channel") or (event.get("item") or {}).get("channel")
        await self.send_team_event(self.world.room(str(place)) if place else Room("", "", team=TEAM), event)

    async def send_team_event(self, room: Room, event: Raw) -> None:
        """Send the app an event of a room's workspace and organisation."""
        number = f"Ev{next(self.world.numbers):08d}"
        owner: Raw = {"team_id": room.team, "enterprise_id": room.enterprise or None}
        is_organisation = room.enterprise in self.server.installations.teams.values()
        authorized = {**owner, "user_id": BOT_USER, "is_bot": True, "is_enterprise_install": is_organisation}
        outer = {"token": "unused", **owner, "api_app_id": APP, "type": "event_callback"}
        outer["authorizations"] = [authorized]
        if visitor := self.world.visitors.get(str(event.get("user"))):
            context = {f"context_{name}": value for name, value in owner.items()}
            outer |= {"is_ext_shared_channel": True, **context, "team_id": visitor}
            outer["enterprise_id"] = self.world.organisations.get(visitor)
        when = {"event_id": number, "event_time": int(self.clock.now())}
        await self.send("events_api", {**outer, "event": event, **when})

    async def send(self, kind: str, payload: Raw) -> None:
        """Deliver a payload to the app, by a post or by Socket Mode."""
        if self.request_url:
            await self.poster.send(self.request_url, kind, payload)
        else:
            await self.sockets.send(Envelope(kind, payload, f"env-{next(self.world.numbers)}"))

    def _on_response(self, payload: Raw, answer: Raw) -> None:
        """Process the content of an acknowledgement: a message to the user, or errors of a modal."""
        if "command" in payload and answer.get("text"):
            notice = {"room": payload["channel_id"], "user": payload["user_id"], "text": answer["text"]}
            self.world.notices.append(notice)
        if payload.get("type") == "view_submission" and answer.get("response_action") == "errors":
            for modal in self.world.modals:
                modal.is_open = modal.is_open or modal.id == payload["view"]["id"]
        self._start_task(self.world.notify_changed())

    def _on_message(self, post: Post) -> None:
        """Send the app an event about its own message, as Slack does."""
        self._start_task(self.send_message_event(post))

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        """Run a coroutine in the background of the call that caused it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop outstanding deliveries."""
        await self.poster.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

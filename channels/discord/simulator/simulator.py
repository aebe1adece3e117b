"""The simulated Discord: start it, drive it, and inspect it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from channels.discord.simulator import shapes
from channels.discord.simulator.faults import CONTENT_KINDS, Fault
from channels.discord.simulator.interaction_endpoints import InteractionEndpoints
from channels.discord.simulator.rate_limits import rate_limited
from channels.discord.simulator.rest import RestApi
from channels.discord.simulator.server import Server
from channels.discord.simulator.sessions import SimulatedGateway
from channels.discord.simulator.user_actions import UserActions
from channels.discord.simulator.world import ApiFailure, Post, Raw, World

BOT = "700700700700700700"
TOKEN = base64.b64encode(BOT.encode()).decode().rstrip("=") + ".simulated.discord-token_1"
TIMEOUT_SECONDS = 30.0


class Simulator(UserActions):
    """One bot's Discord; the public methods are actions of users and servers, and faults."""

    def __init__(self, *, token: str = TOKEN) -> None:
        self.token = token
        self.key = Ed25519PrivateKey.generate()
        world = World(shapes.user(BOT, "dovecote", bot=True), BOT)
        sessions = SimulatedGateway(world, token)
        rest = RestApi(world, sessions, public_key=self.public_key)
        interaction_endpoints = InteractionEndpoints(world, rest)
        super().__init__(world, rest, interaction_endpoints, sessions)
        self.server = Server(world, rest, interaction_endpoints, sessions, token)
        self.port = 0

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def public_key(self) -> str:
        """The key that verifies interactions."""
        return self.key.public_key().public_bytes_raw().hex()

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        """The calls so far: name, path and fields."""
        return self.server.calls

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return channel settings for this simulator."""
        return {
            "token": self.token,
            "api_url": f"{self.url}/api",
            "gateway_url": f"ws://127.0.0.1:{self.port}/gateway/",
            "cdn_url": f"{self.url}/cdn",
            "allow": ["*"],
            **others,
        }

    async def kick(self, chat: int) -> None:
        """Remove the bot from a channel's server."""
        guild = self.world.channel(chat).guild or ""
        self.world.guilds.pop(guild, None)
        await self.sessions.emit("GUILD_DELETE", {"id": guild})

    async def readmit(self, chat: int) -> None:
        """Add the bot to a channel's server again."""
        guild = self.world.channel(chat).guild or ""
        self.world.guilds[guild] = {"id": guild, "name": "Engine Room"}
        joined = {"joined_at": datetime.now(UTC).isoformat()}
        await self.sessions.emit("GUILD_CREATE", {**self.world.guild(guild), **joined})

    async def deny(self, chat: int, *permissions: str) -> None:
        """Deny the bot permissions in a channel by overwrites, by their names in Discord's client."""
        unknown = set(permissions) - set(shapes.PERMISSIONS)
        if unknown:
            raise ValueError(f"no such permission: {sorted(unknown)}")
        self.world.channel(chat).denied |= set(permissions)

    async def allow(self, chat: int) -> None:
        """Remove a channel's overwrites for the bot."""
        changed = self.world.channel(chat)
        changed.denied.clear()
        await self.sessions.emit("CHANNEL_UPDATE", changed.raw)

    async def allow_server(self, chat: int) -> None:
        """Give the bot's role in a channel's server all permissions; each channel's overwrites are gone."""
        guild = self.world.channel(chat).guild or ""
        for channel in self.world.channels.values():
            if channel.guild == guild:
                channel.denied.clear()
        await self.change_role(chat, permissions=str(shapes.ALL | 1))

    async def change_role(self, chat: int, **fields: Any) -> None:
        """Change the bot's role in a channel's server, such as its color."""
        guild = self.world.channel(chat).guild or ""
        _, own = self.world.guild(guild)["roles"]
        await self.sessions.emit("GUILD_ROLE_UPDATE", {"guild_id": guild, "role": {**own, **fields}})

    async def delete_role(self, chat: int, role: str) -> None:
        """Delete a role of a channel's server; what channels denied to it is allowed again."""
        for channel in self.world.channels.values():
            if channel.guild == self.world.channel(chat).guild:
                channel.denied.clear()
        guild = {"guild_id": self.world.channel(chat).guild, "role_id": role}
        await self.sessions.emit("GUILD_ROLE_DELETE", guild)

    async def mute(self, chat: int) -> None:
        """Deny the bot to send messages in a channel."""
        await self.deny(chat, "Send Messages", "Send Messages in Threads")

    async def archive(self, thread: int) -> None:
        """Archive a thread, which is then no longer listed."""
        self.world.channel(thread).is_listed = False

    async def lock(self, thread: int, *, locked: bool = True) -> None:
        """Lock a thread, in which only moderators can then write, or unlock it."""
        changed = self.world.channel(thread)
        changed.is_locked = locked
        await self.sessions.emit("THREAD_UPDATE", changed.raw)

    async def delete_thread(self, thread: int) -> None:
        """Delete a thread with its messages."""
        deleted = self.world.delete(str(thread))
        known = {name: deleted.raw[name] for name in ("id", "guild_id", "parent_id", "type")}
        await self.sessions.emit("THREAD_DELETE", known)

    async def push(self, name: str, content: Any) -> None:
        """Dispatch an event with any content, even a malformed one."""
        await self.sessions.emit(name, content)

    async def fail(
        self,
        status: int,
        *,
        code: int = 0,
        times: int = 1,
        name: str | None = None,
        message: str = "",
        only: str | None = None,
        channel: int | None = None,
    ) -> None:
        """Answer the next calls with a failure; `only` those with files, buttons, or text alone.

        With `channel` only calls about that channel fail.
        """
        if only not in {None, *CONTENT_KINDS}:
            raise ValueError(f"only is {only!r}; use one of {CONTENT_KINDS}")
        failure = ApiFailure(status, code, message or f"Error {status}")
        place = None if channel is None else str(channel)
        self.server.faults.append(Fault(times, name, failure, only=only, channel=place))

    async def ban_after(self, most: int) -> None:
        """Ban the bot's address for an hour after so many invalid requests; Discord allows 10,000."""
        self.server.ban.most = most

    async def throttle(
        self, seconds: float, *, everywhere: bool = False, times: int = 1, name: str = "create"
    ) -> None:
        """Answer the next calls with a rate limit."""
        failure = rate_limited(seconds, scope="global" if everywhere else "user")
        self.server.faults.append(Fault(times, name, failure))

    async def limit(self, name: str, most: int, seconds: float) -> None:
        """Limit the calls of a name per channel and number of seconds; `*` limits the bot."""
        if name == "*":
            self.server.limits.everywhere = (most, seconds)
        else:
            self.server.limits.calls[name] = (most, seconds)

    async def cut(self, *, name: str = "create", after: bool = True, times: int = 1) -> None:
        """Cut the connection of the next calls, after or before carrying them out."""
        self.server.faults.append(Fault(times, name, cut_at="after" if after else "before"))

    async def answer_late(self, seconds: float, *, name: str = "create", times: int = 1) -> None:
        """Carry out the next calls at once, and answer them after `seconds`."""
        self.server.faults.append(Fault(times, name, seconds=seconds))

    async def drop(self, *, refusals: int = 0, code: int | None = None, forget: bool = False) -> None:
        """Cut the gateway's connections, refuse the next ones, and optionally delete the sessions."""
        self.sessions.refusals = refusals
        await self.sessions.disconnect_all(code=code)
        if forget:
            self.sessions.clear()

    async def reconnect(self) -> None:
        """Ask the clients to reconnect (opcode 7)."""
        await self.sessions.send_command(7)

    async def invalidate(self, *, resumable: bool = False) -> None:
        """Tell the clients that their session is invalid (opcode 9)."""
        await self.sessions.send_command(9, resumable)
        if not resumable:
            self.sessions.clear()

    async def revoke(self) -> None:
        """Revoke the bot's token."""
        self.sessions.token = "revoked"  # noqa: S105 - not a real token
        await self.fail(401, times=1000, message="401: Unauthorized")

    async def pass_time(self, seconds: float) -> None:
        """Advance Discord's clock: nonces expire, ids grow."""
        self.world.offset_seconds += seconds

    def messages(self, chat: int | None = None) -> list[Post]:
        """Return the bot's messages in order."""
        return self.world.posts(chat)

    async def wait_for_messages(
        self, count: int, *, chat: int | None = None, seconds: float = TIMEOUT_SECONDS
    ) -> list[Post]:
        """Wait until the bot has sent `count` messages; raises TimeoutError."""
        await self.wait_until(lambda: len(self.messages(chat)) >= count, seconds=seconds)
        return self.messages(chat)

    async def wait_until(self, condition: Callable[[], bool], *, seconds: float = TIMEOUT_SECONDS) -> None:
        """Wait until a condition holds, checked after every call; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            await self.world.wait_until(condition)

    def state(self) -> Raw:
        """Return the visible state."""
        return {
            "identified": self.sessions.identified,
            "resumed": self.sessions.resumed,
            "commands": sorted(self.world.commands),
            "reactions": {number: sorted(emoji) for number, emoji in self.world.reactions.items()},
            "typed": self.world.typed,
            "refused": self.server.limits.refused,
        }

"""The simulated Discord on a loopback port.

/api/v10/…   REST, with rate limit headers and faults
/gateway/    the socket
/cdn/…       files
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from aiohttp import web

from channels.discord.simulator.rest import Body, Rest, body_of
from channels.discord.simulator.sessions import Sessions
from channels.discord.simulator.world import Cut, Failure, World

BODY_LIMIT = 32 * 1024 * 1024
BUCKET_SECONDS = 5.0
Call = Callable[[Mapping[str, str], Body], Any]
"""Takes the parts of the path with the query, and the body."""


@dataclass(slots=True)
class Fault:
    """A fault for the next `times` calls of a name; None is any."""

    times: int
    name: str | None = None
    failure: Failure | None = None
    cuts: str = ""


class Server:
    """Answers the bot's requests."""

    def __init__(self, world: World, rest: Rest, sessions: Sessions, token: str) -> None:
        self._world = world
        self._rest = rest
        self._sessions = sessions
        self._token = token
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str, dict[str, Any]]] = []

    def application(self) -> web.Application:
        """Return the web application."""
        application = web.Application(client_max_size=BODY_LIMIT)
        application.router.add_get("/gateway/", self._sessions.serve)
        application.router.add_get("/cdn/{path:.+}", self._answer_file)
        for method, where, name, call, as_bot in self._table():
            application.router.add_route(
                method, f"/api/v10{where}", self._answering(name, call, as_bot=as_bot)
            )
        return application

    def _table(self) -> list[tuple[str, str, str, Call, bool]]:
        """Return method, path, name, what is done, and whether the bot's token is needed."""
        rest, world = self._rest, self._world
        place, message = "/channels/{channel}", "/channels/{channel}/messages/{message}"
        hook = "/webhooks/{application}/{token}"
        typing, callback = f"{place}/typing", "/interactions/{id}/{token}/callback"
        return [
            ("GET", "/users/@me", "me", lambda _, __: rest.me(), True),
            ("GET", "/users/@me/guilds", "guilds", lambda _, __: list(world.guilds.values()), True),
            ("GET", "/applications/@me", "application", lambda _, __: rest.application(), True),
            ("POST", "/applications/{id}/commands", "command", lambda _, b: rest.command(b), True),
            ("GET", place, "channel", lambda r, _: world.found(r["channel"]).raw, True),
            ("GET", f"{place}/messages", "history", lambda r, _: rest.history(r["channel"], r), True),
            ("GET", message, "message", lambda r, _: rest.one(r["channel"], r["message"]), True),
            ("POST", f"{place}/messages", "create", lambda r, b: rest.create(r["channel"], b), True),
            ("PATCH", message, "edit", lambda r, b: rest.edit(r["channel"], r["message"], b), True),
            ("POST", typing, "typing", lambda r, _: rest.typing(r["channel"]), True),
            ("POST", callback, "callback", lambda r, b: rest.callback(r["id"], r["token"], b), False),
            ("POST", hook, "follow_up", lambda r, b: rest.follow_up(r["application"], r["token"], b), False),
            (
                "PATCH",
                f"{hook}/messages/@original",
                "fill",
                lambda r, b: rest.fill(r["application"], r["token"], b),
                False,
            ),
        ]

    def _answering(
        self, name: str, call: Call, *, as_bot: bool
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await self._carry_out(request, name, call, as_bot=as_bot)
            except Failure as failure:
                return web.json_response(failure.body, status=failure.status, headers=failure.headers)
            except Cut:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            finally:
                await self._world.announce()

        return answer

    async def _carry_out(
        self, request: web.Request, name: str, call: Call, *, as_bot: bool
    ) -> web.StreamResponse:
        if as_bot and request.headers.get("Authorization") != f"Bot {self._token}":
            raise Failure(401, 0, "401: Unauthorized")
        body = await body_of(request)
        self.calls.append((name, request.path, body.fields))
        fault = self._fault(name)
        if fault and fault.failure:
            raise fault.failure
        if fault and fault.cuts == "before":
            raise Cut
        result = call({**request.query, **request.match_info}, body)
        result = await result if isawaitable(result) else result
        if fault and fault.cuts == "after":
            raise Cut
        headers = {
            "X-RateLimit-Limit": "5",
            "X-RateLimit-Remaining": "4",
            "X-RateLimit-Reset-After": f"{BUCKET_SECONDS:.3f}",
            "X-RateLimit-Bucket": name,
        }
        if result is None:
            return web.Response(status=204, headers=headers)
        return web.json_response(result, headers=headers)

    def _fault(self, name: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.name in (None, name):
                fault.times -= 1
                return fault
        return None

    async def _answer_file(self, request: web.Request) -> web.StreamResponse:
        content = self._world.files.get(request.match_info["path"])
        if content is None:
            return web.Response(status=404)
        return web.Response(body=content, content_type="application/octet-stream")

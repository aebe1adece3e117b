"""The simulated Discord on a loopback port.

/api/v10/…   REST, with rate limits and faults
/gateway/    the socket
/cdn/…       files
/_control/…  what an outside program drives it by
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from aiohttp import web

from channels.discord.simulator.hooks import Hooks
from channels.discord.simulator.limits import Limits
from channels.discord.simulator.rest import Body, Rest, body_of
from channels.discord.simulator.sessions import Sessions
from channels.discord.simulator.world import Cut, Failure, World

BODY_LIMIT = 32 * 1024 * 1024
Call = Callable[[Mapping[str, str], Body], Any]
"""Takes the parts of the path with the query, and the body."""

Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Fault:
    """A fault for the next `times` calls of a name; None is any."""

    times: int
    name: str | None = None
    failure: Failure | None = None
    cuts: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A call: how it is asked for, its name, what is done, and whether the bot's token is needed."""

    method: str
    path: str
    name: str
    call: Call
    as_bot: bool = True


class Server:
    """Answers the bot's requests."""

    def __init__(self, world: World, rest: Rest, hooks: Hooks, sessions: Sessions, token: str) -> None:
        self._world = world
        self._rest = rest
        self._hooks = hooks
        self._sessions = sessions
        self._token = token
        self.limits = Limits()
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str, Any]] = []

    def application(self) -> web.Application:
        """Return the web application."""
        application = web.Application(client_max_size=BODY_LIMIT)
        application.router.add_get("/gateway/", self._sessions.serve)
        application.router.add_get("/cdn/{path:.+}", self._answer_file)
        for route in (*self._own(), *self._spoken(), *self._asked()):
            application.router.add_route(route.method, f"/api/v10{route.path}", self._answering(route))
        return application

    def _own(self) -> list[Route]:
        """Return the calls about the bot itself."""
        rest, commands = self._rest, "/applications/{id}/commands"
        return [
            Route("GET", "/users/@me", "me", lambda _, __: rest.me()),
            Route("GET", "/users/@me/guilds", "guilds", lambda _, __: rest.guilds()),
            Route("POST", "/users/@me/channels", "private", lambda _, b: rest.private(b)),
            Route("GET", "/guilds/{guild}", "guild", lambda r, _: rest.guild(r["guild"])),
            Route("GET", "/applications/@me", "application", lambda _, __: rest.application()),
            Route("GET", "/oauth2/applications/@me", "application", lambda _, __: rest.application()),
            Route("GET", "/gateway/bot", "gateway", lambda _, __: rest.gateway()),
            Route("GET", "/gateway", "gateway", lambda _, __: rest.gateway(), as_bot=False),
            Route("GET", commands, "commands", lambda _, __: rest.commands()),
            Route("POST", commands, "command", lambda _, b: rest.command(b)),
            Route("PUT", commands, "overwrite", lambda _, b: rest.overwrite(b)),
        ]

    def _spoken(self) -> list[Route]:
        """Return the calls about channels and messages."""
        rest, world = self._rest, self._world
        place, message = "/channels/{channel}", "/channels/{channel}/messages/{message}"
        sign, typing = f"{message}/reactions/{{emoji}}/@me", f"{place}/typing"
        return [
            Route("GET", place, "channel", lambda r, _: world.found(r["channel"]).raw),
            Route("GET", f"{place}/messages", "history", lambda r, _: rest.history(r["channel"], r)),
            Route("GET", message, "message", lambda r, _: rest.one(r["channel"], r["message"])),
            Route("POST", f"{place}/messages", "create", lambda r, b: rest.create(r["channel"], b)),
            Route("PATCH", message, "edit", lambda r, b: rest.edit(r["channel"], r["message"], b)),
            Route("DELETE", message, "delete", lambda r, _: rest.delete(r["channel"], r["message"])),
            Route("PUT", sign, "sign", lambda r, _: self._sign(r, added=True)),
            Route("DELETE", sign, "unsign", lambda r, _: self._sign(r, added=False)),
            Route("POST", typing, "typing", lambda r, _: rest.typing(r["channel"])),
        ]

    def _sign(self, request: Mapping[str, str], *, added: bool) -> Awaitable[None]:
        return self._rest.sign(request["channel"], request["message"], request["emoji"], added=added)

    def _asked(self) -> list[Route]:
        """Return the calls that answer interactions, for which their token is enough."""
        hooks, hook = self._hooks, "/webhooks/{application}/{token}"
        original, callback = f"{hook}/messages/@original", "/interactions/{id}/{token}/callback"

        def first(request: Mapping[str, str], body: Body) -> Any:
            detailed = request.get("with_response", "").lower() in {"1", "true"}
            return hooks.callback(request["id"], request["token"], body, detailed=detailed)

        return [
            Route("POST", callback, "callback", first, as_bot=False),
            Route("POST", hook, "follow_up", lambda r, b: hooks.follow_up(*_hook(r), b), as_bot=False),
            Route("PATCH", original, "fill", lambda r, b: hooks.fill(*_hook(r), b), as_bot=False),
            Route("DELETE", original, "unfill", lambda r, _: hooks.remove(*_hook(r)), as_bot=False),
            Route("GET", original, "original", lambda r, _: hooks.original(*_hook(r)), as_bot=False),
        ]

    def _answering(self, route: Route) -> Answering:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await self._carry_out(request, route)
            except Failure as failure:
                return _json(failure.body, failure.headers, status=failure.status)
            except Cut:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            finally:
                await self._world.announce()

        return answer

    async def _carry_out(self, request: web.Request, route: Route) -> web.StreamResponse:
        if route.as_bot and request.headers.get("Authorization") != f"Bot {self._token}":
            raise Failure(401, 0, "401: Unauthorized")
        body = await body_of(request)
        self.calls.append((route.name, request.path, body.fields))
        fault = self._fault(route.name)
        if fault and fault.failure:
            raise fault.failure
        if fault and fault.cuts == "before":
            raise Cut
        owner = request.match_info.get("channel") or request.match_info.get("token") or ""
        headers = self.limits.take(route.name, owner, as_bot=route.as_bot)
        result = route.call({**request.query, **request.match_info}, body)
        result = await result if isawaitable(result) else result
        if fault and fault.cuts == "after":
            raise Cut
        told = {name: str(value) for name, value in headers.items()}
        if result is None:
            return web.Response(status=204, headers=told)
        return _json(result, told)

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


def _json(content: Any, headers: Mapping[str, str], *, status: int = 200) -> web.Response:
    """Answer in the content type that Discord names, which has no charset."""
    body = json.dumps(content).encode()
    return web.Response(body=body, status=status, headers={**headers, "Content-Type": "application/json"})


def _hook(request: Mapping[str, str]) -> tuple[str, str]:
    return request["application"], request["token"]

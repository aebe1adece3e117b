"""The simulated Discord on a loopback port.

/api/v10/…   REST, with rate limits and faults
/gateway/    the gateway's WebSocket
/cdn/…       files
/_control/…  the control interface for other programs
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from aiohttp import web

from channels.discord.simulator.faults import Fault, InvalidRequestBan
from channels.discord.simulator.interaction_endpoints import InteractionEndpoints
from channels.discord.simulator.rate_limits import RateLimits
from channels.discord.simulator.rest import RequestBody, RestApi, read_body
from channels.discord.simulator.sessions import SimulatedGateway
from channels.discord.simulator.world import ApiFailure, ConnectionCut, World

BODY_LIMIT = 128 * 1024 * 1024
RouteCall = Callable[[Mapping[str, str], RequestBody], Any]
"""Handles a call, given the parts of the path with the query, and the body."""

RequestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class RestRoute:
    """A REST call: method, path, name, handler, and whether it requires the bot's token."""

    method: str
    path: str
    name: str
    call: RouteCall
    as_bot: bool = True


class Server:
    """Answers the bot's requests."""

    def __init__(
        self,
        world: World,
        rest: RestApi,
        interaction_endpoints: InteractionEndpoints,
        sessions: SimulatedGateway,
        token: str,
    ) -> None:
        self._world = world
        self._rest = rest
        self._interaction_endpoints = interaction_endpoints
        self._sessions = sessions
        self._token = token
        self.limits = RateLimits()
        self.ban = InvalidRequestBan(world.now)
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str, Any]] = []

    def application(self) -> web.Application:
        """Return the web application."""
        application = web.Application(client_max_size=BODY_LIMIT)
        application.router.add_get("/gateway/", self._sessions.serve)
        application.router.add_get("/cdn/{path:.+}", self._answer_file)
        for route in (*self._bot_routes(), *self._channel_routes(), *self._interaction_routes()):
            application.router.add_route(route.method, f"/api/v10{route.path}", self._handler_for(route))
        return application

    def _bot_routes(self) -> list[RestRoute]:
        """Return the calls about the bot itself."""
        rest, commands = self._rest, "/applications/{id}/commands"
        return [
            RestRoute("GET", "/users/@me", "me", lambda _, __: rest.get_me()),
            RestRoute("GET", "/users/@me/guilds", "guilds", lambda _, __: rest.list_guilds()),
            RestRoute("POST", "/users/@me/channels", "private", lambda _, b: rest.create_private_channel(b)),
            RestRoute("GET", "/guilds/{guild}", "guild", lambda r, _: rest.get_guild(r["guild"])),
            RestRoute("GET", "/guilds/{guild}/roles", "roles", lambda r, _: rest.list_roles(r["guild"])),
            RestRoute("GET", "/applications/@me", "application", lambda _, __: rest.get_application()),
            RestRoute("GET", "/oauth2/applications/@me", "application", lambda _, __: rest.get_application()),
            RestRoute("GET", "/gateway/bot", "gateway", lambda _, __: rest.get_gateway()),
            RestRoute("GET", "/gateway", "gateway", lambda _, __: rest.get_gateway(), as_bot=False),
            RestRoute("GET", commands, "commands", lambda _, __: rest.list_commands()),
            RestRoute("POST", commands, "command", lambda _, b: rest.create_command(b)),
            RestRoute("PUT", commands, "overwrite", lambda _, b: rest.overwrite_commands(b)),
        ]

    def _channel_routes(self) -> list[RestRoute]:
        """Return the calls about channels and messages."""
        rest, world = self._rest, self._world
        place, message = "/channels/{channel}", "/channels/{channel}/messages/{message}"
        sign, typing = f"{message}/reactions/{{emoji}}/@me", f"{place}/typing"
        return [
            RestRoute("GET", place, "channel", lambda r, _: world.get_accessible_channel(r["channel"]).raw),
            RestRoute(
                "GET", f"{place}/messages", "history", lambda r, _: rest.list_messages(r["channel"], r)
            ),
            RestRoute("GET", message, "message", lambda r, _: rest.get_message(r["channel"], r["message"])),
            RestRoute("POST", f"{place}/messages", "create", lambda r, b: rest.create(r["channel"], b)),
            RestRoute("PATCH", message, "edit", lambda r, b: rest.edit(r["channel"], r["message"], b)),
            RestRoute("DELETE", message, "delete", lambda r, _: rest.delete(r["channel"], r["message"])),
            RestRoute("PUT", sign, "sign", lambda r, _: self._change_reaction(r, added=True)),
            RestRoute("DELETE", sign, "unsign", lambda r, _: self._change_reaction(r, added=False)),
            RestRoute("POST", typing, "typing", lambda r, _: rest.typing(r["channel"])),
        ]

    def _change_reaction(self, request: Mapping[str, str], *, added: bool) -> Awaitable[None]:
        return self._rest.change_reaction(
            request["channel"], request["message"], request["emoji"], added=added
        )

    def _interaction_routes(self) -> list[RestRoute]:
        """Return the calls that answer interactions, which need only the interaction's token."""
        endpoints, hook = self._interaction_endpoints, "/webhooks/{application}/{token}"
        original, callback = f"{hook}/messages/@original", "/interactions/{id}/{token}/callback"

        def first(request: Mapping[str, str], body: RequestBody) -> Any:
            detailed = request.get("with_response", "").lower() in {"1", "true"}
            return endpoints.callback(request["id"], request["token"], body, detailed=detailed)

        return [
            RestRoute("POST", callback, "callback", first, as_bot=False),
            RestRoute(
                "POST",
                hook,
                "follow_up",
                lambda r, b: endpoints.follow_up(*_interaction_parts(r), b),
                as_bot=False,
            ),
            RestRoute(
                "PATCH",
                original,
                "fill",
                lambda r, b: endpoints.edit_original(*_interaction_parts(r), b),
                as_bot=False,
            ),
            RestRoute(
                "DELETE",
                original,
                "unfill",
                lambda r, _: endpoints.delete_original(*_interaction_parts(r)),
                as_bot=False,
            ),
            RestRoute(
                "GET",
                original,
                "original",
                lambda r, _: endpoints.get_original(*_interaction_parts(r)),
                as_bot=False,
            ),
        ]

    def _handler_for(self, route: RestRoute) -> RequestHandler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if self.ban.seconds_left:
                return _banned(self.ban.seconds_left)
            try:
                return await self._call_route(request, route)
            except ApiFailure as failure:
                is_shared = failure.headers.get("X-RateLimit-Scope") == "shared"
                self.ban.record(failure.status, is_shared=is_shared)
                return _json(failure.body, failure.headers, status=failure.status)
            except ConnectionCut:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            finally:
                await self._world.notify_changed()

        return answer

    async def _call_route(self, request: web.Request, route: RestRoute) -> web.StreamResponse:
        if route.as_bot and request.headers.get("Authorization") != f"Bot {self._token}":
            raise ApiFailure(401, 0, "401: Unauthorized")
        body = await read_body(request)
        self.calls.append((route.name, request.path, body.fields))
        fault = self._consume_fault(route.name, body, request.match_info.get("channel", ""))
        if fault and fault.failure:
            raise fault.failure
        if fault and fault.cut_at == "before":
            raise ConnectionCut
        owner = request.match_info.get("channel") or request.match_info.get("token") or ""
        headers = self.limits.acquire(route.name, owner, as_bot=route.as_bot)
        result = route.call({**request.query, **request.match_info}, body)
        result = await result if isawaitable(result) else result
        if fault and fault.cut_at == "after":
            raise ConnectionCut
        if fault and fault.seconds:
            await self._world.notify_changed()
            await asyncio.sleep(fault.seconds)
        response_headers = {name: str(value) for name, value in headers.items()}
        if result is None:
            return web.Response(status=204, headers=response_headers)
        return _json(result, response_headers)

    def _consume_fault(self, name: str, body: RequestBody, channel: str) -> Fault | None:
        for fault in self.faults:
            if fault.matches(name, body, channel):
                fault.times -= 1
                return fault
        return None

    async def _answer_file(self, request: web.Request) -> web.StreamResponse:
        content = self._world.files.get(request.match_info["path"])
        if content is None:
            return web.Response(status=404)
        return web.Response(body=content, content_type="application/octet-stream")


def _json(content: Any, headers: Mapping[str, str], *, status: int = 200) -> web.Response:
    """Return a response with Discord's content type, which has no charset."""
    body = json.dumps(content).encode()
    return web.Response(body=body, status=status, headers={**headers, "Content-Type": "application/json"})


def _banned(seconds: float) -> web.Response:
    """Return the response of Discord's proxy to a banned address: no JSON, and no `Via` header."""
    headers = {"Retry-After": str(int(seconds) + 1)}
    return web.Response(text="error code: 1015", status=429, headers=headers)


def _interaction_parts(request: Mapping[str, str]) -> tuple[str, str]:
    return request["application"], request["token"]

"""The simulated Slack on a loopback port.

POST /api/<method>       the Web API; GET too for methods that read
GET  /link               Socket Mode, with the ticket that apps.connections.open returned
POST /upload/v1/<id>     the second step of an upload
GET  /files-pri/<id>     a file, with the bot's token; a login page without it
POST /response/<id>      an interaction's response_url, five times in half an hour
/_control/…              user actions and faults; see `control`
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

from channels.slack.simulator.api import scopes
from channels.slack.simulator.api.methods import Methods
from channels.slack.simulator.api.rate_limits import RateLimits
from channels.slack.simulator.failure import ApiFailure, ConnectionCut, Faults
from channels.slack.simulator.installations import Installations
from channels.slack.simulator.outgoing import Sockets, hang_up
from channels.slack.simulator.world import BOT_ID, BOT_USER, TEAM, Raw, World

BODY_LIMIT = 64_000_000


class Server:
    """Answers HTTP requests for one app."""

    def __init__(
        self,
        tokens: tuple[str, str],
        world: World,
        methods: Methods,
        faults: Faults,
        *,
        sockets: Sockets,
        rate_limits: RateLimits,
    ) -> None:
        bot_token, self._app_token = tokens
        self.installations = Installations(bot_token, TEAM)
        self._world = world
        self._methods = methods
        self._faults = faults
        self._sockets = sockets
        self._rate_limits = rate_limits
        self._tickets: set[str] = set()
        self.scopes = scopes.ALL_SCOPES
        self.url = ""
        self.calls: list[tuple[str, Raw]] = []
        self.upload_statuses: list[int] = []
        """The statuses with which the next uploads of bytes fail."""
        self.refuses_responses = False
        """Whether posts to a response_url are refused with `invalid_token`."""

    def application(self) -> web.Application:
        """Return the web application."""
        application = web.Application(client_max_size=BODY_LIMIT)
        application.router.add_post("/api/{method}", self._answer_call)
        application.router.add_get("/api/{method}", self._answer_call)
        application.router.add_get("/link", self._answer_link)
        application.router.add_post("/upload/v1/{file}", self._answer_upload)
        application.router.add_get("/files-pri/{file}", self._answer_file)
        application.router.add_post("/response/{number}", self._answer_response)
        return application

    async def _answer_call(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        given = await _read_arguments(request)
        self.calls.append((method, given))
        try:
            fault = self._faults.apply_before(method, given)
            result = self._call_method(request, method, given)
        except ApiFailure as failure:
            body = {"ok": False, "error": failure.error, **failure.details}
            return web.json_response(body, status=failure.status, headers=failure.headers)
        except ConnectionCut:
            hang_up(request)
            return web.Response()
        finally:
            await self._world.notify_changed()
        if fault is not None and fault.seconds:
            await asyncio.sleep(fault.seconds)
        elif fault is not None:
            hang_up(request)
        granted = {"x-oauth-scopes": ",".join(sorted(self.scopes))}
        return web.json_response({"ok": True, **result}, headers=granted)

    def _call_method(self, request: web.Request, method: str, given: Raw) -> Raw:
        authorization = request.headers.get("Authorization", "")
        if method == "oauth.v2.access":
            return self.installations.access(given, authorization)
        self._check_token(authorization.removeprefix("Bearer "), method, given)
        if method == "apps.uninstall":
            return self.installations.uninstall(given, authorization.removeprefix("Bearer "))
        if method == "apps.connections.open":
            return self._open_connection()
        self._check_workspace(given)
        scopes.check_scope(method, given, self._world.rooms, self.scopes)
        self._rate_limits.acquire(method, given)
        return self._methods.call(method, given)

    def _check_token(self, header: str, method: str, given: Raw) -> None:
        token = header or str(given.get("token") or "")
        if not token:
            raise ApiFailure("not_authed")
        of_app, team = token == self._app_token, self.installations.teams.get(token)
        wants_app = method == "apps.connections.open"
        if not of_app and team is None:
            raise ApiFailure("invalid_auth")
        if of_app != wants_app:
            raise ApiFailure("not_allowed_token_type")
        self._world.caller = team or ""

    def _check_workspace(self, given: Raw) -> None:
        """Raise ApiFailure for a room of another workspace than the token's."""
        room = self._world.rooms.get(str(given.get("channel") or given.get("channel_id")))
        if room is not None and self._world.caller not in {room.team, room.enterprise, *room.shared_with}:
            raise ApiFailure("channel_not_found")

    def _open_connection(self) -> Raw:
        ticket = f"ticket-{len(self._tickets)}-{next(self._world.numbers)}"
        self._tickets.add(ticket)
        return {"url": f"{self.url.replace('http', 'ws', 1)}/link?ticket={ticket}"}

    async def _answer_link(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            return web.Response(status=403)
        self._tickets.remove(ticket)
        return await self._sockets.serve(request)

    async def _answer_upload(self, request: web.Request) -> web.StreamResponse:
        number = request.match_info["file"]
        content = await request.read()
        if self.upload_statuses:
            return web.Response(status=self.upload_statuses.pop(0), text="<html>", content_type="text/html")
        if self._world.files.get(number, {}).get("size") != len(content):
            return web.Response(status=400)
        self.store_file(number, content)
        return web.Response(text=f"OK - {len(content)}")

    def store_file(self, number: str, content: bytes) -> None:
        """Store a file's bytes and put their URL into its description."""
        self._world.contents[number] = content
        self._world.files[number]["url_private"] = f"{self.url}/files-pri/{number}"

    async def _answer_file(self, request: web.Request) -> web.StreamResponse:
        may_read = "files:read" in self.scopes
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.installations.teams or not may_read:
            return web.Response(status=302, headers={"Location": f"{self.url}/login"})
        content = self._world.contents.get(request.match_info["file"])
        if content is None:
            return web.Response(status=404)
        return web.Response(body=content, content_type="application/octet-stream")

    async def _answer_response(self, request: web.Request) -> web.StreamResponse:
        """Accept an app's post to a response_url, which needs no token."""
        response = self._world.responses.get(request.match_info["number"])
        given = await _read_arguments(request)
        self.calls.append(("response_url", given))
        if self.refuses_responses:
            return web.json_response({"ok": False, "error": "invalid_token"}, status=403)
        if response is None or self._world.clock.now() > response.until:
            return web.json_response({"ok": False, "error": "expired_url"}, status=404)
        if response.uses < 1:
            return web.json_response({"ok": False, "error": "used_url"}, status=404)
        response.uses -= 1
        text = str(given.get("text") or "")
        if given.get("response_type") == "in_channel":
            self._world.post(response.room, BOT_USER, {"text": text, "bot_id": BOT_ID})
        else:
            self._world.notices.append({"room": response.room, "user": response.user, "text": text})
        await self._world.notify_changed()
        return web.Response(text="ok")


async def _read_arguments(request: web.Request) -> Raw:
    """Read the arguments of a call: JSON, a form or the query."""
    given: dict[str, Any] = dict(request.query)
    if request.content_type == "application/json":
        try:
            body = json.loads(await request.text())
        except ValueError:
            body = {}
        return {**given, **(body if isinstance(body, dict) else {})}
    return {**given, **dict(await request.post())}

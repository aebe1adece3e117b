"""Typed routes: what a route takes and gives as pydantic models, checked here and told in the OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.accounts.api_keys import Principal
from gateway.records.errors import explain
from gateway.services import Core
from gateway.web.http import idempotency, request_body
from gateway.web.http.auth import BEARER, PRINCIPAL, Access, Admin, Door, JobToken, Key
from gateway.web.http.context import Surface
from gateway.web.http.problems import Problem, invalid, misplaced
from sandbox.config import Problem as Fault

SURFACE = web.AppKey("surface", Surface)
DOOR = web.AppKey("door", Door)
LARGE = 6
"""How many times longer a large body may take."""


class Strict(BaseModel):
    """A request's shape: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Shown(BaseModel):
    """An answer's shape."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class Nothing(Strict):
    """No body and no query."""


Taken = TypeVar("Taken", bound=BaseModel)
Asked = TypeVar("Asked", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[Taken, Asked]):
    """One admitted request: who asks, and what, already checked."""

    surface: Surface
    request: web.Request
    path: Mapping[str, str]
    body: Taken
    query: Asked
    idempotency_key: str | None = None

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return self.request[PRINCIPAL]

    @property
    def account(self) -> str:
        """The account of who asks; the only source of it."""
        return self.request[PRINCIPAL].account

    @property
    def core(self) -> Core:
        """The gateway's own doors."""
        if self.surface.core is None:
            raise Problem(503, "this process answers for records only")
        return self.surface.core

    def refused(self) -> Problem:
        """Count a failed attempt to authenticate, and return its 401."""
        return self.request.app[DOOR].refused(self.request)

    @property
    def token(self) -> str:
        """The bearer token of a route that compares it itself."""
        return self.request[BEARER]


Answered = BaseModel | web.StreamResponse | None
Handler = Callable[[Call[Any, Any]], Awaitable[Answered]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the URL table. `raw` leaves the body to the handler (files, platforms, streams).

    `takes` None means no body. `status` is the answer's when the handler returns a model or None. `media`
    tells of answers that are not JSON. `also` are further statuses with their meaning. `lenient` replaces
    what cannot be stored of a body's text, where a program's output is taken as it comes. `body_bytes`
    is what a body may weigh where that is more than usual.
    """

    method: str
    path: str
    access: Access
    handler: Handler
    summary: str
    takes: type[BaseModel] | None = None
    query: type[BaseModel] = Nothing
    gives: Any = None
    status: int = 200
    raw: bool = False
    optional_body: bool = False
    lenient: bool = False
    body_bytes: int = 0
    media: str | None = None
    also: Mapping[int, str] = field(default_factory=dict)
    tag: str = ""
    hidden: bool = False


def endpoint(route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the aiohttp handler of a route: check, remember, perform, answer."""

    async def respond(request: web.Request) -> web.StreamResponse:
        surface = request.app[SURFACE]
        raw = b"" if route.raw else await _body(surface, route, request)
        query = _query(route, request)
        body = _parsed(route, raw)
        remembers = not route.raw and isinstance(route.access, Key | Admin)
        key = idempotency.key_of(request) if remembers else None
        call: Call[Any, Any] = Call(
            surface=surface,
            request=request,
            path=_path(request),
            body=body,
            query=query,
            idempotency_key=key,
        )
        if key is None:
            return answer(route, await route.handler(call))

        async def perform() -> web.Response:
            given = answer(route, await route.handler(call))
            if not isinstance(given, web.Response):
                raise misplaced(idempotency.HEADER, "a stream is not answered twice: leave it out")
            return given

        who = request[PRINCIPAL].account if PRINCIPAL in request else ""
        digest = idempotency.digest_of(request, raw)
        return await idempotency.Once(surface, who, key, digest).answer(perform)

    return respond


async def _body(surface: Surface, route: Route, request: web.Request) -> bytes:
    known = isinstance(route.access, Key | Admin)
    limit = surface.bounds.body_bytes if known else request_body.PRE_AUTH
    if isinstance(route.access, JobToken):
        limit = surface.bounds.body_bytes
    deadline = surface.bounds.body_deadline * (LARGE if route.body_bytes else 1)
    raw = await request_body.read_bytes(request, limit=max(limit, route.body_bytes), deadline=deadline)
    if raw and route.takes is not None:
        request_body.require_json(request)
    if raw and route.takes is None and raw.strip() not in (b"", b"{}"):
        raise Problem(400, "this request takes no body")
    return raw


def _parsed(route: Route, raw: bytes) -> BaseModel:
    if route.takes is None or (not raw and route.optional_body):
        return Nothing() if route.takes is None else route.takes()
    if not raw:
        raise Problem(400, "this request needs a JSON body")
    value = request_body.parse_json(raw, lenient=route.lenient)
    if not isinstance(value, dict):
        raise invalid([Fault(pointer="", detail="the body must be a JSON object")])
    return _validated(route.takes, value, "")


def _query(route: Route, request: web.Request) -> BaseModel:
    given = {name: request.query[name] for name in request.query if name in _names(route.query)}
    for name, value in given.items():
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise invalid([Fault(pointer=f"?/{name}", detail="must not hold NUL or broken characters")])
    return _validated(route.query, given, "?")


def _names(model: type[BaseModel]) -> set[str]:
    return {about.alias or name for name, about in model.model_fields.items()}


def _validated(model: type[BaseModel], value: Mapping[str, Any], below: str) -> BaseModel:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(explain(error, below=below)) from None


def _path(request: web.Request) -> Mapping[str, str]:
    """Return the path's parts; what no id or name can be is not found, and reaches no SQL."""
    for value in request.match_info.values():
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise Problem(404, "there is nothing at this path")
    return request.match_info


def answer(route: Route, given: Answered) -> web.StreamResponse:
    """Return what a handler gave as an HTTP answer."""
    if isinstance(given, web.StreamResponse):
        return given
    if given is None:
        return web.Response(status=204 if route.status == 200 else route.status)  # noqa: PLR2004 - OK
    return web.Response(
        status=route.status,
        body=given.model_dump_json(by_alias=True).encode(),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )

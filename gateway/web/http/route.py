"""Typed routes: pydantic models of requests and responses, for validation and OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from egress.typed_model import TypedModel
from gateway.accounts.api_keys import Principal
from gateway.records.input_problems import to_problems
from gateway.services import Services
from gateway.store.turns.jobs import Job
from gateway.web.http import idempotency, request_body
from gateway.web.http.auth import (
    JOB,
    PRINCIPAL,
    Access,
    AdminAccess,
    Authenticator,
    JobTokenAccess,
    KeyAccess,
)
from gateway.web.http.connection import raise_if_abandoned
from gateway.web.http.context import WebContext
from gateway.web.http.preconditions import ETAG, VERSIONED, etag_for, etag_of, not_modified
from gateway.web.http.problems import HttpProblem, invalid, invalid_field
from sandbox.config import ConfigProblem as Fault

CONTEXT = web.AppKey("surface", WebContext)
AUTHENTICATOR = web.AppKey("door", Authenticator)
PATH_PARAMETER = r"{path:(?s:.+)}"
"""A path of several names, at the end of a route. Names may have any character, also line breaks."""
_OPENAI_ID = re.compile(r"(?:resp_|chatcmpl-|(?P<conversation>conv_))(?P<rest>[0-9a-z]{26})")
MODEL_KEY = "x-model"
"""A key in the JSON schema of a field: the OpenAPI document puts the model of this name there."""

NO_STORE = {"Cache-Control": "no-store"}
"""The header of every response with data of an account."""

LARGE_BODY_FACTOR = 6
"""Factor of the body deadline for routes with large bodies."""


class RequestModel(TypedModel):
    """Base of request models; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


class ResponseModel(BaseModel):
    """Base of response models. Fields that are `unversioned` are no part of the entity tag."""

    unversioned: ClassVar[frozenset[str]] = frozenset()
    model_config = ConfigDict(frozen=True, populate_by_name=True, defer_build=True)


class NoContent(RequestModel):
    """No body and no query."""


class Batch(RequestModel):
    """The body of a route with a `batch`: several bodies, in the order of the list."""

    items: tuple[BaseModel, ...]


Body = TypeVar("Body", bound=BaseModel)
Query = TypeVar("Query", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall(Generic[Body, Query]):
    """An authorized request with its validated body and query."""

    context: WebContext
    request: web.Request
    path: Mapping[str, str]
    body: Body
    query: Query
    idempotency_key: str | None = None

    @property
    def principal(self) -> Principal:
        """The principal of the request's key."""
        return self.request[PRINCIPAL]

    @property
    def account(self) -> str:
        """The account of the request's key; handlers get it from nowhere else."""
        return self.request[PRINCIPAL].account

    @property
    def services(self) -> Services:
        """The gateway's services; raises 503 in a process without them."""
        if self.context.services is None:
            raise HttpProblem(503, "this process serves records only")
        return self.context.services

    @property
    def job(self) -> Job:
        """The job whose token the request has."""
        return self.request[JOB]


HandlerResult = BaseModel | web.StreamResponse | None
Handler = Callable[[ApiCall[Any, Any]], Awaitable[HandlerResult]]


def _is_no_stream(_body: Any) -> bool:
    """Return that a body does not ask for a stream."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRoute:
    """A route of the URL table. With `raw` the handler reads the body itself (files, platforms, streams).

    `request_model` None means no body. `form_model`, `required_headers` and `optional_headers` document what
    the handler of a raw route reads: the fields of a multipart form, and headers with their meaning. `status`
    is for handlers that return a model or None. `media_type` documents responses that are not JSON. `streams`
    returns whether a body asks for a stream. `error_responses` are further statuses, `empty_responses`
    further ones without a body. `lenient` replaces characters that cannot be stored, for bodies with a
    program's or a model's output. `body_bytes` raises the limit on the body's size. `batch` is how many
    bodies may be sent as one list, which the handler gets as a `Batch`; 0: none. `versioned` resources have
    an ETag; the handlers of their changes check the conditions.
    """

    method: str
    path: str
    access: Access
    handler: Handler
    summary: str
    request_model: type[BaseModel] | None = None
    form_model: type[BaseModel] | None = None
    required_headers: Mapping[str, str] = field(default_factory=dict)
    optional_headers: Mapping[str, str] = field(default_factory=dict)
    query_model: type[BaseModel] = NoContent
    response_model: Any = None
    status: int = 200
    raw: bool = False
    optional_body: bool = False
    lenient: bool = False
    body_bytes: int = 0
    batch: int = 0
    media_type: str | None = None
    streams: Callable[[Any], bool] = _is_no_stream
    error_responses: Mapping[int, str] = field(default_factory=dict)
    empty_responses: Mapping[int, str] = field(default_factory=dict)
    versioned: bool = False
    tag: str = ""
    hidden: bool = False


def endpoint(route: ApiRoute) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the aiohttp handler of a route: validate, check the Idempotency-Key, handle, respond."""

    async def respond(request: web.Request) -> web.StreamResponse:
        try:
            return await handle(request)
        except ConnectionError as error:
            raise_if_abandoned(request, error)
            raise

    async def handle(request: web.Request) -> web.StreamResponse:
        context = request.app[CONTEXT]
        raw = b"" if route.raw else await _body(context, route, request)
        query = _query(route, request)
        body = _parse(route, raw)
        remembers = not route.raw and isinstance(route.access, KeyAccess | AdminAccess)
        key = idempotency.parse_key(request) if remembers else None
        call: ApiCall[Any, Any] = ApiCall(
            context=context,
            request=request,
            path=_path(request),
            body=body,
            query=query,
            idempotency_key=key,
        )
        if key is None:
            return await _handle(route, call)

        async def perform() -> web.Response:
            response = await _handle(route, call)
            if not isinstance(response, web.Response):
                raise invalid_field(idempotency.HEADER, "it is not supported for a stream: leave it out")
            return response

        who = request[PRINCIPAL].account if PRINCIPAL in request else ""
        repeatable = idempotency.IdempotentRequest(
            context, who, key, idempotency.request_digest(request, raw)
        )
        if route.streams(body):
            return await repeatable.join(lambda: _handle(route, call))
        return await repeatable.run(perform)

    return respond


async def _handle(route: ApiRoute, call: ApiCall[Any, Any]) -> web.StreamResponse:
    result = await route.handler(call)
    if not route.versioned or not isinstance(result, BaseModel):
        return to_response(route, result)
    etag = etag_of(result)
    if route.method == "GET" and not getattr(result, "unversioned", None):
        unchanged = not_modified(call.request, etag, NO_STORE)
        if unchanged is not None:
            return _with_version(call, unchanged, etag)
    return _with_version(call, to_response(route, result), etag)


def _with_version(call: ApiCall[Any, Any], response: web.StreamResponse, etag: str) -> web.StreamResponse:
    response.headers[ETAG] = etag_for(call.request, etag)
    response[VERSIONED] = True
    return response


async def _body(context: WebContext, route: ApiRoute, request: web.Request) -> bytes:
    known = isinstance(route.access, KeyAccess | AdminAccess | JobTokenAccess)
    limit = context.limits.body_bytes if known else request_body.PRE_AUTH_BYTES
    deadline = context.limits.body_deadline * (LARGE_BODY_FACTOR if route.body_bytes else 1)
    raw = await request_body.read_bytes(request, limit=max(limit, route.body_bytes), deadline=deadline)
    if raw and route.request_model is not None:
        request_body.require_json(request)
    if raw and route.request_model is None and raw.strip() not in (b"", b"{}"):
        raise HttpProblem(400, "this request has no body")
    return raw


def _parse(route: ApiRoute, raw: bytes) -> BaseModel:
    if route.request_model is None or (not raw and route.optional_body):
        return NoContent() if route.request_model is None else route.request_model()
    if not raw:
        raise HttpProblem(400, "this request needs a JSON body")
    value = request_body.parse_json(raw, lenient=route.lenient)
    if route.batch and isinstance(value, list) and value:
        return _parse_batch(route, route.request_model, value)
    return _parse_object(route, route.request_model, value, "")


def _parse_batch(route: ApiRoute, model: type[BaseModel], values: Sequence[Any]) -> Batch:
    if len(values) > route.batch:
        detail = f"at most {route.batch} messages in one batch, not {len(values)}"
        raise invalid([Fault(pointer="", detail=detail)])
    found = (_parse_object(route, model, value, f"/{place}") for place, value in enumerate(values))
    return Batch.model_construct(items=tuple(found))


def _parse_object(route: ApiRoute, model: type[BaseModel], value: Any, below: str) -> BaseModel:
    if not isinstance(value, dict):
        detail = f"{'the message' if below else 'the body'} must be a JSON object"
        raise invalid([Fault(pointer=below, detail=detail)])
    return _validate(model, value, below, fixed=_fixed_fields(route))


def _fixed_fields(route: ApiRoute) -> set[str]:
    """Return the fields of a resource that a PATCH of it cannot change."""
    if route.method != "PATCH" or route.request_model is None or not isinstance(route.response_model, type):
        return set()
    return _field_names(route.response_model) - _field_names(route.request_model)


def _query(route: ApiRoute, request: web.Request) -> BaseModel:
    response = {
        name: request.query[name] for name in request.query if name in _field_names(route.query_model)
    }
    for name, value in response.items():
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise invalid([Fault(pointer=f"?/{name}", detail="must not contain NUL or invalid characters")])
    return _validate(route.query_model, response, "?")


def _field_names(model: type[BaseModel]) -> set[str]:
    return {about.alias or name for name, about in model.model_fields.items()}


def _validate(
    model: type[BaseModel], value: Mapping[str, Any], below: str, *, fixed: Collection[str] = ()
) -> BaseModel:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = to_problems(error, value, model, below=below)
    raise invalid(
        replace(one, detail="cannot be changed") if one.pointer.removeprefix("/") in fixed else one
        for one in problems
    )


def _path(request: web.Request) -> Mapping[str, str]:
    """Return the path parameters; raises a 400 for other bytes than UTF-8, a 404 for what can be no name."""
    if not _is_utf8(request.raw_path):
        raise HttpProblem(400, "the bytes of the path are not UTF-8")
    for value in request.match_info.values():
        if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
            raise HttpProblem(404, "there is nothing at this path")
    return {name: stored_id(value) if name == "id" else value for name, value in request.match_info.items()}


def _is_utf8(encoded: str) -> bool:
    """Return whether the percent-encoded bytes of a path are UTF-8; else they would be taken for text."""
    try:
        unquote_to_bytes(encoded.partition("?")[0]).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def stored_id(given: str) -> str:
    """Return the id of a turn or conversation that an OpenAI client spells in its own way; else the text."""
    found = _OPENAI_ID.fullmatch(given)
    return f"{'cnv_' if found['conversation'] else 'trn_'}{found['rest']}" if found else given


def to_response(route: ApiRoute, result: HandlerResult) -> web.StreamResponse:
    """Return a handler's result as an HTTP response."""
    if isinstance(result, web.StreamResponse):
        return result
    if result is None:
        return web.Response(status=204 if route.status == 200 else route.status)  # noqa: PLR2004 - OK
    return web.Response(
        status=route.status,
        body=result.model_dump_json(by_alias=True).encode(),
        content_type="application/json",
        headers=NO_STORE,
    )

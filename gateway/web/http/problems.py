"""Errors as `application/problem+json` (RFC 9457), without internal details."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from pydantic import BaseModel, Field

from delivery.database.engine import (
    DatabaseDamaged,
    DatabaseReadOnly,
    DatabaseUnavailable,
    TransactionConflict,
    is_dangling_reference,
)
from delivery.exhaustion import EXHAUSTED, exhausted_resource
from gateway.accounts.vault import DecryptionFailed
from gateway.files.storage.storage_quota import StorageFull
from gateway.records.errors import (
    InUse,
    InvalidRecord,
    ManagedByOperator,
    RecordError,
    RecordNameTaken,
    RecordNotFound,
    SecretUnreadable,
    WebhookDisabled,
    WebhookOfAgent,
)
from gateway.web.http.deferred_routes import all_resources
from sandbox.config import ConfigProblem as Fault

log = structlog.get_logger("dovecote.web")

MEDIA_TYPE = "application/problem+json"
INTERNAL_ERROR = "internal error; the gateway's log has the details"
OPENAI_PREFIX = "/v1/"
"""Paths below it also return errors in OpenAI's format."""
JSON_RPC_PATHS = ("/a2a", "/mcp")
"""Paths that also return errors in the format of JSON-RPC."""
OPENAI_ANSWERS = ("/v1/chat/completions", "/v1/responses")
"""The paths at which agents answer in OpenAI's API, for clients that use another one."""
REQUEST_ID = web.RequestKey("request_id", str)
"""The id of a request, in the header `x-request-id` of its response and in log lines about it."""
NO_RETRY = {"x-should-retry": "false"}
"""Headers with which OpenAI's SDKs do not repeat a request; they repeat each 409 without them."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ProblemError(BaseModel):
    """One thing wrong with the input: where (JSON pointer) and what is allowed."""

    pointer: str
    detail: str


class ProblemDetails(BaseModel):
    """The body of every error response."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    errors: list[ProblemError] = Field(default_factory=list)


class HttpProblem(Exception):
    """An error response; handlers and everything they call can raise it."""

    def __init__(
        self,
        status: int,
        detail: str = "",
        *,
        errors: Iterable[Fault] = (),
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.members = dict(members or {})
        self.close = close

    def to_text(self) -> str:
        """Return the problem as one text: the detail, and what is wrong with each field beyond it."""
        faults = [_to_line(one) for one in self.errors if one.detail != self.detail]
        return f"{self.detail}: {'; '.join(faults)}" if faults else self.detail

    def to_response(self) -> web.Response:
        """Return the problem as an HTTP response."""
        shape: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.errors:
            shape["errors"] = [{"pointer": one.pointer, "detail": one.detail} for one in self.errors]
        answer = web.Response(
            status=self.status,
            body=json.dumps(shape | self.members).encode(),
            content_type=MEDIA_TYPE,
            headers={"Cache-Control": "no-store", **self.headers},
        )
        if self.close:
            answer.force_close()
        return answer


def _to_line(fault: Fault) -> str:
    """Return a fault with its pointer; that of the whole input is empty (RFC 6901)."""
    return f"{fault.pointer}: {fault.detail}" if fault.pointer else fault.detail


def not_found(detail: str = "there is nothing here") -> HttpProblem:
    """Return the 404 for a resource that does not exist or belongs to another account."""
    return HttpProblem(404, detail)


def invalid(errors: Iterable[Fault]) -> HttpProblem:
    """Return the 422 for invalid input."""
    found = tuple(errors)
    return HttpProblem(
        422, f"{len(found)} problem{'s' if len(found) != 1 else ''} with the input", errors=found
    )


def storage_full(detail: str, pointer: str = "") -> HttpProblem:
    """Return the 413 for a field, by default the whole body, that the account has no storage left for."""
    return HttpProblem(413, detail, errors=[Fault(pointer=pointer, detail=detail)])


PATH_POINTER = "path"
"""The pointer of a wrong path; `header/NAME` is a header, `?/NAME` a query parameter."""


def invalid_field(pointer: str, detail: str) -> HttpProblem:
    """Return the 422 for one invalid field."""
    return invalid([Fault(pointer=pointer, detail=detail)])


def too_many(what: str, limit: int, setting: str) -> HttpProblem:
    """Return the 429 for an account that has as many of something as it may have."""
    return HttpProblem(
        429,
        f"the account has {limit} {what}, which is its limit: delete some, or have {setting} raised",
    )


_STATUS: Mapping[type[RecordError], int] = {
    RecordNotFound: 404,
    RecordNameTaken: 409,
    InUse: 409,
    ManagedByOperator: 409,
    WebhookDisabled: 409,
    WebhookOfAgent: 409,
}


def _from_record_error(error: RecordError | DecryptionFailed) -> HttpProblem:
    if isinstance(error, DecryptionFailed):
        return HttpProblem(409, f"a stored secret cannot be decrypted: {error}")
    if isinstance(error, SecretUnreadable):
        return HttpProblem(409, str(error), errors=error.problems)
    if isinstance(error, InvalidRecord):
        return invalid(error.problems)
    return HttpProblem(_STATUS.get(type(error), 422), str(error))


def _from_http_exception(error: web.HTTPException) -> HttpProblem:
    kept = {name: value for name, value in error.headers.items() if name in ("Allow", "Retry-After")}
    details = {404: "there is nothing at this path", 405: f"this path takes {kept.get('Allow', 'no method')}"}
    return HttpProblem(error.status, details.get(error.status, error.reason), headers=kept)


def _from_unavailable(error: Exception) -> HttpProblem | None:
    """Return the problem for what the process or the request needs and cannot have; None for other errors."""
    resource = exhausted_resource(error) if isinstance(error, DatabaseUnavailable | OSError) else None
    if resource:
        return HttpProblem(503, EXHAUSTED[resource], headers={"Retry-After": "10"})
    if isinstance(error, TransactionConflict):
        detail = "other requests change the same data at this moment; try again"
        return HttpProblem(503, detail, headers={"Retry-After": "1"})
    if isinstance(error, DatabaseReadOnly | DatabaseDamaged):
        return HttpProblem(503, str(error), headers={"Retry-After": "10"})
    if isinstance(error, DatabaseUnavailable):
        return HttpProblem(503, "the database does not answer; try again", headers={"Retry-After": "2"})
    if is_dangling_reference(error):
        detail = "something that the request refers to was deleted at this moment; try again"
        return HttpProblem(409, detail, headers={"Retry-After": "1"})
    return None


def translate_error(error: Exception) -> HttpProblem:
    """Return the problem for an exception; an unexpected one becomes a 500 without details."""
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, RecordError | DecryptionFailed):
        return _from_record_error(error)
    if isinstance(error, StorageFull):
        return storage_full(str(error))
    if isinstance(error, web.HTTPException):
        return _from_http_exception(error)
    unavailable = _from_unavailable(error)
    return unavailable or HttpProblem(500, INTERNAL_ERROR)


@web.middleware
async def problem_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert exceptions of handlers into problem responses."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        error.headers["Allow"] = await _allowed_methods(request)
        return _to_response(request, translate_error(error))
    except web.HTTPException as error:
        if error.status < 400:  # noqa: PLR2004 - a redirect is no error
            raise
        return _to_response(request, _not_offered(request, error) or translate_error(error))
    except Exception as error:
        problem = translate_error(error)
        if problem.detail == INTERNAL_ERROR:
            log.exception("request.failed", exc_info=error, request=request.get(REQUEST_ID))
        return _to_response(request, problem)


def _not_offered(request: web.Request, error: web.HTTPException) -> HttpProblem | None:
    """Return the problem for a path of OpenAI's API that is not here; None for anything else."""
    if error.status != HTTPStatus.NOT_FOUND:
        return None
    if _lacks_prefix(request):
        return not_found("OpenAI's API is below /v1: end the base URL of the client with /v1")
    if not request.path.startswith(OPENAI_PREFIX):
        return None
    asked = f"{request.method[:20]} {request.path[:200]}"
    return not_found(f"{asked} is not supported: agents answer POST {' and POST '.join(OPENAI_ANSWERS)}")


def _lacks_prefix(request: web.Request) -> bool:
    """Return whether a client of OpenAI's API has a base URL without `/v1`."""
    return f"/v1{request.path}" in OPENAI_ANSWERS


async def _allowed_methods(request: web.Request) -> str:
    """Return the methods of the most specific path that matches; others may match by a parameter."""
    methods_by_path: dict[str, set[str]] = {}
    for resource in all_resources(request.app):
        _match, methods = await resource.resolve(request)
        if methods:
            methods_by_path.setdefault(resource.canonical, set()).update(methods)
    path = min(methods_by_path, key=lambda path: path.count("{"))
    return ", ".join(sorted(methods_by_path[path]))


def _to_response(request: web.Request, problem: HttpProblem) -> web.Response:
    if request.path.startswith(OPENAI_PREFIX) or _lacks_prefix(request):
        problem.members["error"] = openai_error(problem)
        if problem.status == HTTPStatus.CONFLICT and "Retry-After" not in problem.headers:
            problem.headers |= NO_RETRY
    if request.path in JSON_RPC_PATHS:
        code = _JSON_RPC_CODES.get(problem.status, _JSON_RPC_SERVER_ERROR)
        error = {"code": code, "message": problem.to_text()}
        problem.members |= {"jsonrpc": "2.0", "id": None, "error": error}
    return problem.to_response()


_JSON_RPC_CODES: Mapping[int, int] = {400: -32700, 422: -32600}
"""Codes of https://www.jsonrpc.org/specification: the body is no JSON, or it is no request."""

_JSON_RPC_SERVER_ERROR = -32000


_OPENAI_CODES: Mapping[int, str] = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "insufficient_permissions",
    404: "not_found",
    409: "conflict",
    413: "request_too_large",
    415: "unsupported_media_type",
    422: "invalid_value",
    424: "turn_failed",
    429: "rate_limit_exceeded",
    503: "service_unavailable",
    504: "timeout",
}
_OPENAI_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def openai_error(problem: HttpProblem) -> dict[str, Any]:
    """Return a problem in OpenAI's error format; `param` is the field in OpenAI's spelling."""
    failed = problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    usual = "server_error" if failed else "invalid_request_error"
    return {
        "message": problem.to_text(),
        "type": _OPENAI_TYPES.get(problem.status, usual),
        "code": problem.members.get("code") or _OPENAI_CODES.get(problem.status, usual),
        "param": _openai_parameter(problem.errors[0].pointer) if problem.errors else None,
    }


def _openai_parameter(pointer: str) -> str | None:
    """Return a JSON pointer as OpenAI writes it: `messages[0].content`."""
    parts = [part for part in pointer.split("/") if part not in ("", "?")]
    return (
        "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts).removeprefix(".") or None
    )

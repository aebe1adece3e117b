"""`ETag`, `If-Match` and `If-None-Match` (RFC 9110, 13): changes apply to the version that their author read.

An entity tag is strong: the digest of what a GET of the resource returns. Secrets that are returned once are
no part of it, nor are fields that change by themselves (`ResponseModel.unversioned`): a GET of a resource
with such fields ignores If-None-Match.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Literal

from aiohttp import hdrs, web
from pydantic import BaseModel

from gateway.web.http.problems import HttpProblem

ETAG = "ETag"
_RETURNED_ONCE = {"secret", "webhook_secret"}
_ANY = "*"
GZIP = "gzip"
_CONDITIONS: tuple[Literal["If-Match", "If-None-Match"], ...] = ("If-Match", "If-None-Match")

VERSIONED = web.ResponseKey("versioned", bool)
"""Marks the response with a resource, whose gzip form has an entity tag of its own."""

_GZIP_FORM = "-gzip"

Resource = BaseModel | bytes
"""What a GET returns: a response model, or the content of a file."""


def etag_of(resource: Resource) -> str:
    """Return the entity tag of a resource, with its quotes."""
    if isinstance(resource, bytes):
        content = resource
    else:  # databases do not keep the order of keys
        others: Collection[str] = getattr(resource, "unversioned", ())
        content = json.dumps(_shown(resource, without=others), sort_keys=True).encode()
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def prefers_gzip(request: web.Request) -> bool:
    """Return whether a request gets compressed responses."""
    return accepts_gzip(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())))


def accepts_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip, by its name or by `*`, with a weight above 0."""
    weights: dict[str, bool] = {}
    for part in accepted.lower().split(","):
        name, _, parameters = part.partition(";")
        weights[name.strip()] = not _is_zero(parameters)
    return weights.get(GZIP, weights.get("*", False))


def _is_zero(parameters: str) -> bool:
    name, _, weight = parameters.partition("=")
    return name.strip() == "q" and weight.strip().strip("0") in ("", ".")


def etag_for(request: web.Request, etag: str) -> str:
    """Return the entity tag of the form that a request gets: forms with other bytes have other strong tags.

    A condition may name either form.
    """
    return f'{etag[:-1]}{_GZIP_FORM}"' if prefers_gzip(request) else etag


def has_conditions(request: web.Request) -> bool:
    """Return whether a request names versions."""
    return any(name in request.headers for name in _CONDITIONS)


def not_modified(request: web.Request, etag: str, headers: Mapping[str, str]) -> web.Response | None:
    """Return the 304 for a GET whose If-None-Match names this version; else None."""
    wanted = _named_versions(request, "If-None-Match")
    if wanted is None or not _includes(wanted, etag, weakly=True):
        return None
    return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={**headers, ETAG: etag})


def ensure_preconditions(request: web.Request, present: Resource | None) -> None:
    """Raise the 412 for a change whose conditions are not met by the present resource (None: there is none).

    Call it in the transaction of the change, after what makes the request fail anyway.
    """
    wanted, unwanted = (_named_versions(request, name) for name in _CONDITIONS)
    etag = None if present is None else etag_of(present)
    if wanted is not None and (etag is None or not _includes(wanted, etag, weakly=False)):
        raise _failed(request, present, etag)
    if unwanted is not None and etag is not None and _includes(unwanted, etag, weakly=True):
        detail = (
            "this version, or any with *, is what If-None-Match excludes: leave the header out to replace it"
        )
        raise HttpProblem(412, detail, headers={ETAG: _form(request, present, etag)})


def _form(request: web.Request, present: Resource | None, etag: str) -> str:
    return etag_for(request, etag) if isinstance(present, BaseModel) else etag


def _failed(request: web.Request, present: Resource | None, etag: str | None) -> HttpProblem:
    if present is None or etag is None:
        return HttpProblem(412, "there is nothing here any more, but If-Match names a version of it")
    changed_at = getattr(present, "updated_at", None)
    when = f" at {changed_at.isoformat()}" if changed_at is not None else ""
    detail = (
        f"it was changed{when}, after the version that If-Match names: compare it with what it is now, "
        "and send the change again with the new ETag"
    )
    members: dict[str, Any] = (
        {"size": len(present)} if isinstance(present, bytes) else {"current": _shown(present)}
    )
    return HttpProblem(412, detail, headers={ETAG: _form(request, present, etag)}, members=members)


def _shown(resource: BaseModel, *, without: Collection[str] = ()) -> dict[str, Any]:
    return resource.model_dump(mode="json", by_alias=True, exclude={*_RETURNED_ONCE, *without})


def _named_versions(
    request: web.Request, name: Literal["If-Match", "If-None-Match"]
) -> tuple[tuple[bool, str], ...] | None:
    """Return the versions that a header names, weak or not; `*` alone is any. None without the header."""
    given = request.headers.getall(name, [])
    if not given:
        return None
    if len(given) == 1 and given[0].strip() == _ANY:
        return ((False, _ANY),)
    parsed = request.if_match if name == "If-Match" else request.if_none_match
    if len(given) > 1 or not parsed:
        raise HttpProblem(400, f'{name} must be one header with * or entity tags such as "3f2a"')
    return tuple((one.is_weak, f'"{one.value.removesuffix(_GZIP_FORM)}"') for one in parsed)


def _includes(wanted: tuple[tuple[bool, str], ...], etag: str, *, weakly: bool) -> bool:
    """Compare as RFC 9110, 8.8.3.2: a weak tag never equals by the strong comparison."""
    return any(tag == _ANY or (tag == etag and (weakly or not is_weak)) for is_weak, tag in wanted)

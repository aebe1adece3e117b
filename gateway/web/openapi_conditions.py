"""The headers of `preconditions` in the OpenAPI document: versions in responses, conditions in requests."""

from __future__ import annotations

from typing import Any

from gateway.web.http.route import ApiRoute

_SCHEMA = {"type": "string", "maxLength": 1000}
_NAMES = '`*` or entity tags such as `"3f2a"`, separated by commas'


def condition_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    """Return the headers with which a request names versions of the resource."""
    if not route.versioned or _ignores_known_versions(route):
        return []
    if route.method == "GET":
        return [_header("If-None-Match", f"304 if the resource has one of these versions: {_NAMES}")]
    found = [_header("If-Match", f"412 unless the resource has one of these versions: {_NAMES}")]
    if route.method == "PUT":
        found.append(_header("If-None-Match", "with `*`, 412 if there is something already"))
    return found


def condition_responses(route: ApiRoute, problem: dict[str, Any]) -> dict[str, Any]:
    """Return the responses to conditions that decide against the request's effect."""
    if not route.versioned or _ignores_known_versions(route):
        return {}
    if route.method == "GET":
        return {"304": {"description": "the resource has a version that If-None-Match names"}}
    return {
        "412": {**problem, "description": "the resource was changed since; `current` is its present value"}
    }


def version_header(route: ApiRoute) -> dict[str, Any]:
    """Return the ETag of a successful response."""
    if not route.versioned or route.method == "DELETE":
        return {}
    return {"headers": {"ETag": {"description": "the version of the resource", "schema": {"type": "string"}}}}


def _ignores_known_versions(route: ApiRoute) -> bool:
    """Return whether a GET has fields that are no part of the version."""
    return route.method == "GET" and bool(getattr(route.response_model, "unversioned", None))


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": _SCHEMA}

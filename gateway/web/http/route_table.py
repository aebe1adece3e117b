"""Short forms of the routes of most resources: methods, scopes and usual errors."""

from __future__ import annotations

from functools import partial
from typing import Any

from gateway.web.http.auth import Access, KeyAccess, PublicAccess
from gateway.web.http.route import ApiRoute, Handler

ME = "/accounts/me"
READ = KeyAccess("read")
CHAT = KeyAccess("chat")
JOBS = KeyAccess("jobs")
ADMIN = KeyAccess("admin")
PUBLIC = PublicAccess()


def route(method: str, path: str, access: Access, handler: Handler, /, summary: str, **more: Any) -> ApiRoute:
    """Return a route; its tag is the first part of the path that names a resource."""
    parts = [part for part in path.split("/") if part and not part.startswith("{")]
    tag = parts[2] if path.startswith(f"{ME}/") else parts[0] if parts else "console"
    return ApiRoute(
        method=method, path=path, access=access, handler=handler, summary=summary, **{"tag": tag} | more
    )


get_route = partial(route, "GET")
post_route = partial(route, "POST")
patch_route = partial(route, "PATCH")
delete_route = partial(route, "DELETE", status=204)
post_new_route = partial(post_route, status=201, error_responses={409: "the name is in use"})
patch_named_route = partial(
    patch_route,
    error_responses={
        409: "the name is in use, the operator manages the record, or a stored secret is unreadable"
    },
)
delete_named_route = partial(
    delete_route, error_responses={409: "another record refers to it, or the operator manages it"}
)

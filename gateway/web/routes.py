"""The URL table: every path with its access, handler and models."""

from __future__ import annotations

import re

from gateway import console
from gateway.web import asyncapi, console_page, mcp_sign_in_page, openapi, sign_in_page
from gateway.web.admin.routes import ADMIN_ROUTES
from gateway.web.api.routes import API_ROUTES
from gateway.web.compat import mcp
from gateway.web.compat.a2a import routes as a2a_routes
from gateway.web.compat.agui import routes as agui_routes
from gateway.web.compat.openai import routes as openai_routes
from gateway.web.compat.ui import routes as ui_routes
from gateway.web.http.auth import OneTimeCodeAccess
from gateway.web.http.route import ApiRoute
from gateway.web.http.route_table import PUBLIC, get_route, post_route
from gateway.web.status_routes import STATUS_ROUTES
from gateway.web.stream import handlers, live_view, tickets


def _public() -> tuple[ApiRoute, ...]:
    files = f"/{{file:{'|'.join(re.escape(name) for name in console.FILES)}|}}"
    return (
        get_route(
            "/openapi.json",
            PUBLIC,
            openapi.handler_for(lambda: ROUTES),
            "the OpenAPI document",
            media_type="application/json",
            tag="documents",
        ),
        post_route(
            "/console/entry",
            OneTimeCodeAccess(),
            console_page.enter,
            "exchange the one-time code of the printed link for the gateway's key",
            request_model=console_page.EntryRequest,
            response_model=console_page.EntryResponse,
            tag="console",
        ),
        get_route(
            files,
            PUBLIC,
            console_page.serve,
            "the console",
            media_type="text/html",
            hidden=True,
            tag="console",
        ),
    )


ROUTES: tuple[ApiRoute, ...] = (
    *ADMIN_ROUTES,
    *API_ROUTES,
    *handlers.ROUTES,
    *tickets.ROUTES,
    *live_view.ROUTES,
    *openai_routes.ROUTES,
    *agui_routes.ROUTES,
    *mcp.ROUTES,
    *a2a_routes.ROUTES,
    *ui_routes.ROUTES,
    *asyncapi.ROUTES,
    *sign_in_page.ROUTES,
    *mcp_sign_in_page.ROUTES,
    *STATUS_ROUTES,
    *_public(),
)

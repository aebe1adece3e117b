"""The pages on which a person signs in to an MCP server: the link in the chat, and the way back.

The first page says for whom and for what the sign-in is, so that no person who was sent another person's link
signs in for that person. The cookie that it sets is needed on the way back.
"""

from __future__ import annotations

from functools import partial
from html import escape

from aiohttp import web
from yarl import URL

from gateway.sign_in.attempt import LIFETIME
from gateway.tools.mcp.sign_ins.links import PAGE_PATH, OpenSignIn, SignInLinks, SignInNotPossible
from gateway.tools.mcp.sign_ins.stored_sign_ins import CALLBACK_PATH
from gateway.web.http.problems import not_found
from gateway.web.http.route import ApiCall, ApiRoute, NoContent
from gateway.web.http.route_table import PUBLIC, get_route

COOKIE = "dovecote-mcp-sign-in"
MAX_VALUE = 4096
"""Characters of a value that comes with the browser from the authorization server."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body{{font:1.1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:12vh auto;padding:0 1rem;
color-scheme:light dark}}a.go{{display:inline-block;padding:.6rem 1.2rem;border:2px solid;border-radius:.5rem;
color:inherit;text-decoration:none;font-weight:600}}</style></head>
<body><main><h1>{title}</h1>{content}</main></body></html>
"""


async def show(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Show for whom the sign-in is; with `go` send the browser to the authorization server."""
    links = _links(call)
    ticket = call.request.query.get("ticket", "")[:MAX_VALUE]
    try:
        if "go" not in call.request.query:
            return _ask(await links.find(ticket), ticket)
        cookie, url = await links.begin(ticket, call.request.cookies.get(_cookie_name(links), ""))
    except SignInNotPossible as error:
        return _page("Not possible", f"<p>{escape(str(error))}</p>", status=400)
    response = web.Response(status=302, headers={**_HEADERS, "Location": url})
    _set_cookie(response, links, cookie, seconds=LIFETIME)
    return response


async def finish(call: ApiCall[NoContent, NoContent]) -> web.Response:
    """Take what the browser brings back from the authorization server."""
    links = _links(call)
    answer = {name: value[:MAX_VALUE] for name, value in call.request.query.items()}
    try:
        found = await links.finish(call.request.cookies.get(_cookie_name(links), ""), answer)
    except SignInNotPossible as error:
        response = _page("Not signed in", f"<p>{escape(str(error))}</p>", status=400)
    else:
        said = f"<p>The agent can now use {escape(found.server)} for you. Go back to the chat.</p>"
        response = _page("You are signed in", said)
    _set_cookie(response, links, "", seconds=0)
    return response


def _ask(found: OpenSignIn, ticket: str) -> web.Response:
    person, server = escape(found.key.person), escape(found.server)
    go = escape(str(URL(PAGE_PATH).with_query(ticket=ticket, go="1")))
    return _page(
        f"Sign in to {server}",
        f"<p>The agent <b>{escape(found.agent.name)}</b> wants to use <b>{server}</b> "
        f"(<code>{escape(found.config.url or '')}</code>) for <b>{person}</b>.</p>"
        "<p>Continue only if you are that person. If another person sent you this link, close the page.</p>"
        f'<p><a class="go" href="{go}">Sign in</a></p>',
    )


def _page(title: str, content: str, *, status: int = 200) -> web.Response:
    text = _PAGE.format(title=title, content=content)
    return web.Response(status=status, text=text, content_type="text/html", headers=_HEADERS)


def _links(call: ApiCall[NoContent, NoContent]) -> SignInLinks:
    if call.context.services is None:
        raise not_found()
    return call.context.services.sign_in_links


def _cookie_name(links: SignInLinks) -> str:
    """Return the cookie's name; over TLS with the prefix that keeps other hosts from setting it."""
    return f"__Host-{COOKIE}" if links.is_secure else COOKIE


def _set_cookie(response: web.Response, links: SignInLinks, value: str, *, seconds: int) -> None:
    """Set a cookie that scripts cannot read; 0 seconds delete it."""
    response.set_cookie(
        _cookie_name(links),
        value,
        max_age=seconds,
        path="/",
        secure=links.is_secure,
        httponly=True,
        samesite="Lax",
    )


_get_page = partial(get_route, raw=True, hidden=True)

ROUTES: tuple[ApiRoute, ...] = (
    _get_page(PAGE_PATH, PUBLIC, show, "sign in to an MCP server"),
    _get_page(CALLBACK_PATH, PUBLIC, finish, "finish a sign-in to an MCP server"),
)
"""The sign-ins' part of the URL table."""

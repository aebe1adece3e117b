"""Authentication of a WebSocket by its subprotocols, for browsers, which cannot send headers.

    new WebSocket(url, ["dovecote.v1", "dovecote.key." + key])

The gateway selects `dovecote.v1`; the other one only carries the key and is never returned.
"""

from __future__ import annotations

from aiohttp import hdrs, web

from gateway.web.http.problems import HttpProblem

PROTOCOL = "dovecote.v1"
KEY_PREFIX = "dovecote.key."


def offered_key(request: web.Request) -> str | None:
    """Return the key among the offered subprotocols; raises HttpProblem for one that cannot be used."""
    offered = _offered(request)
    keys = [name.removeprefix(KEY_PREFIX) for name in offered if name.startswith(KEY_PREFIX)]
    if not keys:
        return None
    if len(keys) > 1 or hdrs.AUTHORIZATION in request.headers:
        raise HttpProblem(400, "give one key: in a subprotocol or in the Authorization header")
    if PROTOCOL not in offered:
        raise HttpProblem(400, f"offer the subprotocol {PROTOCOL!r} besides the one with the key")
    return keys[0]


def _offered(request: web.Request) -> list[str]:
    lines = request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, [])
    return [name.strip() for line in lines for name in line.split(",") if name.strip()]

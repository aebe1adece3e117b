"""The console: static files of one page that the gateway serves at `/`, and the headers they need.

There is no build step: what stands in this folder is what the browser gets. The page talks to the gateway
over the public HTTP and WebSocket interface only.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import NamedTuple

INDEX = "index.html"

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",  # covers ws: and wss: of the same host and port
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",  # markup from strings is refused by the browser itself
    "trusted-types 'none'",
)

CSP = "; ".join(_POLICY)
"""No inline script or style, no eval, no markup from strings, nothing from or to another host."""

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": CSP,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",  # kept, but asked for again by ETag: an upgrade shows at once
    }
)
"""What every answer with one of these files carries."""

_SCRIPT = "text/javascript; charset=utf-8"

FILES: Mapping[str, str] = MappingProxyType(
    {
        INDEX: "text/html; charset=utf-8",
        "style.css": "text/css; charset=utf-8",
        "icon.svg": "image/svg+xml",
        "api.js": _SCRIPT,
        "app.js": _SCRIPT,
        "cards.js": _SCRIPT,
        "chat.js": _SCRIPT,
        "code.js": _SCRIPT,
        "deliveries.js": _SCRIPT,
        "health.js": _SCRIPT,
        "highlight.js": _SCRIPT,
        "jobs.js": _SCRIPT,
        "markdown.js": _SCRIPT,
        "outbox.js": _SCRIPT,
        "parts.js": _SCRIPT,
        "socket.js": _SCRIPT,
        "splice.js": _SCRIPT,
        "streams.js": _SCRIPT,
        "thread.js": _SCRIPT,
        "timeline.js": _SCRIPT,
        "webhooks.js": _SCRIPT,
        "vendor/htm.mjs": _SCRIPT,
        "vendor/hooks.mjs": _SCRIPT,
        "vendor/preact.mjs": _SCRIPT,
    }
)
"""The public files, by their path below `/`, and their media types; nothing else is served."""


class Asset(NamedTuple):
    """A file as it is served; `etag` is quoted, ready for the header."""

    body: bytes
    media_type: str
    etag: str


@functools.cache
def load(name: str) -> Asset:
    """Return a public file by its path below `/`, or raise KeyError for any other name."""
    media_type = FILES[name]
    body = resources.files(__name__).joinpath(*name.split("/")).read_bytes()
    return Asset(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

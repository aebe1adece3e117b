"""The console: static files of one page that the gateway serves at `/`, and the headers they need.

There is no build step: what stands in this folder is what the browser gets. The page talks to the gateway
over the public HTTP and WebSocket interface only.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

INDEX = "index.html"


def _loader_hash() -> str:
    """The digest of the index's one inline script, as a source of the policy (CSP Level 3, 2.3.1)."""
    page = resources.files(__name__).joinpath(INDEX).read_text(encoding="utf-8")
    script = page.split('<script type="module">')[1].split("</script>")[0]
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


_POLICY = (
    "default-src 'none'",
    f"script-src 'self' '{_loader_hash()}'",
    "style-src 'self'",
    "img-src 'self' blob:",  # blob: previews of files before they are sent
    "worker-src 'self'",  # the worker that colours code
    "connect-src 'self'",  # covers ws: and wss: of the same host and port
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",  # markup from strings is refused by the browser itself
    "trusted-types dovecote-worker",  # of parts/highlight.js: it makes one address, and no markup
)

CSP = "; ".join(_POLICY)
"""No inline style, no inline script but the loader, no eval, no markup from strings, no other host."""

HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": CSP,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Vary": "Accept-Encoding",
        "Cache-Control": "no-cache",  # kept, but asked for again by ETag: an upgrade shows at once
    }
)
"""What every answer with one of these files carries."""

_MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".svg": "image/svg+xml",
        ".yaml": "text/plain; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".mjs": "text/javascript; charset=utf-8",
    }
)


def _public_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            yield from _public_files(entry, f"{prefix}{entry.name}/")
        elif media_type := _MEDIA_TYPES.get(PurePosixPath(entry.name).suffix):
            yield f"{prefix}{entry.name}", media_type


FILES: Mapping[str, str] = MappingProxyType(dict(_public_files(resources.files(__name__))))
"""The public files, by their path below `/`, and their media types; nothing else is served."""


class Asset(NamedTuple):
    """A file as it is served; `etag` is quoted, ready for the header; `compressed` is its gzip form."""

    body: bytes
    compressed: bytes
    media_type: str
    etag: str

    @property
    def compressed_etag(self) -> str:
        """The ETag of the gzip form: two forms of a file have two strong ETags."""
        return f'{self.etag[:-1]}-gzip"'


@functools.cache
def load(name: str) -> Asset:
    """Return a public file by its path below `/`, or raise KeyError for any other name."""
    media_type = FILES[name]
    body = resources.files(__name__).joinpath(*name.split("/")).read_bytes()
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(body, gzip.compress(body, mtime=0), media_type, etag)

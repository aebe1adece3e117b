"""A 405 names the methods of its own path."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from api_server import open_api_server
from gateway.web.routes import ROUTES


async def test_allow_lists_the_methods_of_that_path_only(tmp_path: Path) -> None:
    """A path that another route's pattern matches too does not list that route's methods."""
    expected: dict[str, set[str]] = defaultdict(set)
    for route in ROUTES:
        path = re.sub(r"\{\w+\}", "x", re.sub(r"\{path:[^}]*\}", "a/b", route.path))
        if "{" not in path:
            expected[path] |= {route.method} | ({"HEAD"} if route.method == "GET" else set())
    expected["/ws"].discard("HEAD")  # it opens a WebSocket and has no representation
    async with open_api_server(tmp_path) as api:
        allowed = {}
        for path in expected:
            reply = await api.anonymous.call("TRACE", path)
            assert reply.status == 405
            allowed[path] = set(re.split(r", *", reply.headers["Allow"]))
    assert allowed == dict(expected)

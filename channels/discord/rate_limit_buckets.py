"""Track Discord's rate limits and refuse a call that Discord would refuse.

Discord counts calls in buckets. Each response names its bucket (`X-RateLimit-Bucket`), how many calls are
left (`-Remaining`) and when the bucket is full again (`-Reset-After`, seconds). Limits are per channel,
server or webhook, so the first two segments of a path are part of a bucket's name. Nothing waits here: the
caller gets RateLimited with the time to wait, as for a 429.
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TypeVar

from channels.discord.errors import positive_float
from channels.errors import RateLimited

MAX_BUCKETS = 10_000
MAX_WAIT_SECONDS = 600.0
"""Longer announced waits are ignored."""

_NUMBER = re.compile(r"[0-9]{15,20}")
_REACTION = re.compile(r"reactions/[^/]+")

_Value = TypeVar("_Value")

RateLimitRoute = tuple[str, str, str]
"""Method, path without ids, and the owner of the limit."""


def route_of(method: str, where: str) -> RateLimitRoute:
    """Return a path's route: ids are replaced, except of the channel or webhook that owns the limit."""
    segments = where.split("/")
    owner = "/".join(segments[:3] if segments[0] in {"webhooks", "interactions"} else segments[:2])
    shape = _REACTION.sub("reactions/:sign", _NUMBER.sub(":id", "/".join(segments[2:])))
    return method, f"{segments[0]}/{shape}", owner


class RateLimitBuckets:
    """The empty buckets, and until when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._names: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._empty: OrderedDict[tuple[str, str], float] = OrderedDict()

    def check(self, route: RateLimitRoute) -> None:
        """Raise RateLimited if the call's bucket is empty."""
        method, shape, owner = route
        bucket = self._names.get((method, shape), f"{method} {shape}"), owner
        wait = self._empty.get(bucket, 0.0) - self._clock()
        if wait > 0:
            raise RateLimited(wait, scope="room")
        self._empty.pop(bucket, None)

    def update(self, route: RateLimitRoute, headers: Mapping[str, str]) -> None:
        """Record what a response says about its bucket."""
        method, shape, owner = route
        name = headers.get("X-RateLimit-Bucket") or f"{method} {shape}"
        _remember(self._names, (method, shape), name)
        wait = positive_float(headers.get("X-RateLimit-Reset-After"))
        if headers.get("X-RateLimit-Remaining") == "0" and 0 < wait < MAX_WAIT_SECONDS:
            _remember(self._empty, (name, owner), self._clock() + wait)


def _remember(known: OrderedDict[tuple[str, str], _Value], key: tuple[str, str], value: _Value) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > MAX_BUCKETS:
        known.popitem(last=False)

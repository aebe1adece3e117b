"""What Discord has said about its rate limits: a call that it would refuse is not made.

Discord counts calls in buckets and tells with every answer which one it was (`X-RateLimit-Bucket`), how
many are left (`-Remaining`) and when it is full again (`-Reset-After`, seconds). Limits are per channel,
server or webhook, so the first two segments of a path belong to a bucket's name. Nothing waits here: the
caller is told how long, as a 429 would have told it.
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
"""Seconds after which an announced limit is not believed."""

_NUMBER = re.compile(r"[0-9]{15,20}")
_REACTION = re.compile(r"reactions/[^/]+")

_Value = TypeVar("_Value")

RateLimitRoute = tuple[str, str, str]
"""Method, path without ids, and the owner of the limit."""


def route_of(method: str, where: str) -> RateLimitRoute:
    """Return a path's route: its ids are left out, but for the channel or webhook that owns the limit."""
    segments = where.split("/")
    owner = "/".join(segments[:3] if segments[0] in {"webhooks", "interactions"} else segments[:2])
    shape = _REACTION.sub("reactions/:sign", _NUMBER.sub(":id", "/".join(segments[2:])))
    return method, f"{segments[0]}/{shape}", owner


class RateLimitBuckets:
    """The buckets that are known to be empty, and until when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._names: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._empty: OrderedDict[tuple[str, str], float] = OrderedDict()

    def check(self, route: RateLimitRoute) -> None:
        """Raise RateLimited for a call whose bucket is empty."""
        method, shape, owner = route
        bucket = self._names.get((method, shape), f"{method} {shape}"), owner
        wait = self._empty.get(bucket, 0.0) - self._clock()
        if wait > 0:
            raise RateLimited(wait, scope="room")
        self._empty.pop(bucket, None)

    def update(self, route: RateLimitRoute, headers: Mapping[str, str]) -> None:
        """Remember what an answer tells about its bucket."""
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

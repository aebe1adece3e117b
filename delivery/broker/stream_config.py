"""The streams on the broker: their names, subjects and settings, created and kept as they should be."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from delivery.broker.connection import NatsConnection
from delivery.errors import BrokerRefused, BrokerUnreachable

_log = logging.getLogger(__name__)

EVENTS = "EVENTS"
WORK = "WORK"
ADVISORIES = "ADVISORIES"

_SECOND = 1_000_000_000
_DAY = 86_400 * _SECOND
_GIB = 1024**3
_NOT_FOUND = 10059
_NOT_CLUSTERED = 10074
_INSUFFICIENT_STORAGE = 10047
CLUSTER_REPLICAS = 3


def subject_token(*parts: str) -> str:
    """Return a subject token for ids of any shape: raw ids could hold wildcards."""
    digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode().lower()[:26]


def lasting_subject(conversation: str) -> str:
    """Return where a conversation's lasting events go."""
    return f"ev.{subject_token(conversation)}.e"


def transient_subject(conversation: str) -> str:
    """Return where a conversation's deltas go: their own subject, so they never push lasting events out."""
    return f"ev.{subject_token(conversation)}.d"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """How much is kept. `budget` is the file space for all streams together, in bytes.

    `replicas` None: three on a cluster, one on a single server; what exists is left as it is.
    """

    replicas: int | None = None
    max_bytes: int = 4 * _GIB
    retention_days: float = 7
    max_events_per_conversation: int = 50_000

    @property
    def capacity(self) -> int:
        """The bytes of files that all streams take at most, on one server."""
        return sum(int(one["max_bytes"]) for one in self.streams().values())

    def streams(self) -> dict[str, dict[str, Any]]:
        """Return the wanted settings of every stream."""
        return {
            EVENTS: self._stream(
                subjects=["ev.*.e", "ev.*.d", "lease.*.*"],
                max_age=int(self.retention_days * _DAY),
                max_msgs_per_subject=self.max_events_per_conversation,
                max_bytes=self.max_bytes * 7 // 10,
                max_msg_size=256 * 1024,
                allow_msg_ttl=True,
                allow_rollup_hdrs=True,
                deny_delete=True,  # erasing the tail would forget the ids of the duplicate window
                republish={"src": "ev.>", "dest": "live.ev.>"},
            ),
            WORK: self._stream(
                subjects=["work.*.*", "sched.>"],
                retention="workqueue",
                max_age=_DAY,
                max_msgs_per_subject=1,
                max_bytes=self.max_bytes // 10,
                allow_msg_ttl=True,
                allow_rollup_hdrs=True,
                allow_msg_schedules=True,
            ),
            ADVISORIES: self._stream(
                subjects=[
                    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.*.*",
                    "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.*.*",
                    "$JS.EVENT.ADVISORY.STREAM.DELETED.*",
                    "$JS.EVENT.ADVISORY.SERVER.OUT_OF_STORAGE",
                ],
                max_age=14 * _DAY,
                max_bytes=self.max_bytes // 50,
            ),
        }

    def _stream(self, **settings: Any) -> dict[str, Any]:
        defaults = {
            "retention": "limits",
            "discard": "old",
            "storage": "file",
            "num_replicas": self.replicas or CLUSTER_REPLICAS,
            "duplicate_window": 120 * _SECOND,
            "allow_direct": True,
        }
        return defaults | settings


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdentity:
    """Which incarnation of a stream this is: when it was created, how far it has come, how full it is."""

    created: str
    last_seq: int
    fill: float = 0.0

    @classmethod
    def parse(cls, response: Mapping[str, Any]) -> StreamIdentity:
        """Return the origin in an answer of the API."""
        state, most = response["state"], response["config"]["max_bytes"]
        fill = state["bytes"] / most if most > 0 else 0.0
        return cls(created=response["created"], last_seq=state["last_seq"], fill=fill)


async def ensure_streams(
    nats: NatsConnection, config: StreamConfig, *, timeout: float = 10.0
) -> StreamIdentity:
    """Create what is missing, mend what differs, and return the origin of EVENTS.

    Waits up to `patience` seconds for a server that is still starting. Raises Refused, Unreachable.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        try:
            answers = {
                name: await _ensure_one(nats, name, want, any_replicas=config.replicas is None)
                for name, want in config.streams().items()
            }
        except BrokerUnreachable:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)
            continue
        return StreamIdentity.parse(answers[EVENTS])


async def get_identity(nats: NatsConnection) -> StreamIdentity:
    """Return the present origin of EVENTS; raises Refused when it is gone."""
    answer = await nats.api_request(f"STREAM.INFO.{EVENTS}")
    if "error" in answer:
        raise _error_for(EVENTS, answer)
    return StreamIdentity.parse(answer)


async def _ensure_one(
    nats: NatsConnection, name: str, settings: dict[str, Any], *, any_replicas: bool
) -> dict[str, Any]:
    want = {"name": name} | settings
    found = await nats.api_request(f"STREAM.INFO.{name}")
    if "error" not in found:
        if any_replicas:
            want["num_replicas"] = found["config"]["num_replicas"]
        return (
            found if _is_current(found["config"], want) else await _update(nats, name, found["config"], want)
        )
    if found["error"].get("err_code") != _NOT_FOUND:
        raise _error_for(name, found)
    return await _create(nats, name, want, any_replicas=any_replicas)


async def _create(
    nats: NatsConnection, name: str, want: dict[str, Any], *, any_replicas: bool
) -> dict[str, Any]:
    created = await nats.api_request(f"STREAM.CREATE.{name}", want)
    if any_replicas and created.get("error", {}).get("err_code") == _NOT_CLUSTERED:
        created = await nats.api_request(f"STREAM.CREATE.{name}", want | {"num_replicas": 1})
    if "error" in created:
        raise _error_for(name, created)
    _log.info("created the stream %s (%s replicas)", name, created["config"]["num_replicas"])
    return created


async def _update(
    nats: NatsConnection, name: str, have: dict[str, Any], want: dict[str, Any]
) -> dict[str, Any]:
    updated = await nats.api_request(f"STREAM.UPDATE.{name}", have | want)
    if "error" in updated:
        raise _error_for(name, updated)
    _log.info("changed the settings of the stream %s", name)
    return updated


def _is_current(have: dict[str, Any], want: dict[str, Any]) -> bool:
    return all(have.get(key) == value for key, value in want.items())


def _error_for(name: str, answer: dict[str, Any]) -> Exception:
    error = answer["error"]
    detail = f"stream {name}: {error.get('description')} ({error.get('err_code')})"
    if error.get("err_code") == _INSUFFICIENT_STORAGE:
        detail += f"; all streams take up to {StreamConfig().capacity / _GIB:.1f} GiB: raise max_file_store"
        detail += " in the server's jetstream block, or the account's storage limit"
    unavailable = error.get("code") == 503  # noqa: PLR2004 - the API's "not now"
    return BrokerUnreachable(detail) if unavailable else BrokerRefused(detail)

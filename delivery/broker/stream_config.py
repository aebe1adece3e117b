"""The streams on the broker: their names, subjects and settings, and how they are created and updated."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import structlog

from delivery.broker.connection import NatsConnection
from delivery.broker.stream_settings import (
    INCOMPLETE,
    LEAVE_SETTINGS,
    changed_settings,
    deletes_more,
    is_incomplete,
    marks,
)
from delivery.errors import BrokerRefused, BrokerUnreachable
from delivery.events.sharding import shard_of

_log = structlog.get_logger(__name__)

Result = TypeVar("Result")

EVENTS = "EVENTS"
WORK = "WORK"
ADVISORIES = "ADVISORIES"
PROBE = "DOVECOTE_PROBE"
"""A stream that exists while `dovecote doctor` tries the storage before the first start.

One that a killed doctor left reserves its space until the next doctor or the creation of the streams.
"""
_PROBE_SUBJECT = "dovecote.probe"

ALL_LASTING = "ev.*.*.*.e"
"""The subject that matches the lasting events of all conversations."""

FILL_WARNING = 0.8
"""The used share of the event log's space from which the operator is warned."""

_SECOND = 1_000_000_000
_HOUR_SECONDS = 3600
_DAY_SECONDS = 86_400
_DAY = _DAY_SECONDS * _SECOND
_GIB = 1024**3
_NOT_FOUND = 10059
_NOT_CLUSTERED = 10074
_INSUFFICIENT_STORAGE = 10047
_STORE_FAILED = 10049
CLUSTER_REPLICAS = 3
_MAX_SUBJECTS = 10_000
"""Conversations whose subjects are kept in memory, because hashing takes longer than looking them up."""


def subject_token(*parts: str) -> str:
    """Return a subject token for any ids, by a hash: raw ids could contain wildcards."""
    digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(digest).decode().lower()[:26]


@lru_cache(maxsize=_MAX_SUBJECTS)
def _subject_prefix(account: str, conversation: str) -> str:
    shard = shard_of(account, conversation)
    return f"ev.{shard}.{subject_token(account)}.{subject_token(conversation)}."


def conversation_subjects(account: str, conversation: str) -> str:
    """Return the subject that matches all events of a conversation.

    The shard and the account are in it, so that one filter can copy or purge all events of either.
    """
    return f"{_subject_prefix(account, conversation)}*"


def lasting_subject(account: str, conversation: str) -> str:
    """Return the subject of a conversation's lasting events."""
    return f"{_subject_prefix(account, conversation)}e"


def transient_subject(account: str, conversation: str) -> str:
    """Return the subject of a conversation's deltas, separate so that they never evict lasting events."""
    return f"{_subject_prefix(account, conversation)}d"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """The size, age and replicas of the streams. `max_bytes` is the file space of all streams, in bytes.

    `event_log_bytes` is the file space of the events; None: seven tenths of `max_bytes`. `replicas` None:
    three on a cluster, one on a single server; existing streams keep their number.
    """

    replicas: int | None = None
    max_bytes: int = 4 * _GIB
    event_log_bytes: int | None = None
    retention_days: float = 7
    max_events_per_conversation: int = 50_000

    @property
    def event_log_limit(self) -> int:
        """The largest size of the events, in bytes."""
        return self.event_log_bytes or self.max_bytes * 7 // 10

    @property
    def capacity(self) -> int:
        """The largest size of all streams' files on one server, in bytes."""
        return sum(int(one["max_bytes"]) for one in self.streams().values())

    def streams(self) -> dict[str, dict[str, Any]]:
        """Return the settings of every stream, by its name."""
        return {
            EVENTS: self._stream(
                subjects=[ALL_LASTING, "ev.*.*.*.d", "lease.*.*"],
                max_age=int(self.retention_days * _DAY),
                max_msgs_per_subject=self.max_events_per_conversation,
                max_bytes=self.event_log_limit,
                max_msg_size=256 * 1024,
                allow_msg_ttl=True,
                allow_rollup_hdrs=True,
                deny_delete=True,  # deleting the tail would delete the ids of the duplicate window
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
            "max_msgs": -1,
            "num_replicas": self.replicas or CLUSTER_REPLICAS,
            "allow_direct": True,
        }
        # NATS refuses a window that is longer than the age of the oldest message.
        return defaults | settings | {"duplicate_window": min(120 * _SECOND, settings["max_age"])}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogUsage:
    """How full the event log is (0 to 1), and for how many days its size suffices at the present rate.

    `days` is None while less than an hour of events is stored, unless they fill the log already.
    """

    fill: float = 0.0
    days: float | None = None

    @classmethod
    def parse(cls, response: Mapping[str, Any]) -> LogUsage:
        """Parse a response of the stream API."""
        state, most = response["state"], response["config"]["max_bytes"]
        if most <= 0 or not state["messages"]:
            return cls()
        fill, seconds = state["bytes"] / most, _seconds_stored(state, response.get("ts"))
        is_known = fill >= FILL_WARNING or (seconds >= _HOUR_SECONDS and fill > 0)
        return cls(fill=fill, days=seconds / fill / _DAY_SECONDS if is_known else None)


def _seconds_stored(state: Mapping[str, Any], now: str | None) -> float:
    """Return the age of the oldest stored message."""
    first = datetime.fromisoformat(state["first_ts"])
    return (datetime.fromisoformat(now or state["last_ts"]) - first).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIdentity:
    """An incarnation of a stream: its creation time, its last seq, and how much of its space is used.

    `changed` has the settings that are not as a gateway wrote them. `is_incomplete`: such a setting deleted
    events, which are to be published again.
    """

    created: str
    last_seq: int
    usage: LogUsage = LogUsage()
    changed: Mapping[str, Any] = field(default_factory=dict)
    is_incomplete: bool = False

    @classmethod
    def parse(cls, response: Mapping[str, Any]) -> StreamIdentity:
        """Parse a response of the stream API."""
        config = response["config"]
        return cls(
            created=response["created"],
            last_seq=response["state"]["last_seq"],
            usage=LogUsage.parse(response),
            changed=changed_settings(config),
            is_incomplete=is_incomplete(config),
        )


async def ensure_streams(
    nats: NatsConnection, config: StreamConfig, *, timeout: float = 10.0
) -> StreamIdentity:
    """Create the missing streams, update those whose settings differ, and return the identity of EVENTS.

    Waits up to `timeout` seconds for a server that is still starting. Idempotent. Raises BrokerRefused,
    BrokerUnreachable.
    """

    async def ensure() -> dict[str, dict[str, Any]]:
        return {
            name: await _ensure_one(nats, name, want, any_replicas=config.replicas is None)
            for name, want in config.streams().items()
        }

    return StreamIdentity.parse((await _when_started(ensure, timeout))[EVENTS])


async def create_events(nats: NatsConnection, config: StreamConfig, *, timeout: float = 10.0) -> None:
    """Create EVENTS, which has the leases too, if there is none; one that exists is not changed.

    Waits and raises as `ensure_streams` does.
    """
    want = {"name": EVENTS} | config.streams()[EVENTS]

    async def create() -> None:
        if await _exists(nats, EVENTS):
            return
        try:
            await _create_new(nats, EVENTS, want, any_replicas=config.replicas is None)
        except BrokerRefused:
            if not await _exists(nats, EVENTS):  # else created by a gateway with other settings
                raise

    await _when_started(create, timeout)


async def _when_started(work: Callable[[], Awaitable[Result]], timeout: float) -> Result:
    """Repeat work for up to `timeout` seconds while the server is unreachable."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        try:
            return await work()
        except BrokerUnreachable:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.1)


async def _exists(nats: NatsConnection, name: str) -> bool:
    info = await nats.api_request(f"STREAM.INFO.{name}")
    if "error" not in info:
        return True
    if info["error"].get("err_code") != _NOT_FOUND:
        raise refusal(name, info)
    return False


async def get_identity(nats: NatsConnection) -> StreamIdentity:
    """Return the current identity of EVENTS; raises BrokerRefused when the stream does not exist."""
    response = await nats.api_request(f"STREAM.INFO.{EVENTS}")
    if "error" in response:
        raise refusal(EVENTS, response)
    return StreamIdentity.parse(response)


async def changed_streams(nats: NatsConnection) -> list[str]:
    """Return which of the streams other than EVENTS somebody has changed. Raises BrokerUnreachable."""
    infos = {name: await nats.api_request(f"STREAM.INFO.{name}") for name in (WORK, ADVISORIES)}
    return [name for name, info in infos.items() if changed_settings(info.get("config", {}))]


async def delete_stream(nats: NatsConnection, name: str) -> None:
    """Delete a stream; one that does not exist is no error. Raises BrokerRefused, BrokerUnreachable."""
    response = await nats.api_request(f"STREAM.DELETE.{name}")
    if "error" in response and response["error"].get("err_code") != _NOT_FOUND:
        raise refusal(name, response)


async def try_storage(nats: NatsConnection, config: StreamConfig) -> None:
    """Create a stream as large as all streams together, store a message in it, and delete it.

    It shows what the settings of an account do not: the limit of the server, and whether its disk takes
    anything. Raises BrokerRefused, BrokerFull, BrokerUnreachable.
    """
    want = {"name": PROBE, "subjects": [_PROBE_SUBJECT], "storage": "file", "max_bytes": config.capacity}
    want["num_replicas"] = config.replicas or CLUSTER_REPLICAS
    try:
        await _create(nats, PROBE, want, any_replicas=config.replicas is None)
        await nats.publish(_PROBE_SUBJECT, b"", tries=1)
    finally:
        await delete_stream(nats, PROBE)


async def _ensure_one(
    nats: NatsConnection, name: str, settings: dict[str, Any], *, any_replicas: bool
) -> dict[str, Any]:
    want = {"name": name} | settings
    info = await nats.api_request(f"STREAM.INFO.{name}")
    if "error" not in info:
        have = info["config"]
        if any_replicas:
            want["num_replicas"] = have["num_replicas"]
        want["metadata"] = (have.get("metadata") or {}) | marks(want)
        if name == EVENTS and deletes_more(have, want):
            want["metadata"][INCOMPLETE] = "true"
        if _is_current(have, want):
            return info
        return await _update(nats, name, have, want)
    if info["error"].get("err_code") != _NOT_FOUND:
        raise refusal(name, info)
    return await _create_new(nats, name, want, any_replicas=any_replicas)


async def _create_new(
    nats: NatsConnection, name: str, want: dict[str, Any], *, any_replicas: bool
) -> dict[str, Any]:
    await delete_stream(nats, PROBE)
    want = want | {"metadata": marks(want)}
    created = await _create(nats, name, want, any_replicas=any_replicas)
    _log.info("stream.created", stream=name, replicas=created["config"]["num_replicas"])
    return created


async def _create(
    nats: NatsConnection, name: str, want: dict[str, Any], *, any_replicas: bool
) -> dict[str, Any]:
    created = await nats.api_request(f"STREAM.CREATE.{name}", want)
    code = created.get("error", {}).get("err_code")
    # A single server counts the space of all replicas before it refuses more than one.
    is_single = code == _NOT_CLUSTERED or (code == _INSUFFICIENT_STORAGE and not nats.is_clustered)
    if any_replicas and is_single:
        created = await nats.api_request(f"STREAM.CREATE.{name}", want | {"num_replicas": 1})
    if "error" in created:
        raise refusal(name, created, most=want["max_bytes"])
    return created


async def _update(
    nats: NatsConnection, name: str, have: dict[str, Any], want: dict[str, Any]
) -> dict[str, Any]:
    updated = await nats.api_request(f"STREAM.UPDATE.{name}", have | want)
    if "error" in updated:
        raise refusal(name, updated, most=want["max_bytes"])
    if changed := changed_settings(have):
        _log.warning("stream.settings_restored", stream=name, changed=changed, remedy=LEAVE_SETTINGS)
    else:
        _log.info("stream.changed", stream=name)
    return updated


def _is_current(have: dict[str, Any], want: dict[str, Any]) -> bool:
    return all(have.get(key) == value for key, value in want.items())


def refusal(name: str, response: dict[str, Any], *, most: int = 0) -> BrokerRefused | BrokerUnreachable:
    """Return the error for a response of the API about a stream; `most`: the space it may need, in bytes."""
    error = response["error"]
    detail = f"stream {name}: {error.get('description')} ({error.get('err_code')})"
    if error.get("err_code") == _INSUFFICIENT_STORAGE:
        detail += f"; it may need up to {most / _GIB:.1f} GiB: raise max_file_store in the server's jetstream"
        detail += " block, or the account's storage limit, or lower event_log_bytes"
    if error.get("err_code") == _STORE_FAILED:
        detail += "; see the server's log, and whether the disk of its store_dir is full or read-only"
    unavailable = error.get("code") == 503  # noqa: PLR2004 - temporarily unavailable
    return BrokerUnreachable(detail) if unavailable else BrokerRefused(detail)

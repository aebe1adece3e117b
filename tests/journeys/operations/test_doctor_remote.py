"""The doctor checks NATS, the database and the platforms, and reports what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from channels.telegram.simulator import simulate
from databases import database_url, postgres
from delivery.broker.connection import connect
from delivery.broker.stream_config import EVENTS, PROBE, StreamConfig, ensure_streams
from gateway.cli.doctor.check import CheckState, DoctorCheck
from gateway.cli.doctor.remote_checks import (
    check_bucket,
    check_channels,
    check_clocks,
    check_jetstream,
    check_stream_capacity,
)
from gateway.config.load import load
from gateway.config.settings import Settings
from nats_servers import TOKEN, nats_server
from s3_servers import open_empty_store, s3_server

__all__ = ["database_url", "postgres"]

GIB = 1024**3


def loaded(directory: Path, **env: str) -> Settings:
    """Load settings from these variables alone."""
    return load(env=env, directory=directory)


async def found(check: Callable[[Settings], Iterator[DoctorCheck]], settings: Settings) -> list[DoctorCheck]:
    """Run a check, which has an event loop of its own."""
    return await asyncio.to_thread(lambda: list(check(settings)))


async def test_nats_is_asked_for_room_and_time(tmp_path: Path) -> None:
    """A real server has JetStream and our time, and the event log's usage is reported once it exists."""
    async with nats_server(tmp_path) as server:
        url = f"nats://{TOKEN}@127.0.0.1:{server.port}"
        settings = loaded(tmp_path, DOVECOTE_NATS_URL=url, DOVECOTE_EVENT_LOG_BYTES="67108864")
        (room,) = await found(check_jetstream, settings)
        assert room.state is CheckState.OK, room
        async with connect(server.url, token=TOKEN) as nats_connection:
            await ensure_streams(nats_connection, StreamConfig(max_bytes=64 * 1024**2))
            assert "error" not in await nats_connection.api_request(f"STREAM.INFO.{EVENTS}")
        room, clock = await found(check_jetstream, settings)
        assert clock.state is CheckState.OK, clock
        assert room.detail == "the event log uses 0% of its space"
    (gone,) = await found(check_jetstream, settings)
    assert gone.state is CheckState.FAILED


async def test_a_server_that_takes_no_streams_is_found_before_the_first_start(tmp_path: Path) -> None:
    """Its limit is less than the streams can use, which the account does not show; nothing is left there."""
    async with nats_server(tmp_path) as server:
        url = f"nats://{TOKEN}@127.0.0.1:{server.port}"
        (refused,) = await found(check_jetstream, loaded(tmp_path, DOVECOTE_NATS_URL=url))
        assert (refused.state, "max_file_store" in refused.detail) == (CheckState.FAILED, True)
        async with connect(server.url, token=TOKEN) as nats_connection:
            assert (await nats_connection.api_request("STREAM.NAMES"))["streams"] is None


async def test_the_space_that_a_killed_doctor_reserved_is_free_again(tmp_path: Path) -> None:
    """Its stream leaves no space for another one; the next doctor deletes it, and so does the first start."""
    left = {"name": PROBE, "subjects": ["dovecote.probe"], "storage": "file", "max_bytes": 1_900_000_000}
    async with nats_server(tmp_path) as server, connect(server.url, token=TOKEN) as nats_connection:
        url = f"nats://{TOKEN}@127.0.0.1:{server.port}"
        settings = loaded(tmp_path, DOVECOTE_NATS_URL=url, DOVECOTE_EVENT_LOG_BYTES="67108864")
        assert "error" not in await nats_connection.api_request(f"STREAM.CREATE.{PROBE}", left)
        (room,) = await found(check_jetstream, settings)
        assert room.state is CheckState.OK, room
        assert "error" not in await nats_connection.api_request(f"STREAM.CREATE.{PROBE}", left)
        await ensure_streams(nats_connection, StreamConfig(event_log_bytes=64 * 1024**2))
        assert PROBE not in (await nats_connection.api_request("STREAM.NAMES"))["streams"]


async def test_events_may_be_kept_for_less_than_two_minutes(tmp_path: Path) -> None:
    """NATS refuses a stream whose window of duplicates is longer than the age of its messages."""
    second = StreamConfig(max_bytes=64 * 1024**2, retention_days=1 / 86_400)
    async with nats_server(tmp_path) as server, connect(server.url, token=TOKEN) as nats_connection:
        await ensure_streams(nats_connection, second)
        made = await nats_connection.api_request(f"STREAM.INFO.{EVENTS}")
        assert made["config"]["max_age"] == made["config"]["duplicate_window"] == 10**9


def account(storage: int, most: int) -> dict[str, Any]:
    """Return NATS's answer about an account."""
    return {"storage": storage, "reserved_storage": storage, "limits": {"max_storage": most}}


def test_room_is_judged_before_it_is_missed() -> None:
    """No JetStream and too little room fail with a remedy; a log that is nearly full is a warning."""
    missing = missing_stream()
    wanted = StreamConfig()
    assert check_stream_capacity(account(0, -1), missing, wanted).state is CheckState.OK
    assert check_stream_capacity(account(GIB, 8 * GIB), missing, wanted).state is CheckState.OK
    short = check_stream_capacity(account(7 * GIB, 8 * GIB), missing, wanted)
    assert short.state is CheckState.FAILED
    assert "max_file_store" in short.remedy
    off = {"error": {"err_code": 10039, "description": "JetStream not enabled for account"}}
    assert check_stream_capacity(off, off, wanted).detail == "JetStream not enabled for account"
    full = stream_info(size=90)
    assert check_stream_capacity(account(0, -1), full, wanted).state is CheckState.WARNING


def test_a_log_that_is_too_small_for_the_age_of_events_is_a_warning() -> None:
    """Ten percent of the log in a day last ten days: enough for seven days of events, and not for twelve."""
    info = stream_info(size=10)
    enough = check_stream_capacity(account(0, -1), info, StreamConfig(retention_days=7))
    assert (enough.state, "10.0 days" in enough.detail) == (CheckState.OK, True)
    short = check_stream_capacity(account(0, -1), info, StreamConfig(retention_days=12))
    assert (short.state, "event_log_bytes" in short.remedy) == (CheckState.WARNING, True)
    larger = StreamConfig(event_log_bytes=50 * GIB)
    assert check_stream_capacity(account(GIB, 8 * GIB), missing_stream(), larger).state is CheckState.FAILED


def test_limits_that_no_gateway_set_are_a_warning() -> None:
    """The setting is named with its value; a gateway writes what it sets into the stream's metadata."""
    info = stream_info(size=10)
    written = {"metadata": {"dovecote.max_msgs": "-1", "dovecote.max_bytes": "100"}}
    changed = info | {"config": info["config"] | written | {"max_msgs": 5}}
    found = check_stream_capacity(account(0, -1), changed, StreamConfig(retention_days=7))
    assert (found.state, "max_msgs = 5" in found.detail) == (CheckState.WARNING, True)
    same = info | {"config": info["config"] | written | {"max_msgs": -1}}
    assert check_stream_capacity(account(0, -1), same, StreamConfig()).state is CheckState.OK


def missing_stream() -> dict[str, Any]:
    """Return NATS's answer about a stream that does not exist."""
    return {"error": {"err_code": 10059, "description": "stream not found"}}


def stream_info(*, size: int) -> dict[str, Any]:
    """Return NATS's answer about a stream of 100 bytes at most whose first message is a day old."""
    return {
        "created": "2026-01-01T00:00:00Z",
        "ts": "2026-01-02T00:00:00.123456789Z",
        "state": {"bytes": size, "last_seq": 3, "messages": 3, "first_ts": "2026-01-01T00:00:00.123456789Z"},
        "config": {"max_bytes": 100},
    }


async def test_the_clock_of_the_database_is_compared(tmp_path: Path, database_url: str) -> None:
    """SQLite and PostgreSQL report their time, which is ours."""
    settings = loaded(tmp_path, DOVECOTE_DATABASE_URL=database_url)
    (clock,) = await found(check_clocks, settings)
    assert clock.state is CheckState.OK, clock


async def test_the_bucket_of_workspaces_is_tried(tmp_path: Path) -> None:
    """The check writes to it and deletes again; a missing one is named."""
    assert await found(check_bucket, loaded(tmp_path)) == []
    with s3_server() as endpoint:
        async with open_empty_store(endpoint) as (bucket, store):
            named = {"BUCKET": bucket.bucket, "ENDPOINT": endpoint, "ACCESS_KEY": "k", "SECRET_KEY": "s"}
            env = {f"DOVECOTE_WORKSPACES__S3__{name}": value for name, value in named.items()}
            env["DOVECOTE_WORKSPACES__STORE"] = "s3"
            (well,) = await found(check_bucket, loaded(tmp_path, **env))
            assert well.state == CheckState.OK, well
            assert not (await store.client.list_objects_v2(Bucket=bucket.bucket)).get("Contents")
            env["DOVECOTE_WORKSPACES__S3__BUCKET"] = "nowhere-at-all"
            (failed,) = await found(check_bucket, loaded(tmp_path, **env))
    assert failed.state == CheckState.FAILED
    assert "nowhere-at-all" in failed.detail


async def test_two_channels_of_the_file_with_one_bot_are_reported(tmp_path: Path) -> None:
    """Only one of them would receive, which each channel's own checks do not say."""
    async with simulate() as platform:
        for second, is_reported in ((platform.token, True), ("2:another", False)):
            tables = []
            for name, token in (("first", platform.token), ("second", second)):
                settings = {"kind": "telegram", **platform.settings(token=token)}
                lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
                tables += [f"[channels.{name}]", *lines]
            (tmp_path / "dovecote.toml").write_text("\n".join(tables))
            checks = await found(check_channels, loaded(tmp_path))
            reported = [one.state for one in checks if "channels first, second" in one.detail]
            assert reported == ([CheckState.FAILED] if is_reported else []), checks


async def test_platforms_are_asked_about_the_bot(tmp_path: Path) -> None:
    """Every configured channel is probed: a right token is well, a wrong one fails, so does one unknown."""
    async with simulate() as platform:
        table = platform.settings()
        for token, state in ((table["token"], CheckState.OK), ("1:wrong", CheckState.FAILED)):
            given = {**table, "token": token, "kind": "telegram", "agent": "default"}
            lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
            (tmp_path / "dovecote.toml").write_text("\n".join(["[channels.telegram]", *lines]))
            checks = await found(check_channels, loaded(tmp_path))
            assert state in {check.state for check in checks}, checks
            assert (CheckState.FAILED in {check.state for check in checks}) is (state is CheckState.FAILED), (
                checks
            )

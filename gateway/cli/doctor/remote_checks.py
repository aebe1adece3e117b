"""The remote checks of `dovecote doctor`: database, NATS, bucket and chat platforms."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gateway.cli.doctor.check import MAX_CLOCK_SKEW, CheckState, DoctorCheck, failed, passed

if TYPE_CHECKING:
    from delivery.broker.connection import NatsConnection
    from delivery.broker.stream_config import StreamConfig
    from gateway.config.settings import Settings

CHECK_TIMEOUT = 10.0
"""The time limit of one remote check in seconds."""

PROBE_SUBJECT = "lease.probe.doctor"
"""A subject of the event stream that holds the doctor's message for a second."""

UNLIMITED = -1
MIB = 1024**2


def check_clocks(settings: Settings) -> Iterator[DoctorCheck]:
    """Check the database's clock."""
    if settings.database_url is None:
        return
    from sqlalchemy.exc import DBAPIError

    from delivery.database.engine import DatabaseUnavailable
    from gateway.infra.preflight import sqlite_file_problem

    if sqlite_file_problem(settings.database):
        return  # another check reports it
    try:
        off = asyncio.run(_with_timeout(_database_clock_offset(settings.database)))
    except (DBAPIError, DatabaseUnavailable, OSError):
        return  # another check reports that it does not answer
    yield _check_skew("clock of the database", off)


async def _database_clock_offset(url: str) -> float:
    from delivery.database.engine import Database
    from gateway.store.turns import queue_depths

    database = Database(url)
    try:
        async with database.read() as connection:
            database_time = await queue_depths.database_time(connection)
            return database_time.timestamp() - time.time()
    finally:
        await database.close()


def _check_skew(subject: str, ahead: float) -> DoctorCheck:
    detail = f"{ahead:+.1f} s from ours"
    remedy = "synchronise both machines with the same time server"
    return passed(subject, detail) if abs(ahead) < MAX_CLOCK_SKEW else failed(subject, detail, remedy)


def check_jetstream(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that NATS has JetStream, space for the streams, and our time."""
    if settings.nats_url is None:
        return
    from delivery.errors import DeliveryError
    from gateway.infra.preflight import wanted_streams

    url, wanted = settings.nats_url.get_secret_value(), wanted_streams(settings)
    try:
        account, events, copies, unstored = asyncio.run(_with_timeout(_jetstream_info(url, wanted)))
    except (DeliveryError, OSError) as error:
        detail, remedy = str(error) or "no answer", "start it, or correct nats_url and its user"
        yield failed("jetstream", detail, remedy)
        return
    if unstored:
        yield failed("jetstream", unstored, "see the log of that server, and its free space and limits")
    if not unstored or "error" not in events:
        yield check_stream_capacity(account, events, wanted, copies=copies)
    if "ts" in events:  # reported for a stream only
        nats_time = datetime.fromisoformat(str(events["ts"]))
        yield _check_skew("clock of NATS", nats_time.timestamp() - time.time())


async def _with_timeout(operation: Any) -> Any:
    async with asyncio.timeout(CHECK_TIMEOUT):
        return await operation


async def _jetstream_info(url: str, wanted: StreamConfig) -> tuple[dict[str, Any], dict[str, Any], int, str]:
    """Return NATS's information about the account and the event stream, and the replicas of a new stream.

    The last value is why the event stream, or one that is created for this, stores no message, or "".
    """
    from delivery.broker.connection import connect
    from delivery.broker.stream_config import CLUSTER_REPLICAS, EVENTS, PROBE

    async with connect(url, name="dovecote doctor") as link:
        await link.api_request(f"STREAM.DELETE.{PROBE}")  # one that a killed doctor left
        copies = CLUSTER_REPLICAS if link.is_clustered else 1
        account, events = await link.api_request("INFO"), await link.api_request(f"STREAM.INFO.{EVENTS}")
        unstored = "" if "error" in account else await _storage_problem(link, events, wanted)
        return account, events, copies, unstored


async def _storage_problem(link: NatsConnection, events: Mapping[str, Any], wanted: StreamConfig) -> str:
    """Store a message that expires in a second, or in a stream of its own; return why it fails, or ""."""
    from delivery.broker.stream_config import try_storage
    from delivery.errors import DeliveryError

    try:
        if "error" in events:
            await try_storage(link, wanted)
        else:
            await link.publish(PROBE_SUBJECT, b"", {"Nats-TTL": "1s", "Nats-Rollup": "sub"}, tries=1)
    except DeliveryError as error:
        return str(error)
    return ""


def check_stream_capacity(
    account: Mapping[str, Any], events: Mapping[str, Any], wanted: StreamConfig, *, copies: int = 1
) -> DoctorCheck:
    """Check that the streams have space left for the events of their age, or can be created.

    An account's storage limit counts each of the `copies` of a stream.
    """
    subject, remedy = "jetstream", "enable JetStream there, and for this account"
    if "error" in account:
        return failed(subject, str(account["error"].get("description")), remedy)
    if "error" not in events:
        return _check_event_log(events, wanted)
    most = account["limits"]["max_storage"]
    if most == UNLIMITED:
        return passed(subject, "no storage limit; the streams are created at the first start")
    left = most - max(account.get("storage", 0), account.get("reserved_storage", 0))
    needed = wanted.capacity * copies
    detail = f"{left // MIB} MiB left of {most // MIB}, the streams can use {needed // MIB}"
    if left >= needed:
        return passed(subject, detail)
    return failed(subject, detail, "raise the account's max_file_store, or the server's")


def _check_event_log(events: Mapping[str, Any], wanted: StreamConfig) -> DoctorCheck:
    from delivery.broker.stream_config import FILL_WARNING, LogUsage
    from delivery.broker.stream_settings import LEAVE_SETTINGS, changed_settings

    subject = "jetstream"
    if changed := changed_settings(events["config"]):
        shown = ", ".join(f"{name} = {value}" for name, value in changed.items())
        detail = f"the event log has {shown}, which no gateway set: it can delete or refuse events"
        return DoctorCheck(subject, CheckState.WARNING, detail, f"start the gateway; {LEAVE_SETTINGS}")
    usage = LogUsage.parse(events)
    detail = f"the event log uses {usage.fill:.0%} of its space"
    if usage.days is not None:
        detail += f", which suffices for {usage.days:.1f} days"
    if usage.fill < FILL_WARNING and (usage.days is None or usage.days >= wanted.retention_days):
        return passed(subject, detail)
    remedy = "reduce event_max_age, or raise event_log_bytes"
    return DoctorCheck(subject, CheckState.WARNING, detail, remedy)


def check_bucket(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that the workspaces' bucket can be listed, written and deleted from."""
    if settings.workspaces.store != "s3":
        return
    from sandbox.errors import SandboxError

    named = f"bucket {settings.workspaces.s3.bucket!r}"
    try:
        asyncio.run(_with_timeout(_check_bucket_access(settings)))
    except (SandboxError, TimeoutError) as error:
        yield failed(
            "workspaces",
            f"{named}: {str(error) or 'no answer'}",
            "correct workspaces.s3 or the permissions of its keys",
        )
    else:
        yield passed("workspaces", f"{named} can be read and written")


async def _check_bucket_access(settings: Settings) -> None:
    from sandbox.s3 import Bucket, open_client
    from sandbox.workspaces.s3.store import S3WorkspaceStore

    bucket = Bucket(**settings.workspaces.s3.with_secrets())
    async with open_client(bucket, "workspaces") as client:
        await S3WorkspaceStore(client, bucket).check_access()


MODEL_TIMEOUT = 30.0
"""The time limit of a model's answer in seconds."""


def check_model_answers(settings: Settings) -> Iterator[DoctorCheck]:
    """Ask the default agent's first model one question; models of installed packages are not asked."""
    from gateway.agents.clients.errors import ModelCallError
    from gateway.agents.model.vendors import UnusableModel
    from gateway.config.setting_types import ENTRY_PREFIX, SHELL

    model = settings.agent.model
    if model == SHELL or model.startswith(ENTRY_PREFIX):
        return
    try:
        asyncio.run(_ask_model(settings))
    except (ModelCallError, UnusableModel) as error:
        yield failed(f"model {model}", str(error), "correct the model, its key or base_url")
    except TimeoutError:
        detail = f"no answer in {MODEL_TIMEOUT:g} seconds"
        yield failed(f"model {model}", detail, "correct base_url, or try again")
    else:
        yield passed(f"model {model}", "answers")


async def _ask_model(settings: Settings) -> None:
    from gateway.agents.clients.messages import request, user_prompt
    from gateway.agents.clients.port import ModelQuery
    from gateway.agents.model.models import ModelClients
    from gateway.agents.port import AgentSpec
    from gateway.agents.registry import model_vendors

    clients = ModelClients(model_vendors(settings.vendors, settings.agent))
    agent = settings.agent
    spec = AgentSpec(id="", name="", models=(agent.model,), base_url=agent.base_url)
    try:
        async with asyncio.timeout(MODEL_TIMEOUT):
            query = ModelQuery(messages=[request([user_prompt("Answer with the word: ready")])])
            async with aclosing(clients.build(spec, 0, retries=0).ask(query)) as answer:
                async for _piece in answer:
                    return
    finally:
        await clients.aclose()


def check_channels(settings: Settings) -> Iterator[DoctorCheck]:
    """Check each configured bot's token and permissions with its platform, and that no two are one bot."""
    for name, table in settings.channels.items():
        yield from asyncio.run(_probe(name, table))
    yield from _check_shared_bots(settings)


def _check_shared_bots(settings: Settings) -> Iterator[DoctorCheck]:
    """Check that each configured bot has one channel; tables that cannot be read have a check already."""
    from pydantic import ValidationError

    from channels.registry import BrokenChannelPlugin, UnknownChannelKind, plugin
    from gateway.config.validation import adapter_settings
    from gateway.ingress.open_channels import SHARED_BOT_REMEDY

    names: dict[tuple[str, str], list[str]] = {}
    for name, table in settings.channels.items():
        with suppress(ValidationError, UnknownChannelKind, BrokenChannelPlugin):
            adapter = plugin(str(table.get("kind", name)))
            bot = adapter.account(adapter.settings.model_validate(adapter_settings(table)))
            names.setdefault((adapter.name, bot), []).append(name)
    for shared in names.values():
        if len(shared) > 1:
            detail = f"only one of the channels {', '.join(shared)} receives: they have the same bot or page"
            yield failed("channels", detail, SHARED_BOT_REMEDY)


async def _probe(name: str, table: Mapping[str, Any]) -> list[DoctorCheck]:
    from pydantic import ValidationError

    from channels.errors import ChannelError
    from channels.registry import BrokenChannelPlugin, UnknownChannelKind, plugin
    from egress.guard import TRUSTED
    from gateway.config.validation import adapter_settings

    page = f"docs/guide/channels/{table.get('kind', name)}.md"
    try:
        adapter = plugin(str(table.get("kind", name)))
        async with asyncio.timeout(CHECK_TIMEOUT):
            findings = await adapter.probe(adapter.settings.model_validate(adapter_settings(table)), TRUSTED)
    except (ChannelError, UnknownChannelKind, BrokenChannelPlugin) as error:
        return [failed(f"channel {name}", str(error), page)]
    except ValidationError as error:
        return [failed(f"channel {name}", f"{error.error_count()} settings are invalid", page)]
    except TimeoutError:
        return [failed(f"channel {name}", "the platform does not answer", page)]
    return [
        passed(f"channel {name}: {one.subject}", one.detail)
        if one.ok
        else failed(f"channel {name}: {one.subject}", one.detail, one.remedy)
        for one in findings
    ]

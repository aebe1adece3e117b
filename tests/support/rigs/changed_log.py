"""An event log with three events of one conversation, which tests change, damage and look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from delivery.broker import epochs, jetstream_events
from delivery.broker.connection import NatsConnection, connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.stream_config import EVENTS, StreamConfig, conversation_subjects
from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.event import Event, EventType
from delivery.events.port import StoredEvent
from nats_servers import nats_server

CONVERSATION = conversation_subjects("acc", "cnv_a")
LAYOUT = StreamConfig(max_bytes=500_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A server with the streams, and the events of the conversation `cnv_a` on it and in SQL."""

    nats: NatsConnection
    database: Database
    events: JetStreamEvents

    async def settings(self, stream: str) -> dict[str, Any]:
        """Return the present settings of a stream."""
        config: dict[str, Any] = (await self.nats.api_request(f"STREAM.INFO.{stream}"))["config"]
        return config

    async def change(self, stream: str, **settings: Any) -> None:
        """Change settings as `nats stream edit` does."""
        changed = await self.nats.api_request(
            f"STREAM.UPDATE.{stream}", await self.settings(stream) | settings
        )
        assert "error" not in changed, changed

    async def check(self, config: StreamConfig = LAYOUT) -> None:
        """Look at the streams as a running gateway does every few seconds."""
        await epochs.check_once(self.database, self.nats, config, self.events)

    async def read(self) -> Sequence[StoredEvent]:
        """Return the stored events."""
        return await self.events.read("cnv_a", account="acc", after=0, limit=9, transient=False)

    async def purge(self, subject: str = CONVERSATION, *, before: int = 0) -> None:
        """Delete the messages of a subject, all or those before a position."""
        request = {"filter": subject} | ({"seq": before} if before else {})
        purged = await self.nats.api_request(f"STREAM.PURGE.{EVENTS}", request)
        assert "error" not in purged, purged

    async def expect_unchanged(self) -> None:
        """Look at the streams, which begins no epoch and lets no relay publish."""
        before = self.events.epoch, await self.unpublished()
        await self.check()
        assert (self.events.epoch, await self.unpublished()) == before

    async def unpublished(self) -> list[tuple[str, int]]:
        """Return the conversations that the relays are to publish again, with their first number."""
        async with self.database.read() as connection:
            return [(one.conversation, one.published_n) for one in await outbox.list_backlogs(connection)]

    async def publish_again(self) -> None:
        """Publish the events as a relay does."""
        async with self.database.read() as connection:
            events, seq = await outbox.list_unpublished(connection, "cnv_a", after=0), 0
        for event in events:
            seq = await self.events.append(event, expected=seq, account="acc")


@asynccontextmanager
async def log_with_events(database: Database, directory: Path) -> AsyncIterator[Log]:
    """Open a log with three published events."""
    async with (
        nats_server(directory) as server,
        connect(server.url, token=server.token) as nats,
    ):
        epoch = await epochs.open_streams(database, nats, LAYOUT)
        async with jetstream_events.open_events(
            nats, epoch=epoch, has_expired=partial(epochs.has_expired, database, nats)
        ) as events:
            async with database.begin() as connection:
                await outbox.create_stream(connection, conversation="cnv_a", account="acc", agent="agt")
                made = [Event.now(EventType.JOB_STARTED, "cnv_a", {}) for _ in range(3)]
                recorded = (await outbox.record(connection, {"cnv_a": made}))["cnv_a"].events
            seq = 0
            for event in recorded:
                seq = await events.append(event, expected=seq, account="acc")
            async with database.begin() as connection:
                await outbox.mark_published(connection, [("cnv_a", 3, seq)])
            yield Log(nats=nats, database=database, events=events)

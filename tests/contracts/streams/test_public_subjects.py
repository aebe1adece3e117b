"""NATS users that read the events of one account, on a real server: what they may, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from delivery.broker.connection import NatsConnection, connect
from delivery.broker.memory_events import MemoryEvents
from delivery.database.engine import Database
from delivery.events import outbox
from delivery.events.event import Event, EventType, new_id
from delivery.events.public_subjects import account_subjects, announce_with, public_subject
from delivery.events.relay import Relay
from gateway.infra.nats_users import NatsUser, make_nats_user
from nats_servers import NatsServer

GATEWAY = "a-password-of-the-gateway"


class Reader:
    """A NATS client of our own, which speaks the protocol's text and signs with a seed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def sign_in(self, user: NatsUser) -> None:
        """Answer the server's challenge."""
        info = json.loads((await self._reader.readline()).removeprefix(b"INFO "))
        seed = base64.b32decode(user.seed + "=" * (-len(user.seed) % 8))[2:34]
        signature = Ed25519PrivateKey.from_private_bytes(seed).sign(info["nonce"].encode())
        text = base64.urlsafe_b64encode(signature).decode().rstrip("=")
        options = {"nkey": user.public_key, "sig": text, "verbose": False, "headers": True, "lang": "test"}
        assert await self.ask(f"CONNECT {json.dumps(options)}") == "PONG"

    async def ask(self, *lines: str) -> str:
        """Send protocol lines and a ping; return the server's first answer."""
        self._writer.write("".join(f"{line}\r\n" for line in (*lines, "PING")).encode())
        async with asyncio.timeout(60):
            first = (await self._reader.readline()).decode().strip()
            if first != "PONG":
                assert (await self._reader.readline()).strip() == b"PONG"
        return first

    async def next_message(self) -> tuple[str, dict[str, Any]]:
        """Return the subject and the body of the next message."""
        async with asyncio.timeout(60):
            words = (await self._reader.readline()).decode().split()
            assert words[0] == "HMSG", words
            payload = (await self._reader.readexactly(int(words[-1]) + 2))[int(words[-2]) : -2]
        return words[1], json.loads(payload)


@asynccontextmanager
async def reader_of(server: NatsServer, user: NatsUser) -> AsyncIterator[Reader]:
    """Connect as a user until the block ends."""
    stream, writer = await asyncio.open_connection("127.0.0.1", server.port)
    reader = Reader(stream, writer)
    await reader.sign_in(user)
    yield reader
    writer.close()


@pytest.fixture
def users() -> dict[str, NatsUser]:
    """Return a user for each of two accounts."""
    return {account: make_nats_user(account) for account in ("acc_doves", "acc_hawks")}


@pytest.fixture
async def server(tmp_path: Path, users: dict[str, NatsUser]) -> AsyncIterator[NatsServer]:
    """Run a server whose file has the gateway and the entries of the command."""
    entries = "\n".join(user.server_entry() for user in users.values())
    authorization = f"{{ users: [\n{{ user: gateway, password: {GATEWAY} }}\n{entries}\n] }}"
    running = NatsServer(tmp_path / "nats", authorization=authorization)
    await running.start()
    yield running
    await running.kill()


@pytest.fixture
async def nats(server: NatsServer) -> AsyncIterator[NatsConnection]:
    """Return the gateway's connection."""
    async with connect(f"nats://gateway:{GATEWAY}@127.0.0.1:{server.port}") as connection:
        yield connection


async def test_an_account_reads_its_own_events_and_no_others(
    database: Database, server: NatsServer, nats: NatsConnection, users: dict[str, NatsUser]
) -> None:
    """The events that the relay appends arrive by type; other subjects and every publish are refused."""
    async with reader_of(server, users["acc_doves"]) as reader:
        assert await reader.ask("SUB dovecote.acc_doves.*.message.> 1") == "PONG"
        for forbidden in ("dovecote.acc_hawks.>", "dovecote.>", "ev.>", "live.ev.>", "$JS.>", ">"):
            assert "Permissions Violation" in await reader.ask(f"SUB {forbidden} 2"), forbidden
        for forbidden in ("dovecote.acc_doves.cnv_1.message.received", "$JS.API.STREAM.INFO.EVENTS"):
            assert "Permissions Violation" in await reader.ask(f"PUB {forbidden} 0", ""), forbidden
        foreign = await _relay_events(database, nats, "acc_hawks")
        conversation = await _relay_events(database, nats, "acc_doves")
        subject, body = await reader.next_message()
    assert foreign != conversation
    assert subject == f"dovecote.acc_doves.{conversation}.message.received"
    assert (body["conversation"], body["data"], body["n"]) == (conversation, {"text": "coo"}, 2)
    assert body["seq"] > 0


async def _relay_events(database: Database, nats: NatsConnection, account: str) -> str:
    """Record a turn's start and a message as a turn does, and let a relay append them."""
    relay = Relay(database, MemoryEvents(), lambda _point: None, announce=announce_with(nats.publish_nowait))
    conversation, stop = new_id("cnv"), asyncio.Event()
    events = [
        Event.now(EventType.TURN_STARTED, conversation, {}),
        Event.now(EventType.MESSAGE_RECEIVED, conversation, {"text": "coo"}),
    ]
    async with database.begin() as connection:
        await outbox.create_stream(connection, conversation=conversation, account=account, agent="agt")
        recorded = (await outbox.record(connection, {conversation: events}))[conversation].events
    async with asyncio.TaskGroup() as group:
        group.create_task(relay.run(stop))
        relay.enqueue(recorded)
        assert await relay.get_seq(recorded[-1], timeout=60.0)
        stop.set()
    return conversation


def test_an_id_that_could_match_other_subjects_has_none() -> None:
    """Wildcards and dots are neither published nor granted."""
    event = Event.now(EventType.MESSAGE_RECEIVED, "cnv_1", {})
    assert public_subject("acc_1", event) == "dovecote.acc_1.cnv_1.message.received"
    for wrong in ("*", ">", "acc.1", "acc 1", ""):
        assert public_subject(wrong, event) is None
        assert public_subject("acc_1", Event.now(EventType.MESSAGE_RECEIVED, wrong, {})) is None
        with pytest.raises(ValueError, match="only letters"):
            account_subjects(wrong)

"""The link to the broker through a network that misbehaves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from delivery.broker import jetstream_events
from delivery.broker.connection import PENDING_SIZE, NatsConnection, connect
from delivery.broker.jetstream_events import JetStreamEvents
from delivery.broker.nats_client import CREDENTIALS_REFUSED
from delivery.broker.stream_config import StreamConfig, ensure_streams
from delivery.errors import AppendConflict, BrokerFull, BrokerRefused, BrokerUnreachable, DeliveryError
from delivery.events.event import Event, EventType
from fault_proxy import FaultProxy, fault_proxy
from nats_servers import NatsServer, nats_server
from silent_service import silent_service
from small_disks import fill_disk, mount_small_disk

USERS = [{"user": "u", "password": "p"}]

FAULTS: dict[str, Callable[[FaultProxy], None]] = {
    "drop": FaultProxy.drop,
    "reset": FaultProxy.reset,
    "half close": FaultProxy.half_close,
    "corrupt": FaultProxy.corrupt,
}


class ProxiedStream:
    """A stream behind a proxy."""

    def __init__(self, proxy: FaultProxy, connection: NatsConnection, stream: JetStreamEvents) -> None:
        self.proxy = proxy
        self.connection = connection
        self.stream = stream


@pytest.fixture
async def proxied_stream(tmp_path: Path) -> AsyncIterator[ProxiedStream]:
    """Reach a real server through the proxy."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(tmp_path / "nats"))
        proxy = await stack.enter_async_context(fault_proxy(server.port))
        nats_connection = await stack.enter_async_context(
            connect(f"nats://127.0.0.1:{proxy.port}", token=server.token)
        )
        await ensure_streams(nats_connection, StreamConfig(max_bytes=500_000_000))
        yield ProxiedStream(
            proxy,
            nats_connection,
            await stack.enter_async_context(jetstream_events.open_events(nats_connection, epoch="e1")),
        )


async def append_until_stored(stream: JetStreamEvents, event: Event, expected: int) -> int:
    """Append as the relay does: until the event is stored, reading the tail after a conflict."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await stream.append(event, expected=expected, account="acc")
            except (BrokerUnreachable, AppendConflict):
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_event_is_stored_once_and_in_order_over_a_broken_network(
    proxied_stream: ProxiedStream, fault: str
) -> None:
    """Whatever happens to the connection, a writer who insists stores each event exactly once."""
    seqs = [0]
    for n in range(1, 61):
        if n % 10 == 0:
            FAULTS[fault](proxied_stream.proxy)
        event = Event.now(EventType.JOB_STARTED, "cnv_a", {}).numbered(n)
        seqs.append(await append_until_stored(proxied_stream.stream, event, seqs[-1]))
    async with asyncio.timeout(30):
        while True:
            try:
                read = await proxied_stream.stream.read("cnv_a", after=0, limit=100, account="acc")
                break
            except DeliveryError:
                await asyncio.sleep(0.02)
    assert [item.event.n for item in read] == list(range(1, 61))
    assert [item.seq for item in read] == seqs[1:]


async def test_a_black_hole_ends_in_an_error_and_heals(proxied_stream: ProxiedStream) -> None:
    """A network that swallows everything makes an append Unreachable in bounded time, and then it goes on."""
    proxied_stream.proxy.black_hole()
    event = Event.now(EventType.JOB_STARTED, "cnv_a", {}).numbered(1)
    async with asyncio.timeout(30):
        with pytest.raises(BrokerUnreachable):
            await proxied_stream.stream.append(event, expected=0, account="acc")
    proxied_stream.proxy.heal()
    seq = await append_until_stored(proxied_stream.stream, event, 0)
    assert [item.seq for item in await proxied_stream.stream.read("cnv_a", after=0, account="acc")] == [seq]


async def test_a_refusal_is_no_time_out(proxied_stream: ProxiedStream) -> None:
    """What the broker refuses raises BrokerRefused at once."""
    event = Event.now(EventType.JOB_STARTED, "cnv_a", {"output": "x" * 300_000}).numbered(1)
    with pytest.raises(BrokerRefused):
        await proxied_stream.stream.append(event, expected=0, account="acc")


async def test_a_bad_address_is_one_clear_error() -> None:
    """An address without a listener is Unreachable, not a traceback and not an endless wait."""
    async with asyncio.timeout(20):
        with pytest.raises(BrokerUnreachable, match="cannot connect to NATS"):
            async with connect("nats://127.0.0.1:1"):
                pass


async def test_an_address_of_something_else_is_named_as_that() -> None:
    """A service that accepts the connection and says nothing, such as one of another protocol."""
    async with silent_service() as (url, _called, _over):
        with pytest.raises(
            BrokerUnreachable, match="NATS: no greeting within 2 s; check that it is a NATS server"
        ):
            async with connect(url.replace("http:", "nats:")):
                pass


async def test_a_server_that_reads_nothing_congests_the_connection(tmp_path: Path) -> None:
    """What waits for the socket is bounded; once the server reads again, everything is sent in order."""
    received: list[bytes] = []
    complete = asyncio.Event()

    async def record(message: Msg) -> None:
        received.append(message.data[:8])
        if len(received) == sent:
            complete.set()

    async with (
        nats_server(tmp_path / "nats") as server,
        connect(server.url, token=server.token) as reader,
        connect(server.url, token=server.token) as writer,
        reader.subscribe("numbers", record),
    ):
        await reader.api_request("INFO")  # the server has the subscription
        sent = 0
        os.kill(server.pid, signal.SIGSTOP)
        try:
            while await writer.publish_nowait("numbers", b"%08d" % sent + b"x" * 100_000):
                sent += 1
                assert sent * 100_000 < 4 * PENDING_SIZE
                await asyncio.sleep(0)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            await complete.wait()
    assert received == [b"%08d" % number for number in range(sent)]


async def test_a_connection_returns_when_its_credentials_are_valid_again(tmp_path: Path) -> None:
    """An operator who revokes a token by mistake, and corrects it, need not restart the gateway."""
    async with nats_server(tmp_path / "nats") as server, connect(server.url, token=server.token) as link:
        returned = asyncio.Event()
        link.on_reconnect(returned.set)
        server.reload(authorization="{ token: another-token }")
        async with asyncio.timeout(30):
            while link.is_connected:  # noqa: ASYNC110 - the link reports no loss
                await asyncio.sleep(0.01)
            while link.state != f"not connected: {CREDENTIALS_REFUSED}":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        server.reload(authorization=f"{{ token: {server.token} }}")
        async with asyncio.timeout(30):
            await returned.wait()
        assert link.is_connected
        await server.kill()
        async with asyncio.timeout(30):
            while link.state != "not connected":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await server.start()
        assert await link.wait_connected(30)
        assert "error" not in await link.api_request("INFO")


async def test_a_server_that_refuses_large_messages_is_not_used(tmp_path: Path) -> None:
    """The error names the setting; a running server is used again once its setting is right."""
    server = NatsServer(tmp_path / "nats")
    await server.start()
    try:
        async with connect(server.url, token=server.token) as link:
            returned, large = asyncio.Event(), b"x" * 300_000
            link.on_reconnect(returned.set)
            await ensure_streams(link, StreamConfig(max_bytes=500_000_000))
            server.reload(max_payload=100_000)
            async with asyncio.timeout(30):
                while link.is_connected:
                    await link.publish_nowait("anything", large)
                    await asyncio.sleep(0.05)
            with pytest.raises(BrokerRefused, match="max_payload is 100000 bytes"):
                await _open_and_close(server)
            server.reload(max_payload=1024**2)
            async with asyncio.timeout(30):
                await returned.wait()
            assert await link.publish_nowait("anything", large)
    finally:
        await server.kill()


async def _open_and_close(server: NatsServer) -> None:
    async with connect(server.url, token=server.token):
        pass


async def test_a_single_server_needs_space_for_one_replica_only(tmp_path: Path) -> None:
    """Without `replicas`, the number follows from whether the server is in a cluster."""
    account = {"jetstream": {"max_file": 500_000_000}, "users": [{"user": "u", "password": "p"}]}
    server = NatsServer(tmp_path / "nats", settings={"accounts": {"A": account}}, authorization="{}")
    await server.start()
    try:
        async with connect(f"nats://u:p@127.0.0.1:{server.port}") as link:
            await ensure_streams(link, StreamConfig(max_bytes=500_000_000))
            info = await link.api_request("STREAM.INFO.EVENTS")
            assert info["config"]["num_replicas"] == 1
    finally:
        await server.kill()


async def fill(link: NatsConnection, subject: str, *, size: int = 1_000_000, timeout: float = 2.0) -> None:
    """Publish until the server refuses, or does not answer."""
    while True:
        await link.publish(subject, b"x" * size, timeout=timeout)


async def publish_until_stored(link: NatsConnection, subject: str) -> None:
    """Publish until the server accepts, as the relay does."""
    async with asyncio.timeout(30):
        while True:
            with suppress(BrokerFull, BrokerUnreachable):
                await link.publish(subject, b"an event")
                return


async def test_a_server_without_space_is_named_until_there_is_some(tmp_path: Path) -> None:
    """Another stream that fills the storage makes events wait, with the remedy; freed space is used."""
    account = {"jetstream": {"max_file": 600_000_000}, "users": USERS}
    server = NatsServer(tmp_path / "nats", settings={"accounts": {"A": account}}, authorization="{}")
    await server.start()
    try:
        async with connect(f"nats://u:p@127.0.0.1:{server.port}") as link:
            await ensure_streams(link, StreamConfig(max_bytes=16_777_216))
            await link.api_request("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other"]})
            with pytest.raises(BrokerFull, match="raise max_file_store") as refused:
                await fill(link, "other")
            assert (refused.value.remedy, link.state) == ("retry", str(refused.value))
            await link.api_request("STREAM.DELETE.OTHER")
            await publish_until_stored(link, "ev.1.a.b.e")
            assert link.state == "ok"
    finally:
        await server.kill()


async def test_a_server_whose_disk_is_full_is_not_ready(tmp_path: Path) -> None:
    """The server answers all other requests and confirms no message: the state has cause and remedy."""
    with mount_small_disk(tmp_path / "nats", 16):
        server = NatsServer(tmp_path / "nats")
        await server.start()
        try:
            async with connect(server.url, token=server.token) as link:
                await ensure_streams(link, StreamConfig(max_bytes=16_777_216))
                with (tmp_path / "nats" / "filler").open("wb", buffering=0) as filler:
                    fill_disk(filler)
                with pytest.raises(BrokerUnreachable, match="NATS stores no messages") as failed:
                    await fill(link, "ev.1.a.b.e", size=100_000, timeout=0.5)
                assert "make space there, and restart that server" in str(failed.value)
                assert link.state == str(failed.value)
                assert link.is_connected
                (tmp_path / "nats" / "filler").unlink()
                await server.kill()
                await server.start()
                assert await link.wait_connected(30)
                await publish_until_stored(link, "ev.1.a.b.e")
                assert link.state == "ok"
        finally:
            await server.kill()

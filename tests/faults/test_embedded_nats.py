"""The embedded broker: alone in its directory, alive as long as its gateway, and back after every death."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from delivery.broker.connection import connect
from delivery.broker.stream_config import EVENTS, StreamConfig, ensure_streams, get_identity
from delivery.errors import BrokerRefused, BrokerUnreachable
from gateway.infra.data_dir import DataDirBusy, DataDirLock
from gateway.infra.embedded_nats import EmbeddedNats, EmbeddedNatsFailed, find_nats_server, open_embedded_nats
from gateway.infra.nats_probe import PROBE_SUBJECT, stores_messages
from nats_servers import nats_server


@pytest.fixture
async def embedded_nats(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    """Run a broker."""
    with DataDirLock(tmp_path / "data") as lock:
        async with open_embedded_nats(lock, storage_bytes=200_000_000) as broker:
            yield broker


def arguments_of(pid: int | None) -> str:
    """Return a living process's command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def test_streams_fit_into_the_budget(embedded_nats: EmbeddedNats) -> None:
    """The broker accepts streams of the size that its own budget allows."""
    async with connect(embedded_nats.url, token=embedded_nats.token) as nats_connection:
        assert (
            await ensure_streams(nats_connection, StreamConfig(max_bytes=embedded_nats.storage_bytes))
        ).last_seq == 0


async def test_an_unauthenticated_client_is_refused(embedded_nats: EmbeddedNats) -> None:
    """No other user of this machine can use the broker without its token."""
    for token in (None, "wrong"):
        with pytest.raises(BrokerRefused):
            async with connect(embedded_nats.url, token=token):
                pass


async def test_a_broker_without_room_says_what_to_raise(tmp_path: Path) -> None:
    """An external nats-server that is too small for the streams is refused with the remedy."""
    async with nats_server(tmp_path) as small, connect(small.url, token=small.token) as nats_connection:
        with pytest.raises(
            BrokerRefused, match=r"need up to 2\.8 GiB: raise max_file_store .* event_log_bytes"
        ):
            await ensure_streams(nats_connection, StreamConfig())
        fitting = StreamConfig(event_log_bytes=20 * 1024**2)
        await ensure_streams(nats_connection, fitting)
        events = await nats_connection.api_request(f"STREAM.INFO.{EVENTS}")
        assert events["config"]["max_bytes"] == fitting.event_log_bytes


async def test_files_are_private(embedded_nats: EmbeddedNats, tmp_path: Path) -> None:
    """The broker's files and its token are readable by their owner only."""
    directory = tmp_path / "data" / "nats"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "store").stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "server.conf").stat().st_mode) == 0o600
    assert embedded_nats.token not in arguments_of(embedded_nats.pid)


@pytest.mark.parametrize("name", ["pä th ☃ 😀", "quo\"te \\ $HOME ' #{", os.fsdecode(b"latin-\xe4")])
async def test_the_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Streams are stored below the directory, and a broker that starts again finds them."""
    for is_new in (True, False):
        with DataDirLock(tmp_path / name) as lock:
            async with (
                open_embedded_nats(lock, storage_bytes=200_000_000) as broker,
                connect(broker.url, token=broker.token) as connection,
            ):
                if is_new:
                    await ensure_streams(connection, StreamConfig(max_bytes=broker.storage_bytes))
                info = await connection.api_request(f"STREAM.INFO.{EVENTS}")
        assert info["config"]["name"] == EVENTS
        assert (tmp_path / name / "nats" / "store" / "jetstream").is_dir()


async def test_a_killed_broker_comes_back_with_everything_on_the_same_port(
    embedded_nats: EmbeddedNats,
) -> None:
    """Kill -9 of the child is repaired by its supervision; the link finds it again."""
    async with connect(embedded_nats.url, token=embedded_nats.token) as nats_connection:
        before = await ensure_streams(nats_connection, StreamConfig(max_bytes=embedded_nats.storage_bytes))
        await nats_connection.publish("lease.t.x", b"kept", {})
        url, killed = embedded_nats.url, embedded_nats.pid
        assert killed is not None
        back = asyncio.Event()
        nats_connection.on_reconnect(back.set)
        os.kill(killed, signal.SIGKILL)
        async with asyncio.timeout(15):
            await back.wait()
        assert (embedded_nats.url, embedded_nats.restarts) == (url, 1)
        after = await get_identity(nats_connection)
        assert (after.created, after.last_seq) == (before.created, before.last_seq + 1)


async def test_a_frozen_broker_is_restarted_by_the_one_who_notices(embedded_nats: EmbeddedNats) -> None:
    """A server that answers neither the event loop nor a thread is killed and started again."""
    async with connect(
        embedded_nats.url, token=embedded_nats.token, on_unresponsive=embedded_nats.check
    ) as nats_connection:
        await ensure_streams(nats_connection, StreamConfig(max_bytes=embedded_nats.storage_bytes))
        frozen = embedded_nats.pid
        assert frozen is not None
        back = asyncio.Event()
        nats_connection.on_reconnect(back.set)
        os.kill(frozen, signal.SIGSTOP)
        async with asyncio.timeout(60):
            while not back.is_set():
                with suppress(BrokerUnreachable):
                    await nats_connection.publish("lease.t.x", b"", {}, timeout=0.2)
        assert embedded_nats.pid != frozen
        await nats_connection.publish("lease.t.x", b"", {})


async def test_a_server_that_answers_is_not_restarted(embedded_nats: EmbeddedNats) -> None:
    """Unanswered requests of a process that is late are no evidence against the server."""
    async with connect(
        embedded_nats.url, token=embedded_nats.token, on_unresponsive=embedded_nats.check
    ) as nats_connection:
        await ensure_streams(nats_connection, StreamConfig(max_bytes=embedded_nats.storage_bytes))
        healthy, asked = embedded_nats.pid, asyncio.Event()
        async with nats_connection.subscribe(PROBE_SUBJECT, _setter(asked)), asyncio.timeout(60):
            while not asked.is_set():
                embedded_nats.check()
                await asyncio.sleep(0.05)
        await nats_connection.publish("lease.t.x", b"", {})
        assert await asyncio.to_thread(
            stores_messages, int(embedded_nats.url.rpartition(":")[2]), embedded_nats.token, timeout=60
        )
        assert (embedded_nats.pid, embedded_nats.restarts) == (healthy, 0)


def _setter(event: asyncio.Event) -> Callable[[Msg], Awaitable[None]]:
    async def receive(_message: Msg) -> None:
        event.set()

    return receive


async def test_a_second_instance_reports_which_directory_is_taken(tmp_path: Path) -> None:
    """A second gateway on the same data directory is refused with the reason."""
    with (
        DataDirLock(tmp_path / "data"),
        pytest.raises(DataDirBusy, match=str(tmp_path / "data")),
        DataDirLock(tmp_path / "data"),
    ):
        pass
    with DataDirLock(tmp_path / "data") as again:
        assert again.is_held


async def test_the_broker_dies_with_its_gateway(tmp_path: Path) -> None:
    """SIGKILL of the gateway ends the broker too, and the next gateway starts on the same files."""
    program = (
        "import asyncio, sys, pathlib\n"
        "from gateway.infra.embedded_nats import open_embedded_nats\n"
        "from gateway.infra.data_dir import DataDirLock\n"
        "import structlog\n"
        "structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))\n"
        "async def main():\n"
        "    with DataDirLock(pathlib.Path(sys.argv[1])) as lock:\n"
        "        async with open_embedded_nats(lock, storage_bytes=200_000_000) as broker:\n"
        "            print(broker.pid, flush=True)\n"
        "            await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path / "data"), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    async with asyncio.timeout(20):
        pid = int(await child.stdout.readline())
    child.kill()
    await child.wait()
    with DataDirLock(tmp_path / "data") as lock:
        async with open_embedded_nats(lock) as broker, connect(broker.url, token=broker.token):
            assert broker.pid != pid
            assert not broker.may_have_lost
            assert not arguments_of(pid)


async def test_a_machine_that_went_down_under_the_broker_is_noticed(tmp_path: Path) -> None:
    """Only a broker that was not stopped before the machine went down may have lost data."""
    directory = tmp_path / "data"
    with DataDirLock(directory) as lock:
        async with open_embedded_nats(lock, storage_bytes=200_000_000) as broker:
            assert not broker.may_have_lost
        (directory / "nats" / "boot").write_text("an earlier uptime")
        async with open_embedded_nats(lock) as broker:
            assert broker.may_have_lost
        async with open_embedded_nats(lock) as broker:
            assert not broker.may_have_lost


async def test_a_budget_that_a_full_disk_left_empty_is_made_again(tmp_path: Path) -> None:
    """The start after a start on a full disk needs no one to remove a file."""
    budget = tmp_path / "data" / "nats" / "budget"
    budget.parent.mkdir(parents=True, mode=0o700)
    budget.touch()
    with DataDirLock(tmp_path / "data") as lock:
        async with open_embedded_nats(lock, storage_bytes=20_000_000) as broker:
            assert int(budget.read_text()) == broker.storage_bytes


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """A missing or broken binary is one clear error."""
    with pytest.raises(EmbeddedNatsFailed, match="NATS_BIN"):
        find_nats_server(str(tmp_path / "missing"))
    broken = tmp_path / "nats-server"
    broken.write_text("#!/bin/sh\necho it is broken\nexit 3\n")
    broken.chmod(0o755)
    with DataDirLock(tmp_path / "data") as lock, pytest.raises(EmbeddedNatsFailed, match="it is broken"):
        async with open_embedded_nats(lock, binary=str(broken)):
            pass


async def test_the_reason_of_a_crash_is_named(tmp_path: Path) -> None:
    """A server with too little address space ends with stacks in its log; the error has the line before."""
    program = tmp_path / "nats-server"
    server = find_nats_server()
    program.write_text(f'#!/bin/sh\nulimit -v 600000\nexec {server} "$@"\n')
    program.chmod(0o755)
    failed = pytest.raises(EmbeddedNatsFailed, match="fatal error: failed to reserve")
    with DataDirLock(tmp_path / "data") as lock, failed:
        async with open_embedded_nats(lock, binary=str(program)):
            pass

"""G5: a replica that was frozen past its session has lost its shards, and does none of their work."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from time import monotonic

from delivery.broker.connection import connect
from delivery.broker.stream_config import ensure_streams
from nats_servers import child_process, nats_server
from shard_replicas import STREAM_CONFIG, shard_replica, until_divided, working

WORK = "t:cnv_1"

HOLDER_PROGRAM = """
import asyncio, sys, time
from delivery.errors import DeliveryError, LeaseLost
from shard_replicas import shard_replica, until_divided

async def main(url, token):
    async with shard_replica(url, token, "frozen") as one:
        await until_divided(one)
        async with one.leases.acquire("t:cnv_1") as lease:
            try:
                while True:
                    lease.ensure_held()
                    print("at", time.monotonic(), flush=True)
                    await asyncio.sleep(0.02)
            except LeaseLost:
                print("lost", flush=True)
        try:
            async with one.leases.acquire("t:cnv_2"):
                print("began", flush=True)
        except DeliveryError:
            print("refused", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_g5_a_frozen_replica_is_succeeded_and_never_works_on_its_shards_again(tmp_path: Path) -> None:
    """Another replica takes over its shards; when it wakes, its work ends and it begins none."""
    async with nats_server(tmp_path / "nats") as server, asyncio.timeout(60):
        async with connect(server.url, token=server.token) as nats:
            await ensure_streams(nats, STREAM_CONFIG)
        async with child_process(HOLDER_PROGRAM, server) as child:
            assert child.stdout is not None
            while not (await child.stdout.readline()).startswith(b"at "):
                pass
            child.send_signal(signal.SIGSTOP)
            async with shard_replica(server.url, server.token, "other") as other:
                await until_divided(other)
                async with working(other, WORK) as lease:
                    taken = monotonic()
                    child.send_signal(signal.SIGCONT)
                    lines = (await child.stdout.read()).split(b"\n")
                    lease.ensure_held()
    acts = [line.removeprefix(b"at ") for line in lines if line.startswith(b"at ")]
    assert b"lost" in lines
    assert b"refused" in lines
    assert all(float(moment) < taken for moment in acts)

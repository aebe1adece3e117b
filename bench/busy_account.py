"""The busy account of `bench.neighbours`, as a client in a process of its own.

    python -m bench.busy_account URL AGENT LOAD TURNS CONNECTIONS < KEY

It asks for all that its load contains until its standard input ends. Then it prints how many of its
WebSockets were open. It has a low priority: in production it is another machine, which does not use the
gateway's processors.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

import aiohttp

from api_server import ApiClient

ENDS = ("completed", "failed", "cancelled")
DEPTH = 50_000
HOSTILE_TEXTS = (
    "(" * DEPTH,
    "!" + "$(" * DEPTH,
    "!echo " + "'\"" * DEPTH,
    "/" + "a" * DEPTH,
    "**_`" * DEPTH,
    "[" * DEPTH + "](" * DEPTH,
    "\u202e\u200b" * DEPTH,
)
"""Texts that are made for slow parsers."""
HOSTILE_FRAMES = (
    "[" * DEPTH,
    "{" * DEPTH,
    '{"type":"subscribe","conversation":"' + "x" * DEPTH + '"}',
    '{"type":"send","text":' + "9" * DEPTH + "}",
)
"""WebSocket frames of the same kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyAccount:
    """A client that asks for as much as it can."""

    client: ApiClient
    agent: str
    connections: int
    """WebSockets that it wants to hold."""
    open_sockets: set[object] = field(default_factory=set)

    async def post_turn(self, text: str) -> str:
        """Queue a turn in a conversation of its own; returns its id, or nothing if it is refused."""
        return await queue_turn(self.client, self.agent, text)


async def queue_turn(client: ApiClient, agent: str, text: str) -> str:
    """Queue a turn in a conversation of its own; returns its id, or nothing if it is refused."""
    made = await client.call("POST", f"/agents/{agent}/turns", {"input": text})
    return str(made.body["turnId"]) if made.status == 202 else ""


async def wait_for_end(client: ApiClient, turn: str, *, poll: float) -> None:
    """Wait until a turn has ended; returns at once if it was refused."""
    while turn and (await client.call("GET", f"/status/{turn}")).body.get("state") not in ENDS:  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(poll)


Load = Callable[[BusyAccount, int], Coroutine[None, None, None]]


async def run_commands(busy: BusyAccount, turns: int) -> None:
    """Keep so many turns in the gateway that each run a short command in a sandbox."""
    await asyncio.gather(*(_repeat_turn(busy, "!true") for _ in range(turns)))


async def run_replies(busy: BusyAccount, turns: int) -> None:
    """Keep so many turns in the gateway that each reply at once."""
    await asyncio.gather(*(_repeat_turn(busy, "hello") for _ in range(turns)))


async def _repeat_turn(busy: BusyAccount, text: str) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError):
            await wait_for_end(busy.client, await busy.post_turn(text), poll=1.0)
        await asyncio.sleep(0.1)


async def hold_connections(busy: BusyAccount, turns: int) -> None:
    """Queue sleeping turns, hold WebSockets, and send hostile bodies without a pause."""
    for _ in range(turns):
        await busy.post_turn("!sleep 60")
    await asyncio.gather(_hold_sockets(busy), *_hostile_requests(busy))


async def load_everything(busy: BusyAccount, turns: int) -> None:
    """Keep turns of both kinds in the gateway, hold WebSockets, and send every hostile text and frame."""
    await asyncio.gather(
        run_commands(busy, turns // 2),
        run_replies(busy, turns - turns // 2),
        _hold_sockets(busy),
        *_hostile_requests(busy),
        *(_repeat_turn(busy, text) for text in HOSTILE_TEXTS),
        *(_repeat_frame(busy, frame) for frame in HOSTILE_FRAMES),
    )


async def _hold_sockets(busy: BusyAccount) -> None:
    await asyncio.gather(*(_hold_socket(busy) for _ in range(busy.connections)))


async def _hold_socket(busy: BusyAccount) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError):
            async with _socket(busy) as socket:
                busy.open_sockets.add(socket)
                try:
                    async for _ in socket:
                        pass
                finally:
                    busy.open_sockets.discard(socket)
        await asyncio.sleep(1.0)


def _socket(busy: BusyAccount) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
    headers = {"Authorization": f"Bearer {busy.client.key}"}
    return busy.client.session.ws_connect(f"{busy.client.url}/ws", headers=headers)


def _hostile_requests(busy: BusyAccount) -> Sequence[Coroutine[None, None, None]]:
    path = f"/agents/{busy.agent}/turns"
    return [_repeat_request(busy, path, {"input": [["a"] * 10_000]}) for _ in range(4)]


async def _repeat_request(busy: BusyAccount, path: str, body: object) -> None:
    while True:
        with suppress(aiohttp.ClientError, OSError):
            await busy.client.call("POST", path, body)


async def _repeat_frame(busy: BusyAccount, frame: str) -> None:
    """Send a frame, on a new connection each time that the gateway closes it."""
    while True:
        with suppress(aiohttp.ClientError, OSError):
            async with _socket(busy) as socket:
                while not socket.closed:
                    await socket.send_str(frame)
                    await socket.receive()
        await asyncio.sleep(0.1)


LOADS: dict[str, Load] = {
    "replies": run_replies,
    "commands": run_commands,
    "connections and hostile requests": hold_connections,
    "everything": load_everything,
}


async def _run(url: str, agent: str, load: str, turns: int, connections: int) -> None:
    """Run a load until the end of the standard input."""
    key = (await asyncio.to_thread(sys.stdin.readline)).strip()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client = ApiClient(session=session, url=url, key=key)
        busy = BusyAccount(client=client, agent=agent, connections=connections)
        running = asyncio.ensure_future(LOADS[load](busy, turns))
        await asyncio.to_thread(sys.stdin.read)
        print(len(busy.open_sockets), flush=True)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def main() -> None:
    """Run the load that the arguments name."""
    url, agent, load, turns, connections = sys.argv[1:]
    os.nice(19)
    asyncio.run(_run(url, agent, load, int(turns), int(connections)))


if __name__ == "__main__":
    main()

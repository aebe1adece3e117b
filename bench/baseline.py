"""The raw limit: the minimum that a durable gateway does for each message.

    python -m bench.baseline DELAY [TELEGRAM_URL TOKEN]

For each message: three commits to SQLite (WAL, synchronous=FULL), three acknowledged publishes to a file
stream of a nats-server of its own, DELAY seconds of a model, and the answer, to Telegram (long polling) or
on the WebSocket it came from. It prints `ready URL` and runs until it is ended.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import nats
from aiohttp import WSMsgType, web
from nats.js import JetStreamContext

from nats_servers import NatsServer

STEPS = 3


class Baseline:
    """Does for each message what durability costs at least."""

    def __init__(self, database: sqlite3.Connection, stream: JetStreamContext, delay: float) -> None:
        self._database = database
        self._stream = stream
        self._delay = delay

    async def handle(self, text: str) -> str:
        """Commit and publish three times, think, and return the answer."""
        for step in range(STEPS):
            with self._database:
                self._database.execute("INSERT INTO steps (step, body) VALUES (?, ?)", (step, text))
            await self._stream.publish("raw.e", text.encode())
            if step == 0 and self._delay:
                await asyncio.sleep(self._delay)
        return f"raw: {text}"


async def telegram(baseline: Baseline, base: str, token: str) -> None:
    """Answer on Telegram by long polling, each update in a task of its own."""
    async with aiohttp.ClientSession(base) as session, asyncio.TaskGroup() as group:

        async def call(method: str, body: dict[str, Any]) -> Any:
            async with session.post(f"/bot{token}/{method}", json=body) as answer:
                return (await answer.json())["result"]

        async def answer(message: dict[str, Any]) -> None:
            text = await baseline.handle(message["text"])
            await call("sendMessage", {"chat_id": message["chat"]["id"], "text": text})

        offset = 0
        print(f"ready {base}", flush=True)
        while True:
            for update in await call("getUpdates", {"offset": offset, "timeout": 20}):
                offset = update["update_id"] + 1
                group.create_task(answer(update["message"]))


async def websocket(baseline: Baseline) -> None:
    """Answer on a WebSocket: one text frame, one answer."""

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        async for frame in socket:
            if frame.type is WSMsgType.TEXT:
                await socket.send_str(await baseline.handle(frame.data))
        return socket

    application = web.Application()
    application.router.add_get("/ws", serve)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"ready http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


async def serve(delay: float, directory: Path, *platform: str) -> None:
    """Run the raw limit until SIGTERM."""
    async with AsyncExitStack() as stack:
        server = NatsServer(directory / "nats")
        await server.start()
        stack.push_async_callback(server.stop)
        client = await nats.connect(server.url, token=server.token)
        stack.push_async_callback(client.close)
        stream = client.jetstream()
        await stream.add_stream(name="RAW", subjects=["raw.>"])
        database = sqlite3.connect(directory / "raw.db")
        stack.callback(database.close)
        for statement in (
            "PRAGMA journal_mode=WAL",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE steps (step INTEGER, body TEXT)",
        ):
            database.execute(statement)
        raw = Baseline(database, stream, delay)
        work = asyncio.ensure_future(telegram(raw, *platform) if platform else websocket(raw))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        await asyncio.wait({work})
        if not work.cancelled():
            work.result()


def main() -> None:
    """Read the arguments and serve."""
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(serve(float(sys.argv[1]), Path(directory), *sys.argv[2:]))


if __name__ == "__main__":
    main()

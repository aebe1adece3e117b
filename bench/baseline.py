"""The raw limit: the minimum that a durable gateway does for each message.

    python -m bench.baseline DELAY [TELEGRAM_URL TOKEN [MODEL_URL]]

For each message: three commits to SQLite (WAL, synchronous=FULL), three acknowledged publishes to a file
stream of a nats-server of its own, DELAY seconds of a model, and the answer, to Telegram (long polling) or
on the WebSocket it came from. With MODEL_URL it publishes six times and streams the answer from that model.
It prints `ready URL` and runs until it is ended.
"""

from __future__ import annotations

import asyncio
import json
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
        self.model: StreamedModel | None = None

    async def handle(self, text: str) -> str:
        """Commit and publish three times, think, and return the answer."""
        answer = f"raw: {text}"
        for step in range(STEPS):
            with self._database:
                self._database.execute("INSERT INTO steps (step, body) VALUES (?, ?)", (step, text))
            await self._stream.publish("raw.e", text.encode())
            if self.model is not None:
                await self._stream.publish("raw.e", text.encode())
            if step == 0 and self._delay:
                await asyncio.sleep(self._delay)
            if step == 0 and self.model is not None:
                answer = await self.model.ask(text)
        return answer


class StreamedModel:
    """Streams answers from a server of OpenAI's chat completions."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url}/chat/completions"

    async def ask(self, text: str) -> str:
        """Return the answer to a message, read piece by piece."""
        asked = {"model": "raw", "stream": True, "messages": [{"role": "user", "content": text}]}
        pieces: list[str] = []
        async with self._session.post(self._url, json=asked) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    pieces.append((choices[0]["delta"].get("content") or "") if choices else "")
        return "".join(pieces)


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
        for url in platform[2:]:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            raw.model = StreamedModel(session, url)
        work = asyncio.ensure_future(telegram(raw, *platform[:2]) if platform else websocket(raw))
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

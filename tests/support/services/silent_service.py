"""A service that takes calls and answers none, as a provider whose API hangs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


def e2b_at(url: str) -> dict[str, str]:
    """Return the settings of a gateway with one place for starts, whose provider E2B is at this URL."""
    return {
        "PATH": os.environ["PATH"],
        "DOVECOTE_SANDBOX__STARTS": "1",
        "DOVECOTE_SANDBOX__E2B__API_KEY": "e2b_key",
        "DOVECOTE_SANDBOX__E2B__API_URL": url,
        "DOVECOTE_SANDBOX__E2B__SANDBOX_URL": url,
        "DOVECOTE_SANDBOX__E2B__HTTP_VERSION": "1.1",
        "DOVECOTE_SANDBOX__E2B__REQUEST_TIMEOUT": "600",
    }


@asynccontextmanager
async def silent_service() -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """Serve a provider's API that answers no call; yields its URL, if it was called, and its end."""
    called, over = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        called.set()
        await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", called, over
    finally:
        over.set()
        server.close()

"""Sandbox starts: each provider has its own places, so that one that hangs delays only its own sandboxes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from gateway.app import RunningGateway
from in_process_gateway import gateway_in_process


async def test_a_provider_that_hangs_delays_no_other_provider(tmp_path: Path) -> None:
    """While the only place for starts of one provider is taken, another one creates a sandbox at once."""
    async with _silent_service() as (url, called, over):
        env = {
            "PATH": os.environ["PATH"],
            "DOVECOTE_SANDBOX__STARTS": "1",
            "DOVECOTE_SANDBOX__E2B__API_KEY": "e2b_key",
            "DOVECOTE_SANDBOX__E2B__API_URL": url,
            "DOVECOTE_SANDBOX__E2B__SANDBOX_URL": url,
            "DOVECOTE_SANDBOX__E2B__HTTP_VERSION": "1.1",
            "DOVECOTE_SANDBOX__E2B__REQUEST_TIMEOUT": "600",
        }
        data = tmp_path / "data"
        async with gateway_in_process(data, env) as running, _client(running, data) as http:
            record = await _post(http, "/accounts/me/sandboxes", name="far", config={"provider": "e2b"})
            config = {"model": "builtin:shell", "sandbox": record["id"]}
            await _post(http, "/accounts/me/agents", name="far", config=config)
            waiting = await _post(http, "/agents/far/turns", input="!echo far")
            async with asyncio.timeout(60):
                await called.wait()
                near = await _post(http, "/agents/default/turns", input="!echo near")
                ended = await _wait_for_end(http, near["statusUrl"])
            still = await _get(http, waiting["statusUrl"])
            over.set()
            await _post(http, f"/turns/{waiting['turnId']}/cancel")
    assert (ended["state"], "near" in ended["output"]) == ("completed", True)
    assert still["state"] == "running"


@asynccontextmanager
async def _silent_service() -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
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


@asynccontextmanager
async def _client(running: RunningGateway, data: Path) -> AsyncIterator[ClientSession]:
    headers = {"Authorization": f"Bearer {(data / 'key').read_text().strip()}"}
    async with ClientSession(running.url, headers=headers) as http:
        yield http


async def _post(http: ClientSession, path: str, **body: Any) -> Any:
    async with http.post(path, json=body or None) as answer:
        assert answer.status < 300, await answer.text()
        return await answer.json() if answer.content_type == "application/json" else None


async def _get(http: ClientSession, url: str) -> Any:
    async with http.get(url) as answer:
        return await answer.json()


async def _wait_for_end(http: ClientSession, url: str) -> Any:
    while (status := await _get(http, url))["state"] in {"queued", "running"}:  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.05)
    return status

"""An OpenID Connect provider of a third party (oidc-provider-mock) as a process on loopback."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from gateway_process import reserve_port

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderProcess:
    """The provider: its issuer URL, and what its operator does."""

    url: str

    async def register(self, redirect_uri: str) -> tuple[str, str]:
        """Register a client; returns its id and secret."""
        body = {"redirect_uris": [redirect_uri], "scope": "openid profile email"}
        made = await self._send("POST", "/oauth2/clients", body)
        return made["client_id"], made["client_secret"]

    async def set_user(self, subject: str, **claims: object) -> None:
        """Make a person, or replace their claims."""
        await self._send("PUT", f"/users/{subject}", claims)

    async def authorize(self, url: str, subject: str) -> str:
        """Sign a person in as a browser does at the authorization endpoint; returns where it leads."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data={"sub": subject}, allow_redirects=False) as answer,
        ):
            assert answer.status == 302, await answer.text()
            return answer.headers["Location"]

    async def _send(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.url}{path}", json=body) as answer,
        ):
            assert answer.ok, await answer.text()
            return await answer.json(content_type=None)


@asynccontextmanager
async def provider_process(*, token_seconds: int = 3600) -> AsyncIterator[ProviderProcess]:
    """Run the provider, at which clients must be registered; its tokens expire after some seconds."""
    port = reserve_port()
    words = ("--port", str(port), "--require-registration", "true", f"--token-max-age={token_seconds}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "oidc_provider_mock", *words),
        env={**os.environ, "AUTHLIB_INSECURE_TRANSPORT": "1"},
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    provider = ProviderProcess(url=f"http://127.0.0.1:{port}")
    try:
        await _wait_until_ready(provider, process)
        yield provider
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _wait_until_ready(provider: ProviderProcess, process: Process) -> None:
    async with asyncio.timeout(START_SECONDS), aiohttp.ClientSession() as session:
        while process.returncode is None:
            try:
                async with session.get(f"{provider.url}/.well-known/openid-configuration"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
    raise RuntimeError(f"the provider ended with {process.returncode}")

"""The gateway's side of job completion, for providers that declare CALLBACK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from sandbox.testing.waiting import TIMEOUT_SECONDS


@dataclass(kw_only=True)
class CompletionCall:
    """One completion callback."""

    job_id: str
    authorization: str
    exit_code: int
    output: str
    truncated: bool


@dataclass(kw_only=True)
class CallbackServer:
    """A server on the callback socket: collects completions and answers with `statuses` in turn, then 200."""

    socket: Path
    statuses: list[int] = field(default_factory=list)
    completions: asyncio.Queue[CompletionCall] = field(default_factory=asyncio.Queue)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[CallbackServer]:
        """Serve the callback route and nothing else."""
        application = web.Application()
        application.router.add_post("/sandbox-jobs/{id}/complete", self._complete)
        runner = web.AppRunner(application)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(self.socket)).start()
            yield self
        finally:
            await runner.cleanup()

    async def next(self) -> CompletionCall:
        """Return the next completion."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.completions.get()

    async def _complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        await self.completions.put(
            CompletionCall(
                job_id=request.match_info["id"],
                authorization=request.headers.get("Authorization", ""),
                exit_code=body["exit_code"],
                output=body["output"],
                truncated=body.get("truncated", False),
            )
        )
        return web.json_response({}, status=self.statuses.pop(0) if self.statuses else 200)

"""The gateway's side of job completion, for providers that declare CALLBACK."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from sandbox.port import CALLBACK_SOCKET, CallbackDirectories
from sandbox.testing.waiting import TIMEOUT_SECONDS


def _ignore(_directory: Path) -> None:
    """Do not listen."""


@dataclass(kw_only=True)
class CompletionCall:
    """One completion callback."""

    job_id: str
    authorization: str
    exit_code: int
    output: str
    truncated: bool


@dataclass(kw_only=True)
class CallbackServer(CallbackDirectories):
    """Collects completions from the sockets of all sandboxes; answers with `statuses` in turn, then 200."""

    statuses: list[int] = field(default_factory=list)
    completions: asyncio.Queue[CompletionCall] = field(default_factory=asyncio.Queue)
    _listen: Callable[[Path], None] = field(default=_ignore, repr=False)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[CallbackServer]:
        """Serve the callback route and nothing else."""
        application = web.Application()
        application.router.add_post("/sandbox-jobs/{id}/complete", self._complete)
        runner = web.AppRunner(application)
        await runner.setup()
        tasks = set[asyncio.Task[None]]()
        self._listen = lambda directory: tasks.add(asyncio.ensure_future(_listen(runner, directory)))
        try:
            for directory in self.root.glob("*"):
                self._listen(directory)
            yield self
        finally:
            self._listen = _ignore
            await asyncio.gather(*tasks)
            await runner.cleanup()

    def open(self, sandbox_id: str) -> None:
        """Create the directory of a sandbox, and listen on its socket while the server runs."""
        is_new = not self.directory(sandbox_id).is_dir()
        super().open(sandbox_id)
        if is_new:
            self._listen(self.directory(sandbox_id))

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


async def _listen(runner: web.AppRunner, directory: Path) -> None:
    """Listen on the socket in a directory, by a path that is short enough for the kernel."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (directory / CALLBACK_SOCKET).unlink(missing_ok=True)
        await web.UnixSite(runner, f"/proc/self/fd/{descriptor}/{CALLBACK_SOCKET}").start()
    finally:
        os.close(descriptor)

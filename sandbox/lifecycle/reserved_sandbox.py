"""A sandbox that resumes or recreates its instance when a call needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import structlog

from sandbox.errors import FilesNotStored
from sandbox.lifecycle.pool import Pool, Returned, Work
from sandbox.lifecycle.reservations import SandboxRequest
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId
from sandbox.port import Sandbox

log = structlog.get_logger(__name__)


@contextmanager
def _stored_at_its_end(call: str) -> Iterator[None]:
    """Log that files are not stored yet instead of raising it: a job has begun, and its end stores them."""
    try:
        yield
    except FilesNotStored as error:
        log.warning("sandbox.files_not_stored", call=call, error=str(error))


class ReservedSandbox(Sandbox):
    """A reserved sandbox: each call takes the lock, resumes the instance, and is repeated once if it is gone.

    `id` is that of the last instance used; it is empty before the first call.
    """

    def __init__(self, pool: Pool, request: SandboxRequest) -> None:
        self.id = SandboxId("")
        self._pool = pool
        self._request = request

    async def wake(self) -> None:
        """Make sure that there is a running instance."""

        async def nothing(_sandbox: Sandbox) -> None:
            return None

        await self._use(nothing, read_only=True)

    async def _use(self, work: Work[Returned], *, read_only: bool = False) -> Returned:
        async def worked(sandbox: Sandbox) -> Returned:
            self.id = sandbox.id
            return await work(sandbox)

        return await self._pool.use(self._request, worked, read_only=read_only)

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script; raises FilesNotStored with its result."""
        return await self._use(lambda sandbox: sandbox.run(command))

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job; afterwards `id` is the instance that runs it."""
        with _stored_at_its_end("spawn"):
            await self._use(lambda sandbox: sandbox.spawn(job))

    async def report(self, job_id: str) -> JobReport:
        """Return the report of a job."""
        return await self._use(lambda sandbox: sandbox.report(job_id), read_only=True)

    async def stop(self, job_id: str) -> None:
        """Stop a job."""
        with _stored_at_its_end("stop"):
            await self._use(lambda sandbox: sandbox.stop(job_id))

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file."""
        return await self._use(lambda sandbox: sandbox.read(path, limit=limit), read_only=True)

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file."""
        await self._use(lambda sandbox: sandbox.write(path, content))

    async def suspend(self) -> None:
        """Suspend the instance; `sandbox.lifecycle.teardown` does the same with the reservation."""
        await self._use(lambda sandbox: sandbox.suspend())

    async def expose(self, port: int) -> str:
        """Return a URL that reaches a port inside."""
        return await self._use(lambda sandbox: sandbox.expose(port), read_only=True)

    async def save(self) -> AsyncIterator[bytes]:
        """Yield the archive of the instance, under the exclusive lock."""
        async with self._pool.backend.locks.shared(self._request.spec.label):
            sandbox = await self._pool.acquire(self._request)
            async for chunk in sandbox.save():
                yield chunk

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Unpack what `save` yielded; not repeated, because the archive can be read only once."""
        async with self._pool.backend.locks.shared(self._request.spec.label):
            await (await self._pool.acquire(self._request)).restore(archive)

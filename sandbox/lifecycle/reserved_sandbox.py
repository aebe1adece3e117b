"""A sandbox as those who use it see it: whatever became of the machine, each call finds one that works."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sandbox.lifecycle.pool import Pool, Returned, Work
from sandbox.lifecycle.reservations import SandboxRequest
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId
from sandbox.port import Sandbox


class ReservedSandbox(Sandbox):
    """The sandbox of a key: each call is let through by the guard, wakes it, and is made once more when the
    machine turns out to be gone. `id` is that of the machine used last, empty before the first call."""

    def __init__(self, pool: Pool, request: SandboxRequest) -> None:
        self.id = SandboxId("")
        self._pool = pool
        self._request = request

    async def wake(self) -> None:
        """See to it that there is a machine, awake."""

        async def nothing(_sandbox: Sandbox) -> None:
            return None

        await self._use(nothing, read_only=True)

    async def _use(self, work: Work[Returned], *, read_only: bool = False) -> Returned:
        async def worked(sandbox: Sandbox) -> Returned:
            self.id = sandbox.id
            return await work(sandbox)

        return await self._pool.use(self._request, worked, read_only=read_only)

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script."""
        return await self._use(lambda sandbox: sandbox.run(command))

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job; `id` says afterwards where."""
        await self._use(lambda sandbox: sandbox.spawn(job))

    async def report(self, job_id: str) -> JobReport:
        """Ask after a job."""
        return await self._use(lambda sandbox: sandbox.report(job_id), read_only=True)

    async def stop(self, job_id: str) -> None:
        """End a job."""
        await self._use(lambda sandbox: sandbox.stop(job_id))

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file."""
        return await self._use(lambda sandbox: sandbox.read(path, limit=limit), read_only=True)

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file."""
        await self._use(lambda sandbox: sandbox.write(path, content))

    async def suspend(self) -> None:
        """Put the machine to sleep; what keeps rows of it is the business of `endings`."""
        await self._use(lambda sandbox: sandbox.suspend())

    async def expose(self, port: int) -> str:
        """Return a URL that reaches a port inside."""
        return await self._use(lambda sandbox: sandbox.expose(port), read_only=True)

    async def save(self) -> AsyncIterator[bytes]:
        """Yield what the machine holds, which nobody else uses meanwhile."""
        async with self._pool.backend.locks.shared(self._request.spec.label):
            sandbox = await self._pool.acquire(self._request)
            async for chunk in sandbox.save():
                yield chunk

    async def restore(self, archive: AsyncIterator[bytes]) -> None:
        """Unpack what `save` yielded; not repeated, since the archive can be read only once."""
        async with self._pool.backend.locks.shared(self._request.spec.label):
            await (await self._pool.acquire(self._request)).restore(archive)

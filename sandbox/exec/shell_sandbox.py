"""A sandbox whose only way in is an exec: runs, jobs and files are shell programs."""

from __future__ import annotations

from collections.abc import Mapping

from sandbox.exec.background_jobs import BackgroundJobs, CompletionCallback
from sandbox.exec.exec_sandbox import PATH, Exec, ExecSandbox
from sandbox.exec.shell_files import ShellFiles
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId, SandboxSpec
from sandbox.port import Sandbox


class ShellSandbox(Sandbox):
    """One sandbox; several objects in several processes may represent it.

    A provider gives its `exec` and says how the sandbox is suspended. `env` has the variables of commands:
    those of the spec if it is None.
    """

    def __init__(
        self,
        sandbox_id: SandboxId,
        exec: Exec,  # noqa: A002 - as in ExecSandbox
        spec: SandboxSpec,
        *,
        user: str,
        home: str,
        path: str = PATH,
        env: Mapping[str, str] | None = None,
        callback: CompletionCallback = CompletionCallback(),  # noqa: B008 - a frozen value
    ) -> None:
        self.id = sandbox_id
        self._spec = spec
        self._exec_sandbox = ExecSandbox(
            exec=exec, mount=spec.mount, home=home, user=user, path=path, env=spec.env if env is None else env
        )
        self._jobs = BackgroundJobs(run=self._exec_sandbox.run_internal, callback=callback)
        self._files = ShellFiles(run=self._exec_sandbox.run_internal, root=spec.mount)

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script; none of its processes is left afterwards."""
        return await self._exec_sandbox.run(command)

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job under a supervisor inside, once per id."""
        await self._jobs.spawn(job)

    async def report(self, job_id: str) -> JobReport:
        """Return a job's state and output so far."""
        return await self._jobs.report(job_id)

    async def stop(self, job_id: str) -> None:
        """Stop a job and wait for its end."""
        await self._jobs.stop(job_id)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file."""
        return await self._files.read(path, limit=limit)

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file durably."""
        if self._spec.read_only:
            raise PermissionError(f"{path}: the workspace is read-only")
        await self._files.write(path, content)

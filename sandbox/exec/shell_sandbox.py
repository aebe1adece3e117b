"""A sandbox whose only way in is an exec: runs, files and jobs are shell programs."""

from __future__ import annotations

from collections.abc import Mapping

from sandbox.exec.background_jobs import BackgroundJobs, CompletionCallback
from sandbox.exec.exec_sandbox import PATH, Exec, ExecSandbox
from sandbox.exec.shell_files import ShellFiles
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId, SandboxSpec
from sandbox.port import Sandbox


class CommandSandbox(Sandbox):
    """One sandbox without background jobs; several objects in several processes may represent it.

    A provider gives its `exec`. `env` has the variables of commands, `mount` is the workspace's path in the
    instance: those of the spec if they are None.
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
        mount: str | None = None,
    ) -> None:
        self.id = sandbox_id
        self._spec = spec
        mount = mount or spec.mount
        self._exec_sandbox = ExecSandbox(
            exec=exec, mount=mount, home=home, user=user, path=path, env=spec.env if env is None else env
        )
        self._files = ShellFiles(run=self._exec_sandbox.run_internal, root=mount)

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script; none of its processes is left afterwards."""
        return await self._exec_sandbox.run(command)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file."""
        return await self._files.read(path, limit=limit)

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file durably."""
        if self._spec.read_only:
            raise PermissionError(f"{path}: the workspace is read-only")
        await self._files.write(path, content)


class ShellSandbox(CommandSandbox):
    """One sandbox with background jobs; a provider says how it is suspended."""

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
        super().__init__(sandbox_id, exec, spec, user=user, home=home, path=path, env=env)
        self._jobs = BackgroundJobs(run=self._exec_sandbox.run_internal, callback=callback)

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job under a supervisor inside, once per id."""
        await self._jobs.spawn(job)

    async def report(self, job_id: str) -> JobReport:
        """Return a job's state and output so far."""
        return await self._jobs.report(job_id)

    async def stop(self, job_id: str) -> None:
        """Stop a job and wait for its end."""
        await self._jobs.stop(job_id)

"""A sandbox at AgentRun: one instance of a template, which ends at the latest after six hours."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sandbox.agentrun.api import AgentRunApi
from sandbox.agentrun.execution import AgentRunHandle
from sandbox.errors import FeatureUnsupported, ProviderRefused
from sandbox.exec.background_jobs import BackgroundJobs, CompletionCallback
from sandbox.exec.exec_sandbox import ExecSandbox
from sandbox.exec.shell_files import ShellFiles
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId, SandboxSpec
from sandbox.port import Sandbox

PREPARE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunUser:
    """The user that commands run as, and its home directory."""

    name: str
    home: str


async def prepare(handle: AgentRunHandle, spec: SandboxSpec) -> AgentRunUser:
    """Create the workspace's directory, with sudo if necessary; return the user."""
    mount = shlex.quote(spec.mount)
    text = (
        f'mkdir -p {mount} 2>/dev/null || sudo -n install -d -o "$(id -un)" {mount}\n'
        f"[ -w {mount} ] || {{ echo cannot make {mount}: the user needs sudo >&2; exit 1; }}\n"
        'id -un; echo "${HOME:-/home/user}"'
    )
    output = await handle.shell(text, timeout=PREPARE_SECONDS)
    name, _, home = output.decode(errors="replace").strip().partition("\n")
    if not name or not home.startswith("/"):
        raise ProviderRefused(f"agentrun: the sandbox does not name its user: {output[:200]!r}")
    return AgentRunUser(name=name, home=home)


class AgentRunSandbox(Sandbox):
    """One sandbox; several objects in several processes may represent it."""

    def __init__(
        self,
        handle: AgentRunHandle,
        api: AgentRunApi,
        spec: SandboxSpec,
        user: AgentRunUser,
        callback: CompletionCallback,
    ) -> None:
        self.id: SandboxId = handle.id
        self._api = api
        self._spec = spec
        self._exec_sandbox = ExecSandbox(
            exec=handle, mount=spec.mount, home=user.home, user=user.name, env=spec.env
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

    async def suspend(self) -> None:
        """Raise FeatureUnsupported: AgentRun ends an idle sandbox itself."""
        raise FeatureUnsupported("agentrun suspends no sandbox: it ends an idle one by its own timer")

    async def keep_alive(self, seconds: float) -> None:
        """Reset AgentRun's idle timer."""
        del seconds
        await self._api.touch(self.id)

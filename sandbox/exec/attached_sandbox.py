"""A running Linux instance that Dovecote did not create, with a plain exec as the only way in."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sandbox.config import WORKSPACES_ROOT
from sandbox.errors import ProviderRefused
from sandbox.exec.background_jobs import BackgroundJobs, CompletionCallback
from sandbox.exec.exec_sandbox import Exec, ExecSandbox
from sandbox.exec.shell_files import ShellFiles
from sandbox.model import BackgroundJob, ExecRequest, ExecResult, JobReport, SandboxId, SandboxSpec
from sandbox.port import Sandbox

PROBE_TIMEOUT_SECONDS = 30.0
_NEEDED = "bash base64 env find grep head mkfifo mktemp setsid sleep split stat tail tar"
"""The programs that runs, jobs and the sync of files use."""

_PROBE = f"""
for needed in {_NEEDED}; do
  command -v "$needed" >/dev/null || lacks="$lacks $needed"
done
home=${{HOME:-/tmp}}
[ -d "$home" ] && [ -w "$home" ] || home=/tmp
printf '%s\\n' "$lacks" "$(id -u)" "$(id -g)" "$(id -un 2>/dev/null || id -u)" "$home" "$PATH"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceUser:
    """The user that commands of an instance run as, by its own account."""

    uid: int
    gid: int
    name: str
    home: str
    path: str


async def probe_user(run: Exec, name: str) -> InstanceUser:
    """Return the user of an instance; raises ProviderRefused if it lacks the programs that runs need."""
    output = await run(_PROBE, stdin=b"", timeout=PROBE_TIMEOUT_SECONDS)
    lines = [*output.decode(errors="replace").splitlines(), "", "", "", "", "", ""]
    if lines[0].strip():
        lacks = ", ".join(lines[0].split())
        raise ProviderRefused(f"the external sandbox {name!r} lacks {lacks}: install them there")
    uid, gid = (int(text) if text.isdecimal() else 0 for text in lines[1:3])
    return InstanceUser(uid=uid, gid=gid, name=lines[3] or str(uid), home=lines[4], path=lines[5])


async def make_directory(
    run: Exec, spec: SandboxSpec, owner: InstanceUser, *, as_root: Exec | None = None
) -> None:
    """Create the working directory of a spec for a user, `as_root` if the user cannot.

    Raises ProviderRefused if it is not possible.
    """
    mount = shlex.quote(spec.mount)
    own = f"umask 022; mkdir -p {mount} 2>/dev/null; [ -w {mount} ] && echo made || echo missing"
    made = await run(own, stdin=b"", timeout=PROBE_TIMEOUT_SECONDS)
    if made.strip() != b"made" and as_root is not None:
        given = f"umask 022; mkdir -p {mount} && chown {owner.uid}:{owner.gid} {mount}; true"
        await as_root(given, stdin=b"", timeout=PROBE_TIMEOUT_SECONDS)
        made = await run(own, stdin=b"", timeout=PROBE_TIMEOUT_SECONDS)
    if made.strip() != b"made":
        raise ProviderRefused(
            f"the directory {spec.mount} cannot be made in the external sandbox {spec.external!r}: "
            f"make {WORKSPACES_ROOT} there, writable for {owner.name}"
        )


class AttachedSandbox(Sandbox):
    """One external instance; several objects in several processes may represent it."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        run: Exec,
        spec: SandboxSpec,
        user: InstanceUser,
        callback: CompletionCallback = CompletionCallback(),  # noqa: B008 - a frozen value
    ) -> None:
        self.id = sandbox_id
        self._spec = spec
        self._exec_sandbox = ExecSandbox(
            exec=run, mount=spec.mount, home=user.home, user=user.name, path=user.path, env=spec.env
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
        """Refuse: Dovecote did not create the instance."""
        raise ProviderRefused("an external sandbox is not suspended: it belongs to who created it")

"""Background jobs in any Linux box that can run a script: started, asked about and stopped by one `run` each.

For providers without a way of their own to keep a process. Each job has a supervisor inside the box, a
POSIX shell in its own session that outlives the call, the connection and the gateway
(`sandbox/exec/scripts/supervisor.sh`). It needs `sh`, `bash`, `setsid`, `mkfifo`, `dd`, `tail`, `base64`, `grep`,
`readlink` and /proc: Debian's or busybox's. A job's own processes can see and end what looks after them, for
they are of the same user: whoever breaks in there breaks only what the account owns anyway.

The order, with the job's token and script, goes in by stdin and is in no argument or environment; it is a
file of mode 0600 for the moment until the supervisor has read it. How a job's end is told:
`sandbox/exec/scripts/tell.sh`.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxError, UnsafePath
from sandbox.exec.scripts import program
from sandbox.labels import key_of
from sandbox.model import OUTPUT_CAP, BackgroundJob, BackgroundJobState, ExecRequest, ExecResult, JobReport

JOBS_DIRECTORY = "${HOME:-/tmp}/.dovecote/jobs"
"""Where the box keeps its jobs, as the box's own shell reads it."""

MAX_SCRIPT_BYTES = 128 * 1024 - 1
"""Linux takes no longer single argument (MAX_ARG_STRLEN)."""

QUERY_TIMEOUT_SECONDS = 30.0
"""Seconds that looking after a job may take, besides the time that stopping one takes."""

_STOP_SECONDS = 5.0 + 10.0
_REPORT_BYTES = 2 * OUTPUT_CAP
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")

RunScript = Callable[[ExecRequest], Awaitable[ExecResult]]
"""Runs a bash script in the box, in the workspace, with the account's environment and `stdin`. It gives back
the whole of stdout up to `output_limit`, which is more than OUTPUT_CAP here, and leaves alone what the script
started in a session of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCallback:
    """Where a job's end is told from inside the box: a unix socket there, else a URL, else nowhere."""

    socket: str = ""
    url: str = ""
    timeout_seconds: int = 600

    def variables(self, job: BackgroundJob) -> Mapping[str, str]:
        """Return what the supervisor is told of it."""
        if not (self.socket or self.url):
            return {"route": ""}
        if not _TOKEN.fullmatch(job.token):
            raise UnsafePath("a job's token is letters, digits and a few signs")
        return {
            "route": f"/sandbox-jobs/{quote(job.id, safe='')}/complete",
            "socket": self.socket,
            "url": self.url.rstrip("/"),
            "token": job.token,
            "patience": str(self.timeout_seconds),
            "poster": program("post.py"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundJobs:
    """The jobs of one box, with the promises of `sandbox.port.Sandbox`."""

    run: RunScript
    callback: CompletionCallback = CompletionCallback()
    directory: str = JOBS_DIRECTORY

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job, once per id; raises Unsafe, Refused, Unreachable."""
        answer = await self._query(render_spawn(job, self.directory), stdin=job_variables(job, self.callback))
        if answer.strip() not in {b"started", b"known"}:
            raise ProviderRefused("the job's supervisor did not start")

    async def report(self, job_id: str) -> JobReport:
        """Say how a job is doing."""
        return parse_report(await self._query(render_query("report.sh", self.directory, job_id)))

    async def stop(self, job_id: str) -> None:
        """End a job and wait until it has ended."""
        await self._query(render_query("stop.sh", self.directory, job_id), extra_seconds=_STOP_SECONDS)

    async def count_running(self) -> int:
        """Return how many jobs are running that keep the box awake."""
        return int(await self._query(render_query("running.sh", self.directory, "")))

    async def _query(self, script: str, *, stdin: bytes = b"", extra_seconds: float = 0.0) -> bytes:
        command = ExecRequest(
            script=script,
            stdin=stdin,
            timeout=QUERY_TIMEOUT_SECONDS + extra_seconds,
            output_limit=_REPORT_BYTES,
        )
        result = await self.run(command)
        if result.timed_out:
            raise ProviderUnreachable("the box does not say how its jobs are doing")
        if not result.ok:
            raise error_for(result)
        return result.stdout


def job_key(job_id: str) -> str:
    """Return the name of a job's directory; ids are hashed, so that none of them can be a path."""
    return key_of("job", job_id)


def render_spawn(job: BackgroundJob, directory: str = JOBS_DIRECTORY) -> str:
    """Return the script that starts a job by the order on its stdin; raises Unsafe."""
    if "\0" in job.script:
        raise UnsafePath("a script must not contain NUL")
    if len(job.script.encode("utf-8", "surrogateescape")) > MAX_SCRIPT_BYTES:
        raise UnsafePath(
            f"a script has at most {MAX_SCRIPT_BYTES} bytes: put it into a file of the workspace"
        )
    supervisor = program("jobs.sh") + program("tell.sh") + program("supervisor.sh")
    return f"supervisor={shlex.quote(supervisor)}\n" + render_query("spawn.sh", directory, job.id)


def job_variables(job: BackgroundJob, callback: CompletionCallback) -> bytes:
    """Return a job's order: the shell variables that its supervisor reads."""
    words = {
        "script": job.script,
        "timeout": f"{job.timeout:g}",
        "limit": str(max(1, min(job.output_limit, OUTPUT_CAP))),
        "rests": "yes" if job.sleeps_with_sandbox else "",
        **callback.variables(job),
    }
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in words.items()]
    return "".join(lines).encode("utf-8", "surrogateescape")


def render_query(name: str, directory: str, job_id: str) -> str:
    """Return the script that does one thing with a job."""
    return f'jobs="{directory}"\nkey={job_key(job_id)}\n{program("jobs.sh")}{program(name)}'


def parse_report(answer: bytes) -> JobReport:
    """Return what a box said of a job; raises Unreachable for an answer that makes no sense."""
    head, _, rest = answer.partition(b"\n")
    words = head.decode("ascii", "replace").split()
    try:
        state = BackgroundJobState(words[0])
        if state is BackgroundJobState.UNKNOWN:
            return JobReport(state=state)
        code = int(words[1]) if state is BackgroundJobState.EXITED else None
        output = base64.b64decode(rest)
        return JobReport(state=state, exit_code=code, output=output, truncated=words[2] == "yes")
    except (IndexError, ValueError, binascii.Error) as error:
        raise ProviderUnreachable(f"the box says of its job: {head[:200]!r}") from error


def error_for(result: ExecResult) -> SandboxError:
    """Return the error for a script of ours that failed."""
    said = (result.stderr or result.stdout)[-2000:].decode(errors="replace").strip()
    return ProviderRefused(f"the box cannot look after jobs: exit code {result.exit_code}: {said}")

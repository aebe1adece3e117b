"""Background jobs in any Linux instance that can run a script: start, query and stop them by one `run` each.

For providers without a way of their own to keep a process. Each job has a supervisor inside the instance: a
POSIX shell in its own session that outlives the call, the connection and the gateway
(`sandbox/exec/scripts/supervisor.sh`). It needs `sh`, `bash`, `setsid`, `mkfifo`, `dd`, `tail`, `base64`,
`grep`, `readlink` and /proc: Debian's or busybox's. A job's processes run as the same user as the supervisor,
so they can see and end it; that affects only the account's own sandbox.

The job's token and script are passed by stdin and are in no argument or environment. They are stored in a
file of mode 0600 until the supervisor has read them. `sandbox/exec/scripts/tell.sh` reports a job's end.
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
"""The directory of the jobs, as the instance's shell expands it."""

MAX_SCRIPT_BYTES = 128 * 1024 - 1
"""The longest script: Linux accepts no longer single argument (MAX_ARG_STRLEN)."""

QUERY_TIMEOUT_SECONDS = 30.0
"""Seconds that a job operation may take, in addition to the time that stopping a job takes."""

_STOP_SECONDS = 5.0 + 10.0
_REPORT_BYTES = 2 * OUTPUT_CAP
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")

RunScript = Callable[[ExecRequest], Awaitable[ExecResult]]
"""Runs a bash script in the instance, in the workspace, with the account's environment and `stdin`.

It returns the whole of stdout up to `output_limit`, which may exceed OUTPUT_CAP here, and does not kill what
the script started in a session of its own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCallback:
    """Where a job's end is reported from inside: a unix socket, else a URL, else nowhere."""

    socket: str = ""
    url: str = ""
    timeout_seconds: int = 600

    def variables(self, job: BackgroundJob) -> Mapping[str, str]:
        """Return the shell variables of the callback for the supervisor."""
        if not (self.socket or self.url):
            return {"route": ""}
        if not _TOKEN.fullmatch(job.token):
            raise UnsafePath("a job's token contains an unsupported character")
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
    """The jobs of one instance, with the guarantees of `sandbox.port.Sandbox`."""

    run: RunScript
    callback: CompletionCallback = CompletionCallback()
    directory: str = JOBS_DIRECTORY

    async def spawn(self, job: BackgroundJob) -> None:
        """Start a job, once per id; raises UnsafePath, ProviderRefused, ProviderUnreachable."""
        answer = await self._query(render_spawn(job, self.directory), stdin=job_variables(job, self.callback))
        if answer.strip() not in {b"started", b"known"}:
            raise ProviderRefused("the job's supervisor did not start")

    async def report(self, job_id: str) -> JobReport:
        """Return a job's state and output so far."""
        return parse_report(await self._query(render_query("report.sh", self.directory, job_id)))

    async def stop(self, job_id: str) -> None:
        """Stop a job and wait until it has ended."""
        await self._query(render_query("stop.sh", self.directory, job_id), extra_seconds=_STOP_SECONDS)

    async def count_running(self) -> int:
        """Return how many running jobs keep the instance awake."""
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
            raise ProviderUnreachable("the sandbox did not report its jobs")
        if not result.ok:
            raise error_for(result)
        return result.stdout


def job_key(job_id: str) -> str:
    """Return the name of a job's directory; ids are hashed, so that none of them can be a path."""
    return key_of("job", job_id)


def render_spawn(job: BackgroundJob, directory: str = JOBS_DIRECTORY) -> str:
    """Return the script that starts a job from the variables on its stdin; raises UnsafePath."""
    if "\0" in job.script:
        raise UnsafePath("a script must not contain NUL")
    if len(job.script.encode("utf-8", "surrogateescape")) > MAX_SCRIPT_BYTES:
        raise UnsafePath(
            f"a script has at most {MAX_SCRIPT_BYTES} bytes: put it into a file of the workspace"
        )
    supervisor = program("jobs.sh") + program("tell.sh") + program("supervisor.sh")
    return f"supervisor={shlex.quote(supervisor)}\n" + render_query("spawn.sh", directory, job.id)


def job_variables(job: BackgroundJob, callback: CompletionCallback) -> bytes:
    """Return the shell variables that a job's supervisor reads."""
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
    """Return the script that performs one operation on a job."""
    return f'jobs="{directory}"\nkey={job_key(job_id)}\n{program("jobs.sh")}{program(name)}'


def parse_report(answer: bytes) -> JobReport:
    """Parse the report of a job; raises ProviderUnreachable for an invalid one."""
    head, _, rest = answer.partition(b"\n")
    words = head.decode("ascii", "replace").split()
    try:
        state = BackgroundJobState(words[0])
        if state is BackgroundJobState.UNKNOWN:
            return JobReport(state=state)
        code = int(words[1]) if state is BackgroundJobState.EXITED else None
        output = base64.b64decode(rest)
        return JobReport(
            state=state,
            exit_code=code,
            output=output,
            truncated=words[2] == "yes",
            unrecorded=words[3:] == ["yes"],
        )
    except (IndexError, ValueError, binascii.Error) as error:
        raise ProviderUnreachable(f"invalid job report from the sandbox: {head[:200]!r}") from error


def error_for(result: ExecResult) -> SandboxError:
    """Return the error for a script of ours that failed."""
    message = (result.stderr or result.stdout)[-2000:].decode(errors="replace").strip()
    return ProviderRefused(f"a job operation failed in the sandbox: exit code {result.exit_code}: {message}")

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

from sandbox.errors import Refused, SandboxError, Unreachable, Unsafe
from sandbox.exec.scripts import program
from sandbox.labels import digest
from sandbox.model import OUTPUT_CAP, Command, Job, JobReport, JobState, Result

DIRECTORY = "${HOME:-/tmp}/.dovecote/jobs"
"""Where the box keeps its jobs, as the box's own shell reads it."""

LONGEST_SCRIPT = 128 * 1024 - 1
"""Linux takes no longer single argument (MAX_ARG_STRLEN)."""

ANSWERING = 30.0
"""Seconds that looking after a job may take, besides the time that stopping one takes."""

_STOPPING = 5.0 + 10.0
_REPORT = 2 * OUTPUT_CAP
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")

Run = Callable[[Command], Awaitable[Result]]
"""Runs a bash script in the box, in the workspace, with the account's environment and `stdin`. It gives back
the whole of stdout up to `output_limit`, which is more than OUTPUT_CAP here, and leaves alone what the script
started in a session of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """Where a job's end is told from inside the box: a unix socket there, else a URL, else nowhere."""

    socket: str = ""
    url: str = ""
    patience: int = 600

    def order(self, job: Job) -> Mapping[str, str]:
        """Return what the supervisor is told of it."""
        if not (self.socket or self.url):
            return {"route": ""}
        if not _TOKEN.fullmatch(job.token):
            raise Unsafe("a job's token is letters, digits and a few signs")
        return {
            "route": f"/sandbox-jobs/{quote(job.id, safe='')}/complete",
            "socket": self.socket,
            "url": self.url.rstrip("/"),
            "token": job.token,
            "patience": str(self.patience),
            "poster": program("post.py"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """The jobs of one box, with the promises of `sandbox.port.Sandbox`."""

    run: Run
    callback: Callback = Callback()
    directory: str = DIRECTORY

    async def spawn(self, job: Job) -> None:
        """Start a job, once per id; raises Unsafe, Refused, Unreachable."""
        answer = await self._ask(spawning(job, self.directory), stdin=ordered(job, self.callback))
        if answer.strip() not in {b"started", b"known"}:
            raise Refused("the job's supervisor did not start")

    async def report(self, job_id: str) -> JobReport:
        """Say how a job is doing."""
        return reported(await self._ask(asking("report.sh", self.directory, job_id)))

    async def stop(self, job_id: str) -> None:
        """End a job and wait until it has ended."""
        await self._ask(asking("stop.sh", self.directory, job_id), more=_STOPPING)

    async def running(self) -> int:
        """Return how many jobs are running that keep the box awake."""
        return int(await self._ask(asking("running.sh", self.directory, "")))

    async def _ask(self, script: str, *, stdin: bytes = b"", more: float = 0.0) -> bytes:
        command = Command(script=script, stdin=stdin, timeout=ANSWERING + more, output_limit=_REPORT)
        result = await self.run(command)
        if result.timed_out:
            raise Unreachable("the box does not say how its jobs are doing")
        if not result.ok:
            raise trouble(result)
        return result.stdout


def key_of(job_id: str) -> str:
    """Return the name of a job's directory; ids are hashed, so that none of them can be a path."""
    return digest("job", job_id)


def spawning(job: Job, directory: str = DIRECTORY) -> str:
    """Return the script that starts a job by the order on its stdin; raises Unsafe."""
    if "\0" in job.script:
        raise Unsafe("a script must not contain NUL")
    if len(job.script.encode("utf-8", "surrogateescape")) > LONGEST_SCRIPT:
        raise Unsafe(f"a script has at most {LONGEST_SCRIPT} bytes: put it into a file of the workspace")
    supervisor = program("jobs.sh") + program("tell.sh") + program("supervisor.sh")
    return f"supervisor={shlex.quote(supervisor)}\n" + asking("spawn.sh", directory, job.id)


def ordered(job: Job, callback: Callback) -> bytes:
    """Return a job's order: the shell variables that its supervisor reads."""
    words = {
        "script": job.script,
        "timeout": f"{job.timeout:g}",
        "limit": str(max(1, min(job.output_limit, OUTPUT_CAP))),
        "rests": "yes" if job.rests else "",
        **callback.order(job),
    }
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in words.items()]
    return "".join(lines).encode("utf-8", "surrogateescape")


def asking(name: str, directory: str, job_id: str) -> str:
    """Return the script that does one thing with a job."""
    return f'jobs="{directory}"\nkey={key_of(job_id)}\n{program("jobs.sh")}{program(name)}'


def reported(answer: bytes) -> JobReport:
    """Return what a box said of a job; raises Unreachable for an answer that makes no sense."""
    head, _, rest = answer.partition(b"\n")
    words = head.decode("ascii", "replace").split()
    try:
        state = JobState(words[0])
        if state is JobState.UNKNOWN:
            return JobReport(state=state)
        code = int(words[1]) if state is JobState.EXITED else None
        output = base64.b64decode(rest)
        return JobReport(state=state, exit_code=code, output=output, truncated=words[2] == "yes")
    except (IndexError, ValueError, binascii.Error) as error:
        raise Unreachable(f"the box says of its job: {head[:200]!r}") from error


def trouble(result: Result) -> SandboxError:
    """Return the error for a script of ours that failed."""
    said = (result.stderr or result.stdout)[-2000:].decode(errors="replace").strip()
    return Refused(f"the box cannot look after jobs: exit code {result.exit_code}: {said}")

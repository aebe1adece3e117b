"""Jobs in a sandbox that can only run scripts: the real shell programs, in a directory of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from sandbox.errors import ProviderRefused, ProviderUnreachable, UnsafePath
from sandbox.exec.background_jobs import BackgroundJobs, CompletionCallback, job_key, parse_report
from sandbox.model import OUTPUT_CAP, BackgroundJob, BackgroundJobState, ExecRequest, ExecResult
from sandbox.testing.callbacks import CallbackServer
from sandbox.testing.processes import processes_with, unique_sleep_seconds
from sandbox.testing.waiting import until


def own(name: str) -> str:
    """Return a name that this process alone has: processes of the machine are found by their jobs' names.

    It is made when it is used, because the workers of a run are forked after this module was imported.
    """
    return f"{name}-{os.getpid()}"


def _program(name: str) -> Path:
    """Return where a program is; of Python the interpreter itself, not a shim."""
    return Path(sys.executable).resolve() if name == "python3" else Path(str(shutil.which(name)))


class ScriptHost:
    """A directory that acts as a sandbox: HOME and the working directory are in it, the shell is chosen."""

    def __init__(self, directory: Path, *programs: str) -> None:
        self.home = directory / "home"
        self.home.mkdir()
        self.path = "/usr/bin:/bin"
        if programs:
            self.path = str(directory / "bin")
            Path(self.path).mkdir()
            for name in programs:
                Path(self.path, name).symlink_to(_program(name))

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script as a sandbox would."""
        process = await asyncio.create_subprocess_exec(
            "/bin/bash",
            "-c",
            command.script,
            cwd=self.home,
            env={"HOME": str(self.home), "PATH": self.path},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        # The scripts read /proc, which has the processes of all other tests here and few in a sandbox.
        try:
            async with asyncio.timeout(3 * command.timeout):
                out, err = await process.communicate(command.stdin)
        except TimeoutError:
            process.kill()
            await process.communicate()
            raise
        return ExecResult(exit_code=process.returncode or 0, stdout=out[: command.output_limit], stderr=err)

    def directory(self, job_id: str) -> Path:
        """Return where a job's files are."""
        return self.home / ".dovecote/jobs" / job_key(job_id)


@pytest.fixture
async def script_host(tmp_path: Path) -> AsyncIterator[ScriptHost]:
    """Return a sandbox; its jobs are ended afterwards."""
    sandbox = ScriptHost(tmp_path)
    yield sandbox
    for job_id in (own("job_1"), own("job_2")):
        await BackgroundJobs(run=sandbox.run).stop(job_id)


@pytest.fixture
def jobs(script_host: ScriptHost) -> BackgroundJobs:
    """Return the jobs of the sandbox."""
    return BackgroundJobs(run=script_host.run)


async def wait_for_exit(jobs: BackgroundJobs, job_id: str = "") -> tuple[int | None, bytes, bool]:
    """Return exit code, output and whether it is cut, once the job (the first, unless named) has ended."""
    job_id = job_id or own("job_1")

    async def over() -> bool:
        return (await jobs.report(job_id)).state is not BackgroundJobState.RUNNING

    await until(over)
    report = await jobs.report(job_id)
    assert report.state is BackgroundJobState.EXITED
    return report.exit_code, report.output, report.truncated


async def wait_for_output(jobs: BackgroundJobs, text: bytes = b"begun") -> None:
    """Wait until the job's output holds these words."""

    async def holds() -> bool:
        return text in (await jobs.report(own("job_1"))).output

    await until(holds)


async def test_a_job_continues_and_reports_its_end(script_host: ScriptHost, jobs: BackgroundJobs) -> None:
    """Output is readable while a job runs, and its exit code and both streams at its end."""
    script = "echo begun; echo bad >&2; while ! test -e go; do sleep 0.02; done; exit 4"
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script=script))
    await wait_for_output(jobs, b"bad\n")
    assert (await jobs.report(own("job_1"))).state is BackgroundJobState.RUNNING
    assert await jobs.count_running() == 1
    (script_host.home / "go").touch()
    assert await wait_for_exit(jobs) == (4, b"begun\nbad\n", False)
    assert await jobs.count_running() == 0


async def test_an_id_is_started_once(script_host: ScriptHost, jobs: BackgroundJobs) -> None:
    """Spawning an id many times at once, and again after its end, starts it once; others are unknown."""
    job = BackgroundJob(id=own("job_1"), token=own("job-token"), script="echo once >> runs")
    await asyncio.gather(*(jobs.spawn(job) for _ in range(5)))
    await wait_for_exit(jobs)
    await jobs.spawn(job)
    assert (script_host.home / "runs").read_text() == "once\n"
    assert not list(script_host.directory(own("job_1")).glob("order*"))
    assert (await jobs.report(own("job_2"))).state is BackgroundJobState.UNKNOWN
    await jobs.stop(own("job_2"))


@pytest.mark.parametrize("amount", [1000, 999, 1001, 5_000_000])
async def test_the_end_of_the_output_is_kept(
    script_host: ScriptHost, jobs: BackgroundJobs, amount: int
) -> None:
    """The last bytes stay, whole where they fit, and the disk never holds more than twice of them."""
    script = f"head -c {amount - 5} /dev/zero; printf '\\377last'"
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script=script, output_limit=1000))
    code, output, truncated = await wait_for_exit(jobs)
    assert (code, len(output), truncated) == (0, min(amount, 1000), amount > 1000)
    assert output.endswith(b"\0\xfflast")
    assert (script_host.directory(own("job_1")) / "log").stat().st_size <= 2000


async def test_an_endless_flood_is_bounded(script_host: ScriptHost, jobs: BackgroundJobs) -> None:
    """`yes` fills no disk while it runs."""
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script="yes"))

    async def cut() -> bool:
        return (script_host.directory(own("job_1")) / "truncated").exists()

    await until(cut)
    sizes = [file.stat().st_size for file in script_host.directory(own("job_1")).glob("log*")]
    assert sum(sizes) <= 4 * OUTPUT_CAP
    await jobs.stop(own("job_1"))
    assert (await wait_for_exit(jobs))[0] == 128 + signal.SIGTERM


async def test_stopping_asks_first(jobs: BackgroundJobs) -> None:
    """TERM lets a job clean up, and its own exit code is reported."""
    nap = unique_sleep_seconds()
    script = f"trap 'echo cleaned; exit 3' TERM; echo begun; sleep {nap} & wait"
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script=script))
    await wait_for_output(jobs)
    await jobs.stop(own("job_1"))
    assert await wait_for_exit(jobs) == (3, b"begun\ncleaned\n", False)
    await jobs.stop(own("job_1"))
    assert processes_with(nap) == []


@pytest.mark.timeout(300)
async def test_stopping_insists(jobs: BackgroundJobs) -> None:
    """What ignores TERM is killed, in other sessions and without the marked environment as well."""
    nap = unique_sleep_seconds()
    script = (
        f"trap '' TERM; setsid sleep {nap} & env -i setsid bash -c 'sleep {nap}; :' & "
        f"(setsid sleep {nap} &); echo begun; while true; do sleep 0.1; done"
    )
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script=script))
    await wait_for_output(jobs)
    await jobs.stop(own("job_1"))
    assert (await wait_for_exit(jobs))[0] == 137
    assert processes_with(nap) == []


@pytest.mark.timeout(300)
async def test_stopping_takes_seconds_on_a_busy_machine(
    script_host: ScriptHost, jobs: BackgroundJobs
) -> None:
    """The time until KILL is measured. Counted in rounds, it was minutes where each program takes long."""
    slow = script_host.home.parent / "slow"
    slow.mkdir()
    (slow / "sleep").write_text("#!/bin/sh\nexec /usr/bin/sleep 1.5\n")
    (slow / "sleep").chmod(0o755)
    script = "trap '' TERM; echo begun; while true; do /usr/bin/sleep 0.1; done"
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script=script))
    await wait_for_output(jobs)
    script_host.path = f"{slow}:{script_host.path}"
    await jobs.stop(own("job_1"))
    assert (await wait_for_exit(jobs))[0] == 137


async def test_stopping_ends_a_job_whose_command_has_not_begun(
    script_host: ScriptHost, jobs: BackgroundJobs
) -> None:
    """The supervisor is there before its command: a stop in between is not lost."""
    slow = script_host.home.parent / "slow"
    slow.mkdir()
    (slow / "mkfifo").write_text('#!/bin/sh\n/usr/bin/sleep 2\nexec /usr/bin/mkfifo "$@"\n')
    (slow / "mkfifo").chmod(0o755)
    script_host.path = f"{slow}:{script_host.path}"
    nap = unique_sleep_seconds()
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script=f"sleep {nap}"))
    await jobs.stop(own("job_1"))
    report = await jobs.report(own("job_1"))
    assert (report.state, report.exit_code) == (BackgroundJobState.EXITED, 143)
    assert processes_with(nap) == []


async def test_a_time_out_ends_a_job(jobs: BackgroundJobs) -> None:
    """A job past its own time-out gets TERM."""
    nap = unique_sleep_seconds()
    await jobs.spawn(
        BackgroundJob(id=own("job_1"), token=own("job-token"), script=f"sleep {nap}", timeout=0.3)
    )
    assert (await wait_for_exit(jobs))[0] == 143
    assert processes_with(nap) == []


async def test_what_a_job_leaves_behind_goes_with_it(jobs: BackgroundJobs) -> None:
    """A daemon of a job dies with the job."""
    nap = unique_sleep_seconds()
    await jobs.spawn(
        BackgroundJob(id=own("job_1"), token=own("job-token"), script=f"(setsid sleep {nap} &); echo done")
    )
    assert await wait_for_exit(jobs) == (0, b"done\n", False)
    assert processes_with(nap) == []


async def test_a_killed_supervisor_is_reported_as_137(script_host: ScriptHost, jobs: BackgroundJobs) -> None:
    """A job whose supervisor is dead did not end by itself."""
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script="sleep 30"))
    os.kill(int((script_host.directory(own("job_1")) / "started").readlink().name.split()[0]), signal.SIGKILL)
    assert (await wait_for_exit(jobs))[0] == 137


async def test_another_start_of_the_sandbox_is_reported(
    script_host: ScriptHost, jobs: BackgroundJobs
) -> None:
    """A job of an earlier boot is gone with it; a process that happens to have its number is not it."""
    directory = script_host.directory(own("job_1"))
    directory.mkdir(parents=True)
    (directory / "log").write_bytes(b"so far\n")
    (directory / "started").symlink_to("1 1 another-boot:1")
    report = await jobs.report(own("job_1"))
    assert (report.state, report.output) == (BackgroundJobState.RECREATED, b"so far\n")
    await jobs.stop(own("job_1"))


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Return a directory whose path is short enough for a socket, however deep the test run's are."""
    with tempfile.TemporaryDirectory(prefix="callbacks-") as path:
        yield Path(path)


async def test_the_end_is_reported_over_a_socket(script_host: ScriptHost, short_directory: Path) -> None:
    """A job's outcome and token arrive at the unix socket, once more after a 503."""
    gateway = CallbackServer(root=short_directory, statuses=[503])
    gateway.open("one")
    callback = CompletionCallback(socket=str(gateway.socket("one")))
    jobs = BackgroundJobs(run=script_host.run, callback=callback)
    async with gateway.listening():
        await jobs.spawn(
            BackgroundJob(
                id=own("job_1"), token=own("job-token"), script="printf 'r\\303\\266\\377\"\\n'; exit 9"
            )
        )
        for _ in range(2):
            reported = await gateway.next()
            assert (reported.job_id, reported.exit_code, reported.output) == (own("job_1"), 9, 'rö\ufffd"\n')
            assert reported.authorization == f"Bearer {own('job-token')}"


MINIMAL_PROGRAMS = (
    *("sh", "bash", "setsid", "mkfifo", "dd", "tail", "base64", "grep", "readlink", "mkdir", "mv", "rm"),
    *("ln", "cat", "sleep", "wc", "tr", "sed", "printf"),
)


@pytest.mark.parametrize("limit", [100, 3])
@pytest.mark.parametrize("poster", ["python3", "curl", "wget"])
async def test_the_end_is_reported_by_what_there_is(tmp_path: Path, poster: str, limit: int) -> None:
    """python3, curl and GNU wget report over HTTP alike, and no token is on a command line."""
    if shutil.which(poster) is None:
        pytest.skip(f"no {poster} on this machine")
    taken: asyncio.Queue[tuple[str, object, bool]] = asyncio.Queue()

    async def complete(request: web.Request) -> web.Response:
        shown = bool(processes_with(own("job-token")))
        await taken.put((request.headers["Authorization"], await request.json(), shown))
        return web.Response()

    application = web.Application()
    application.router.add_post(f"/under/sandbox-jobs/{own('job_1')}/complete", complete)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    callback = CompletionCallback(url=f"http://127.0.0.1:{port}/under/")
    jobs = BackgroundJobs(run=ScriptHost(tmp_path, *MINIMAL_PROGRAMS, poster).run, callback=callback)
    try:
        script = "printf 'a\\t\"b\\\\\\n\\nend'; exit 2"
        await jobs.spawn(
            BackgroundJob(id=own("job_1"), token=own("job-token"), script=script, output_limit=limit)
        )
        async with asyncio.timeout(20):
            reported = await taken.get()
    finally:
        await runner.cleanup()
    whole = 'a\t"b\\\n\nend'
    more = {"truncated": True} if limit < len(whole) else {}
    assert reported == (
        f"Bearer {own('job-token')}",
        {"exit_code": 2, "output": whole[-limit:], **more},
        False,
    )


async def test_a_sandbox_without_a_poster_keeps_its_job(tmp_path: Path) -> None:
    """A sandbox without an HTTP client is no error: the reconciler polls."""
    jobs = BackgroundJobs(
        run=ScriptHost(tmp_path, *MINIMAL_PROGRAMS).run, callback=CompletionCallback(url="http://127.0.0.1:9")
    )
    await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script="echo fine"))
    assert await wait_for_exit(jobs) == (0, b"fine\n", False)


async def test_what_cannot_be_passed_on_is_refused(jobs: BackgroundJobs) -> None:
    """NUL, scripts that are too long and invalid tokens are refused early; a full one gives the reason."""
    for script in ("a\0b", "x" * 200_000):
        with pytest.raises(UnsafePath):
            await jobs.spawn(BackgroundJob(id=own("job_1"), token=own("job-token"), script=script))
    with pytest.raises(UnsafePath):
        await BackgroundJobs(run=jobs.run, callback=CompletionCallback(url="http://x")).spawn(
            BackgroundJob(id=own("job_1"), token='a"\nb', script="true")
        )
    with pytest.raises(ProviderRefused):
        await BackgroundJobs(run=jobs.run, directory="/proc/nowhere").spawn(
            BackgroundJob(id="j", token="", script="true")
        )


@pytest.mark.parametrize("answer", [b"", b"what\n", b"exited -\n", b"exited 0\n", b"running - no\nA"])
def test_nonsense_is_no_answer(answer: bytes) -> None:
    """A sandbox that prints something else than a report counts as not answering."""
    with pytest.raises(ProviderUnreachable):
        parse_report(answer)

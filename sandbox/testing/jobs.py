"""What a provider promises about background jobs: started once, reported, stopped, outliving everything."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import pytest

from sandbox.errors import SandboxOutdated
from sandbox.exec import open_files
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest
from sandbox.port import Feature, Provider, Sandbox
from sandbox.testing.processes import other_process_program, processes_with
from sandbox.testing.rig import TOKEN, ProviderRig
from sandbox.testing.waiting import TIMEOUT_SECONDS, until, wait_for_job, wait_for_output
from sandbox.workspaces import local_files

needs_jobs = pytest.mark.usefixtures("declares_jobs")


class JobContract:
    """What a provider promises about background jobs."""

    @needs_jobs
    async def test_a_job_outlives_its_sandbox_object(
        self, provider: Provider, sandbox: Sandbox, rig: ProviderRig
    ) -> None:
        """A job continues without its Sandbox object, and reports its output and at the end its exit code."""
        await sandbox.spawn(
            BackgroundJob(
                id="job_1", token=TOKEN, script="echo begun; while ! test -e go; do sleep 0.05; done; exit 4"
            )
        )
        await wait_for_output(sandbox, "job_1", b"begun")
        del sandbox
        (sandbox_id, _) = (await provider.list(rig.label))[0]
        found = await provider.connect(sandbox_id, rig.spec())
        assert (await found.report("job_1")).state is BackgroundJobState.RUNNING
        await found.write("go", b"")
        report = await wait_for_job(found, "job_1")
        assert (report.state, report.exit_code, report.output) == (BackgroundJobState.EXITED, 4, b"begun\n")

    @needs_jobs
    async def test_a_file_that_a_job_has_open_for_writing_is_seen(
        self, sandbox: Sandbox, rig: ProviderRig
    ) -> None:
        """A file is reported while a job has it open for writing, not if it only reads it."""
        script = (
            "echo 1 >read; echo 1 >closed; exec 3>written 4<read; echo half >&3; echo begun; "
            "while ! test -e go; do sleep 0.05; done; exec 3>&-; echo shut; "
            "while ! test -e end; do sleep 0.05; done"
        )
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))

        async def find_open() -> Mapping[str, bool | None]:
            paths = ["written", "read", "closed"]
            if not rig.mounts:
                return await open_files.find_open(sandbox, paths)
            return {path: local_files.is_open_for_writing(rig.workspace, path) for path in paths}

        await wait_for_output(sandbox, "job_1", b"begun")
        assert await find_open() == {"written": True, "read": False, "closed": False}
        await sandbox.write("go", b"")
        await wait_for_output(sandbox, "job_1", b"shut")
        assert await find_open() == {"written": False, "read": False, "closed": False}
        await sandbox.write("end", b"")
        await wait_for_job(sandbox, "job_1")

    @needs_jobs
    async def test_a_job_begins_as_a_command_does(self, sandbox: Sandbox) -> None:
        """A job has the directory, environment, limits and file modes of a command."""
        script = "pwd; umask; ulimit -n -c -f; ulimit -Hn; env | sort | grep -Ev '^(DOVECOTE_TASK|SHLVL|_)='"
        expected = (await sandbox.run(ExecRequest(script=script))).stdout
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
        report = await wait_for_job(sandbox, "job_1")
        assert report.output.decode() == expected.decode()

    @needs_jobs
    async def test_a_job_is_found_after_a_change_of_its_record(self, rig: ProviderRig) -> None:
        """Connecting with other limits ends no job: the sandbox is used, or reported as outdated.

        As it was created it is found in any case, and runs commands beside the job.
        """
        spec = rig.spec(persistent=rig.reserves)
        script = "echo begun; while ! test -e go; do sleep 0.05; done; exit 5"
        async with rig.open() as provider:
            made = await provider.create(spec)
            await made.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
            await wait_for_output(made, "job_1", b"begun")
        async with rig.open() as provider:
            with suppress(SandboxOutdated):
                await provider.connect(made.id, replace(spec, memory_mb=300))
            changed = replace(spec, memory_mb=300, persistent=False, as_created=True)
            found = await provider.connect(made.id, changed)
            assert (await found.run(ExecRequest(script="echo here"))).stdout == b"here\n"
            assert (await found.report("job_1")).state is BackgroundJobState.RUNNING
            await found.write("go", b"")
            assert (await wait_for_job(found, "job_1")).exit_code == 5
            await provider.destroy(made.id)

    @needs_jobs
    async def test_a_command_that_is_killed_leaves_a_job_alone(self, sandbox: Sandbox) -> None:
        """What ends a command after its time-out ends nothing of a job, the only other thing that runs."""
        await sandbox.spawn(
            BackgroundJob(
                id="job_1", token=TOKEN, script="echo begun; while ! test -e go; do sleep 0.05; done; exit 6"
            )
        )
        await wait_for_output(sandbox, "job_1", b"begun")
        late = await sandbox.run(ExecRequest(script="setsid sleep 40 & sleep 40", timeout=0.5))
        assert late.timed_out
        await sandbox.write("go", b"")
        assert (await wait_for_job(sandbox, "job_1")).exit_code == 6

    @needs_jobs
    async def test_a_daemon_without_a_mark_holds_no_result_up(
        self, sandbox: Sandbox, sleep_seconds: str
    ) -> None:
        """What cleared its environment and holds the output ends with its command, also beside a job."""
        script = "echo begun; while ! test -e go; do sleep 0.05; done; exit 6"
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
        await wait_for_output(sandbox, "job_1", b"begun")
        for ending, seconds, code in (("exit 3", 60, 3), (f"sleep {sleep_seconds}", 1, 137)):
            daemon = f"(env -i setsid sleep {sleep_seconds} &); (env -i setsid sleep {sleep_seconds} >&2 &); "
            result = await sandbox.run(ExecRequest(script=f"{daemon}echo done; {ending}", timeout=seconds))
            assert (result.exit_code, result.stdout, result.timed_out) == (code, b"done\n", code == 137)
            assert processes_with(f"sleep\x00{sleep_seconds}") == []
        await sandbox.write("go", b"")
        assert (await wait_for_job(sandbox, "job_1")).exit_code == 6

    @needs_jobs
    async def test_a_command_with_too_many_processes_leaves_a_job_alone(
        self, sandbox: Sandbox, sleep_seconds: str
    ) -> None:
        """A command that starts more processes than the limit allows, and times out, ends alone."""
        script = "mkfifo go; echo begun; read -r line <go; exit 6"
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
        await wait_for_output(sandbox, "job_1", b"begun")
        many = f"for one in $(seq 100); do sleep {sleep_seconds} & done; wait"
        late = await sandbox.run(ExecRequest(script=many, timeout=2))
        assert not late.ok
        assert processes_with(f"sleep\x00{sleep_seconds}") == []
        assert (await sandbox.report("job_1")).state is BackgroundJobState.RUNNING

        async def has_room() -> bool:
            return (await sandbox.run(ExecRequest(script="echo on >go"))).ok

        await until(has_room)  # the ended processes count against the limit until they are reaped
        assert (await wait_for_job(sandbox, "job_1")).exit_code == 6

    @needs_jobs
    async def test_a_job_is_started_once(self, sandbox: Sandbox) -> None:
        """Spawning one id many times, at once and after its end, runs it once; an unknown id is UNKNOWN."""
        job = BackgroundJob(id="job_1", token=TOKEN, script="echo once >> runs")
        await asyncio.gather(*(sandbox.spawn(job) for _ in range(4)))
        await wait_for_job(sandbox, "job_1")
        await sandbox.spawn(job)
        assert await sandbox.read("runs", limit=100) == b"once\n"
        assert (await sandbox.report("job_2")).state is BackgroundJobState.UNKNOWN

    @needs_jobs
    async def test_a_start_that_is_cancelled_leaves_its_job_alone(
        self, sandbox: Sandbox, sleep_seconds: str
    ) -> None:
        """A caller that is cancelled while its job starts, and that repeats the start, has one that runs."""
        for number in range(2):
            job = BackgroundJob(id=f"job_{number}", token=TOKEN, script=f"sleep {sleep_seconds}")
            starting = asyncio.ensure_future(sandbox.spawn(job))
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not starting.done() and not processes_with(f"sleep\x00{sleep_seconds}"):  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            starting.cancel()
            await asyncio.wait({starting})
            await sandbox.spawn(job)
            assert (await sandbox.report(job.id)).state is BackgroundJobState.RUNNING
            await sandbox.stop(job.id)
        assert processes_with(sleep_seconds) == []

    @needs_jobs
    async def test_a_jobs_output_is_its_end(self, sandbox: Sandbox) -> None:
        """The report has the last bytes of stdout and stderr merged, and is marked as truncated."""
        script = "for i in $(seq 20000); do echo $i; done; echo bad >&2; echo last"
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script, output_limit=1000))
        report = await wait_for_job(sandbox, "job_1")
        assert report.truncated
        assert len(report.output) == 1000
        assert report.output.endswith(b"\n20000\nbad\nlast\n")

    @needs_jobs
    async def test_a_jobs_end_is_reported_to_the_gateway(self, sandbox: Sandbox, rig: ProviderRig) -> None:
        """The result of a job arrives at the callback with its token; after a 5xx it is sent again."""
        if Feature.CALLBACK not in rig.plugin.features:
            pytest.skip("the provider does not declare callback")
        gateway = rig.callback_server
        gateway.statuses = [503]
        async with gateway.listening():
            await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script="echo result; exit 9"))
            for _ in range(2):
                call = await gateway.next()
                assert (call.job_id, call.exit_code, call.output) == ("job_1", 9, "result\n")
                assert (call.authorization, call.truncated) == (f"Bearer {TOKEN}", False)
            await sandbox.spawn(BackgroundJob(id="job_2", token=TOKEN, script="seq 5000", output_limit=10))
            cut = await gateway.next()
            assert (cut.output, cut.truncated) == ("4999\n5000\n", True)

    @needs_jobs
    async def test_a_job_waits_for_a_gateway_that_is_down(self, sandbox: Sandbox, rig: ProviderRig) -> None:
        """The callback is repeated until the gateway listens."""
        if Feature.CALLBACK not in rig.plugin.features:
            pytest.skip("the provider does not declare callback")
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script="exit 0"))
        await wait_for_job(sandbox, "job_1")
        async with rig.callback_server.listening() as gateway:
            assert (await gateway.next()).job_id == "job_1"

    @needs_jobs
    async def test_stopping_sends_term_first(self, sandbox: Sandbox, sleep_seconds: str) -> None:
        """A stopped job gets TERM and may clean up; its exit code is recorded; stopping twice succeeds."""
        script = f"trap 'echo cleaned; exit 3' TERM; echo begun; sleep {sleep_seconds} & wait"
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
        await wait_for_output(sandbox, "job_1", b"begun")
        await sandbox.stop("job_1")
        report = await sandbox.report("job_1")
        assert (report.state, report.exit_code) == (BackgroundJobState.EXITED, 3)
        assert report.output == b"begun\ncleaned\n"
        await sandbox.stop("job_1")
        await sandbox.stop("unknown")
        assert processes_with(sleep_seconds) == []

    @needs_jobs
    async def test_stopping_kills_in_the_end(self, sandbox: Sandbox, sleep_seconds: str) -> None:
        """A job that ignores TERM is killed with all its processes."""
        script = f"trap '' TERM; setsid sleep {sleep_seconds} & echo begun; while true; do sleep 0.1; done"
        await sandbox.spawn(BackgroundJob(id="job_1", token=TOKEN, script=script))
        await wait_for_output(sandbox, "job_1", b"begun")
        await sandbox.stop("job_1")
        report = await sandbox.report("job_1")
        assert (report.state, report.exit_code) == (BackgroundJobState.EXITED, 137)
        assert processes_with(sleep_seconds) == []

    @needs_jobs
    async def test_a_job_has_its_own_time_limit(self, sandbox: Sandbox, sleep_seconds: str) -> None:
        """A job is ended after its time-out."""
        await sandbox.spawn(
            BackgroundJob(id="job_1", token=TOKEN, script=f"sleep {sleep_seconds}", timeout=0.5)
        )
        assert (await wait_for_job(sandbox, "job_1")).exit_code == 128 + signal.SIGTERM
        assert processes_with(sleep_seconds) == []

    @needs_jobs
    async def test_a_job_outlives_the_process_that_started_it(self, rig: ProviderRig) -> None:
        """A job continues when its process is killed; another process finds it by its id."""
        async with rig.open() as provider:
            sandbox = await provider.create(rig.spec())
            script = "echo begun; while ! test -e go; do sleep 0.05; done; exit 6"
            job = f"BackgroundJob(id='job_1', token='t', script={script!r})"
            spawn = f"await (await provider.create(spec)).spawn({job})"
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                other_process_program(rig, f"{spawn}; os.kill(os.getpid(), 9)"),
                stdout=sys.stderr.fileno(),
            )
            assert await child.wait() == -signal.SIGKILL
            await wait_for_output(sandbox, "job_1", b"begun")
            assert (await sandbox.report("job_1")).state is BackgroundJobState.RUNNING
            await sandbox.write("go", b"")
            assert (await wait_for_job(sandbox, "job_1")).exit_code == 6
            await provider.destroy(sandbox.id)

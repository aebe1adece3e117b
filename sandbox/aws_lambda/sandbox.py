"""A sandbox on Lambda: every call is an invocation, and files are on the file system of the functions."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from sandbox.aws_lambda.errors import FunctionTimedOut
from sandbox.aws_lambda.invocation import Invocations, RunRequest
from sandbox.aws_lambda.sandbox_records import SandboxRecords
from sandbox.errors import FeatureUnsupported, ProviderRefused, repeatable
from sandbox.exec.exec_sandbox import ExecSandbox, parse_result, validate_script
from sandbox.exec.shell_files import ShellFiles
from sandbox.model import (
    OUTPUT_CAP,
    BackgroundJob,
    ExecRequest,
    ExecResult,
    JobReport,
    SandboxId,
    SandboxSpec,
)
from sandbox.port import Sandbox

HOME = "/tmp/home"  # noqa: S108 - inside the function
RESERVE_SECONDS = 10.0
"""Seconds of a function's time-out that are not a command's: start, claim, result."""

KILLED = 137
NO_JOBS = (
    "lambda has no background jobs, because a function ends with its answer: run the command in the"
    " foreground within 300 seconds, or use a sandbox of another provider, such as docker, kubernetes or e2b"
)


class LambdaSandbox(Sandbox):
    """One sandbox; several objects in several processes may represent it."""

    def __init__(
        self,
        sandbox_id: SandboxId,
        spec: SandboxSpec,
        *,
        invocations: Invocations,
        records: SandboxRecords,
        request: RunRequest,
    ) -> None:
        self.id = sandbox_id
        self._spec = spec
        self._invocations = invocations
        self._records = records
        self._request = request
        # bash keeps an inherited PWD, and would otherwise resolve the links that lead to the workspace.
        self._exec = ExecSandbox(
            exec=self._invoke, mount=spec.mount, home=HOME, user="user", env={**spec.env, "PWD": spec.mount}
        )
        self._files = ShellFiles(run=self._run_internal, root=spec.mount)

    async def run(self, command: ExecRequest) -> ExecResult:
        """Run a script in one invocation; none of its processes is left afterwards."""
        limit = min(command.output_limit, OUTPUT_CAP)
        return await self._run(replace(command, output_limit=limit), sweep=True)

    async def _run_internal(self, command: ExecRequest) -> ExecResult:
        with repeatable():
            return await self._run(command, sweep=False)

    async def _run(self, command: ExecRequest, *, sweep: bool) -> ExecResult:
        validate_script(command.script)
        await self._records.check(self.id)
        started = time.monotonic()
        command = replace(command, timeout=min(command.timeout, self._request.seconds - RESERVE_SECONDS))
        text = self._exec.program_for(command, secrets.token_hex(8), sweep=sweep)
        try:
            output = await self._invoke(text, stdin=command.stdin, timeout=command.timeout + RESERVE_SECONDS)
        except FunctionTimedOut:
            return ExecResult(exit_code=KILLED, stdout=b"", stderr=b"", timed_out=True)
        return parse_result(output, command, int((time.monotonic() - started) * 1000))

    async def _invoke(self, text: str, *, stdin: bytes, timeout: float) -> bytes:
        request = replace(self._request, program=text, stdin=stdin, seconds=timeout)
        return await self._invocations.run(request)

    async def spawn(self, job: BackgroundJob) -> None:
        """Refuse: nothing outlives an invocation."""
        del job
        raise FeatureUnsupported(NO_JOBS)

    async def report(self, job_id: str) -> JobReport:
        """Refuse: there are no jobs."""
        del job_id
        raise FeatureUnsupported(NO_JOBS)

    async def stop(self, job_id: str) -> None:
        """Refuse: there are no jobs."""
        del job_id
        raise FeatureUnsupported(NO_JOBS)

    async def read(self, path: str, *, limit: int) -> bytes:
        """Read a workspace file."""
        self._check_files()
        return await self._files.read(path, limit=limit)

    async def write(self, path: str, content: bytes) -> None:
        """Write a workspace file durably."""
        if self._spec.read_only:
            raise PermissionError(f"{path}: the workspace is read-only")
        self._check_files()
        await self._files.write(path, content)

    def _check_files(self) -> None:
        if not self._request.directory:
            raise ProviderRefused("a sandbox on lambda without a workspace keeps no files: add a workspace")

    async def suspend(self) -> None:
        """Refuse: there is nothing between two invocations."""
        raise FeatureUnsupported("a sandbox on lambda runs only during a call, so it is not suspended")

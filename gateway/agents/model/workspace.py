"""Adapt a sandbox to the agent library's workspace: run commands, and access files through commands.

A command leaves no processes behind. The library's rules about detached processes therefore do not apply;
background jobs replace them.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from pydantic_ai.workspaces import (
    CommandResult,
    SupportsCommands,
    WorkspaceBackend,
    WorkspaceCommand,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from sandbox.errors import ProviderRefused, ProviderUnreachable, SandboxGone
from sandbox.exec.shielded import shielded
from sandbox.model import OUTPUT_CAP, ExecRequest, ExecResult, SandboxId, SandboxSpec
from sandbox.port import Provider, Sandbox

NO_TIMEOUT_SECONDS = 7 * 86400.0
SIGNAL_EXIT_BASE = 128


class SandboxWorkspace(WorkspaceBackend, SupportsCommands):
    """One sandbox of a provider, created on first use, or the one that `ref` names."""

    def __init__(
        self, name: str, provider: Provider, spec: SandboxSpec, ref: WorkspaceRef | None = None
    ) -> None:
        self._name = name
        self._provider = provider
        self._spec = spec
        self._ref = ref
        self._create_lock = asyncio.Lock()

    @property
    def ref(self) -> WorkspaceRef | None:
        """The sandbox's identity, or None before its first use."""
        return self._ref

    async def working_dir(self) -> str:
        """Return where commands start."""
        await self._connect()
        return self._spec.mount

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command to its end; raises the errors that the library specifies."""
        script = _script(command, shell=shell)
        limit = NO_TIMEOUT_SECONDS if timeout is None else timeout
        if not 0 < limit <= NO_TIMEOUT_SECONDS:
            raise ValueError("timeout must be a positive finite number or None")
        with _translate_gone():
            sandbox = await self._connect(env or {})
            result = await self._run_script(sandbox, script, limit)
            if result.exit_code >= SIGNAL_EXIT_BASE and not result.timed_out:
                await self._connect()  # killed in a running sandbox, or together with it
        stdout, stderr = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
        if result.timed_out:
            raise WorkspaceTimeoutError(f"timed out after {limit:g} seconds", stdout=stdout, stderr=stderr)
        if result.stdout_truncated or result.stderr_truncated:
            said = f"the command printed more than {OUTPUT_CAP} bytes"
            raise WorkspaceOutputLimitError(said, limit=OUTPUT_CAP, stdout=stdout, stderr=stderr)
        return CommandResult(exit_code=result.exit_code, stdout=stdout, stderr=stderr)

    async def _run_script(self, sandbox: Sandbox, script: str, limit: float) -> ExecResult:
        """Run a script; a script that was cut off is reported when the sandbox is gone."""
        try:
            return await sandbox.run(ExecRequest(script=script, timeout=limit, output_limit=OUTPUT_CAP))
        except (ProviderUnreachable, ProviderRefused):
            await self._connect()
            raise

    async def _connect(self, extra_env: Mapping[str, str] | None = None) -> Sandbox:
        """Return the sandbox with further variables; creates it once, even if a caller is cancelled."""
        with _translate_gone():
            async with self._create_lock:
                if self._ref is None:
                    await shielded(self._create())
            known = self._ref
            if known is None:
                raise SandboxGone
            spec = replace(self._spec, env={**self._spec.env, **(extra_env or {})})
            return await self._provider.connect(SandboxId(known.id), spec)

    async def _create(self) -> None:
        made = await self._provider.create(self._spec)
        self._ref = WorkspaceRef(provider=self._name, id=str(made.id))


def _script(command: WorkspaceCommand, *, shell: bool) -> str:
    if isinstance(command, str) != shell:
        raise TypeError("a string needs shell=True, a sequence of words shell=False")
    return command if isinstance(command, str) else shlex.join(command)


@contextmanager
def _translate_gone() -> Iterator[None]:
    try:
        yield
    except SandboxGone as error:
        raise WorkspaceUnavailableError(str(error)) from error

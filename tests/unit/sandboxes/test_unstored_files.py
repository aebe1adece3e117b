"""Calls whose files the workspace store does not take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pool_harness import REQUEST, PoolHarness
from sandbox.errors import CommandInterrupted, FilesNotStored, ProviderUnreachable, SandboxError, SandboxGone
from sandbox.lifecycle.pool import Pool
from sandbox.lifecycle.reserved_sandbox import ReservedSandbox
from sandbox.model import BackgroundJob, BackgroundJobState, ExecRequest, ExecResult, SandboxSpec
from sandbox.port import Sandbox
from sandbox.workspaces.baselines import LocalBaselineStore
from sandbox.workspaces.directory_store import DirectoryWorkspaceStore
from sandbox.workspaces.syncer import WorkspaceSync


class FullStore(WorkspaceSync):
    """A workspace store that takes no files after a call."""

    async def sync(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Do nothing."""

    error: SandboxError = ProviderUnreachable("the store is full")

    async def push(self, spec: SandboxSpec) -> None:
        """Refuse the files of a call."""
        raise self.error


async def test_a_call_whose_files_cannot_be_stored_was_carried_out(tmp_path: Path) -> None:
    """The error has the result and says not to repeat the call; a job that has begun is no error."""
    harness = PoolHarness()
    full = FullStore(DirectoryWorkspaceStore(tmp_path), LocalBaselineStore(tmp_path / "baselines"), limit=1)
    sandbox = ReservedSandbox(Pool(replace(harness.backend(), workspace_sync=full)), REQUEST)
    with pytest.raises(FilesNotStored, match=r"do not repeat it.*is full") as caught:
        await sandbox.run(ExecRequest(script="echo once", timeout=1, output_limit=1000))
    assert isinstance(caught.value.done, ExecResult)
    assert caught.value.done.stdout == b"once\n"
    assert caught.value.to_answer() == str(caught.value)
    await sandbox.spawn(BackgroundJob(id="job_1", script="sleep 1", token="t"))
    assert (await sandbox.report("job_1")).state == BackgroundJobState.RUNNING


async def test_a_command_is_not_repeated_for_its_files(tmp_path: Path) -> None:
    """A sandbox that is gone when its files are to be stored has run the command."""
    harness = PoolHarness()
    full = FullStore(DirectoryWorkspaceStore(tmp_path), LocalBaselineStore(tmp_path / "baselines"), limit=1)
    full.error = SandboxGone()
    sandbox = ReservedSandbox(Pool(replace(harness.backend(), workspace_sync=full)), REQUEST)
    with pytest.raises(CommandInterrupted):
        await sandbox.run(ExecRequest(script="true", timeout=1, output_limit=1000))
    assert harness.provider.created_count == 1

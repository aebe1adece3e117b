"""How a job's end is named, and how it is reported to a model."""

from __future__ import annotations

from gateway.store.job_state import REASON_TEXTS, JobReason, JobState, job_end, render_result
from sandbox.lifecycle.reaper import SandboxEnd


def test_an_end_for_a_reason_is_a_failure_that_names_it() -> None:
    """A clean exit of one that was ended for a reason is no success; who was asked to stop has stopped."""
    assert job_end(0, b"").state is JobState.COMPLETED
    assert job_end(143, b"").state is JobState.FAILED
    full = job_end(0, b"out", reason=JobReason.WORKSPACE_FULL)
    assert (full.state, full.reason, full.exit_code) == (JobState.FAILED, JobReason.WORKSPACE_FULL, 0)
    assert job_end(143, b"", stopping=True, reason=JobReason.SANDBOX_EXPIRED).state is JobState.STOPPED


def test_every_reason_is_explained() -> None:
    """A person in a chat reads words, and not the name alone."""
    assert set(REASON_TEXTS) == set(JobReason)
    assert {JobReason(end) for end in SandboxEnd} < set(JobReason)


def test_a_model_gets_the_reason_and_the_remedy() -> None:
    """The text has the reason and the exit code."""
    words = render_result(job_end(143, b"out\n", reason=JobReason.WORKSPACE_FULL), "make", "job_1")
    assert words.startswith("Job job_1 `make` failed, workspace_full: the workspace exceeded its quota")
    assert "exit code 143" in words


def test_a_reason_of_another_version_is_none() -> None:
    """A list of jobs must not fail because a newer replica stored a reason that this one lacks."""
    assert [JobReason.parse(reason) for reason in JobReason] == list(JobReason)
    assert (JobReason.parse(None), JobReason.parse("sandbox_of_a_later_version")) == (None, None)

"""How a job's end is named, and how it is reported to a model."""

from __future__ import annotations

from gateway.store.job_state import WORKSPACE_FULL, JobState, job_end, render_result


def test_an_end_for_a_reason_is_a_failure_that_names_it() -> None:
    """A clean exit of one that was ended for a reason is no success; who was asked to stop has stopped."""
    assert job_end(0, b"").state is JobState.COMPLETED
    assert job_end(143, b"").state is JobState.FAILED
    full = job_end(0, b"out", reason=WORKSPACE_FULL)
    assert (full.state, full.reason, full.exit_code) == (JobState.FAILED, WORKSPACE_FULL, 0)
    assert job_end(143, b"", stopping=True, reason="sandbox_expired").state is JobState.STOPPED


def test_a_model_gets_the_reason_and_the_remedy() -> None:
    """The text has the reason and the exit code."""
    words = render_result(job_end(143, b"out\n", reason=WORKSPACE_FULL), "make", "job_1")
    assert words.startswith("Job job_1 `make` failed, workspace_full: the workspace exceeded its quota")
    assert "exit code 143" in words

"""The states of a background job (pure).

            a             b
   (new) ─────▶ running ─────▶ completed    exit code 0
                  │ │ │ c
                  │ │ └──────▶ failed       another end: exit code, signal, time-out, recreation
                  │ │ d
                  │ └────────▶ stopped      a stop was requested
                  │ e
                  └──────────▶ lost         the provider did not answer for 24 hours

The first of callback, reconciler, async_status and stop that learns of the end settles the job; later
ones change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from delivery.events.event import EventType
from sandbox.model import OUTPUT_CAP


class JobState(StrEnum):
    """The states of a job."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"


EVENT_KINDS = {
    JobState.COMPLETED: EventType.JOB_COMPLETED,
    JobState.FAILED: EventType.JOB_FAILED,
    JobState.STOPPED: EventType.JOB_STOPPED,
    JobState.LOST: EventType.JOB_LOST,
}

LOST_AFTER = 24 * 3600.0
"""Seconds without an answer from the provider after which a job is lost."""


class JobReason(StrEnum):
    """A cause outside a job's command that ended it. Jobs that are tool calls have no exit code."""

    WORKSPACE_FULL = "workspace_full"
    SANDBOX_EXPIRED = "sandbox_expired"
    SANDBOX_RECREATED = "sandbox_recreated"
    SANDBOX_REMOVED = "sandbox_removed"
    SANDBOX_PROVIDER_REMOVED = "sandbox_provider_removed"
    NEVER_STARTED = "never_started"
    END_UNRECORDED = "end_unrecorded"
    CALL_FAILED = "call_failed"
    CALL_STOPPED = "call_stopped"
    OUTCOME_UNKNOWN = "outcome_unknown"
    PROVIDER_UNREACHABLE = "provider_unreachable"

    @classmethod
    def parse(cls, stored: str | None) -> JobReason | None:
        """Return a stored reason; None for none, and for one that only another version has."""
        return next((one for one in cls if one == stored), None)


REASON_TEXTS: Mapping[str, str] = {
    JobReason.WORKSPACE_FULL: (
        "workspace_full: the workspace exceeded its quota; remove files before you continue"
    ),
    JobReason.SANDBOX_EXPIRED: "sandbox_expired: the sandbox reached its maximum lifetime",
    JobReason.SANDBOX_RECREATED: "sandbox_recreated: its sandbox was restarted or replaced while it ran",
    JobReason.SANDBOX_REMOVED: "sandbox_removed: its sandbox was deleted",
    JobReason.SANDBOX_PROVIDER_REMOVED: (
        "sandbox_provider_removed: the gateway no longer has the provider of its sandbox"
    ),
    JobReason.PROVIDER_UNREACHABLE: (
        "provider_unreachable: the provider of its sandbox did not answer for a day"
    ),
    JobReason.NEVER_STARTED: "never_started: it was not started in time",
    JobReason.END_UNRECORDED: (
        "end_unrecorded: its processes are gone and nothing recorded how they ended, as after a kill from "
        "outside, or when the gateway's data was restored from a copy of the time while it ran"
    ),
    JobReason.CALL_FAILED: "the call failed",
    JobReason.CALL_STOPPED: "the call was cancelled; it may have had an effect",
    JobReason.OUTCOME_UNKNOWN: "outcome_unknown: the gateway ended while the call was in flight",
}
"""Explanations of all reasons, for people and models."""

MAX_RUNNING = 10
"""Jobs one sandbox may run at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How a job ended; `reason` is a JobReason, or one that an earlier version stored."""

    state: JobState
    exit_code: int | None = None
    output: str = ""
    truncated: bool = False
    reason: str | None = None


def job_end(
    exit_code: int,
    output: bytes,
    *,
    truncated: bool = False,
    stopping: bool = False,
    reason: str | None = None,
) -> JobEnd:
    """Return the end of a job by exit code and reason; the last bytes of the output are kept as text."""
    cut = truncated or len(output) > OUTPUT_CAP
    text = output[-OUTPUT_CAP:].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    went_well = exit_code == 0 and reason is None
    by_itself = JobState.COMPLETED if went_well else JobState.FAILED
    state = JobState.STOPPED if stopping else by_itself
    return JobEnd(state=state, exit_code=exit_code, output=text, truncated=cut, reason=reason)


def render_result(end: JobEnd, command: str, result_id: str) -> str:
    """Return the input of the follow-up turn: the job's end and its output."""
    code = f"exit code {end.exit_code}" if end.exit_code is not None else ""
    reason = REASON_TEXTS.get(end.reason or "", end.reason)
    how = ", ".join(filter(None, (str(end.state), reason, code)))
    cut = " (only its end is shown)" if end.truncated else ""
    output = end.output.rstrip("\n") or "(no output)"
    return f"Job {result_id} `{command}` {how}{cut}:\n\n```\n{output}\n```"

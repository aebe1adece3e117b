"""The one message of a job in a chat: what runs and for how long, changed until the job has ended (pure).

A job that ends within `job_progress_after` seconds has none. The message is not sent where the platform
cannot edit messages: there the agent's answers alone report the job. The job's result is a message of its
own, which notifies people; this one never holds it up.
"""

from __future__ import annotations

import math

from delivery.deliveries.part import Part
from delivery.events.event import Event, EventType

JOB_STATES = {
    EventType.JOB_PROGRESS: "running",
    EventType.JOB_COMPLETED: "completed",
    EventType.JOB_FAILED: "failed",
    EventType.JOB_STOPPED: "stopped",
    EventType.JOB_LOST: "lost",
}

MAX_COMMAND = 200
"""Characters of the command that the message shows."""

MAX_LINE = 200
"""Characters of the last line of output that the message shows."""

_MINUTE, _HOUR = 60, 3600


def render_job(event: Event) -> Part | None:
    """Return the message of a job that runs, or has run, for some time; None for a job that has none."""
    shown = event.data.get("replaces")
    is_running = event.type is EventType.JOB_PROGRESS
    if not is_running and not isinstance(shown, str):
        return None
    state = JOB_STATES[event.type]
    duration = render_seconds(float(event.data.get("seconds") or 0))
    how = f"has been running for {duration}" if is_running else f"{state} after {duration}{_end(event)}"
    lines = [f"Job `{_one_line(str(event.data['command']), MAX_COMMAND)}` {how}."]
    last = _one_line(str(event.data.get("output") or "").rstrip().rpartition("\n")[2], MAX_LINE)
    if is_running and last:
        lines.append(f"`{last}`")
    if is_running:
        lines.append(f"`/jobs stop {event.data['resultId']}` stops it.")
    return Part(
        text="\n\n".join(lines),
        edits=shown if isinstance(shown, str) else None,
        only_edit=isinstance(shown, str),
        needs_edits=True,
    )


def render_seconds(seconds: float) -> str:
    """Return a duration as people read it: `45 s`, `12 min`, `3 h 5 min`."""
    whole = math.floor(max(0.0, min(seconds, 1e9)))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def _end(event: Event) -> str:
    code = event.data.get("exit_code")
    reason = event.data.get("reason")
    notes = [str(reason)] if reason else []
    if code is not None:
        notes.append(f"exit code {code}")
    return f" ({', '.join(notes)})" if notes else ""


def _one_line(text: str, most: int) -> str:
    line = " ".join(text.replace("`", "'").split())
    return line if len(line) <= most else f"{line[: most - 1]}…"

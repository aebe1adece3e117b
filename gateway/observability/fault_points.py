"""Fault points: named places where a test can have the process killed, as kill -9 would."""

from __future__ import annotations

import os
import signal

FAULT_POINTS = (
    "intake.submit.before_commit",
    "intake.submit.after_commit",
    "schedule.fire.before_commit",
    "schedule.fire.after_commit",
    "reception.before_commit",
    "reception.after_commit",
    "relay.before_append",
    "relay.after_append",
    "turn.claim.before_commit",
    "turn.claim.after_commit",
    "step.begin.before_commit",
    "step.begin.after_commit",
    "step.end.before_commit",
    "step.end.after_commit",
    "turn.save.before_commit",
    "turn.save.after_commit",
    "turn.hear.before_commit",
    "turn.hear.after_commit",
    "turn.pause.before_commit",
    "turn.pause.after_commit",
    "turn.settle.before_commit",
    "turn.settle.after_commit",
    "turn.release.before_commit",
    "turn.release.after_commit",
    "approval.decide.before_commit",
    "approval.decide.after_commit",
    "file.kept",
    "file.stage.before_commit",
    "file.stage.after_commit",
    "file.fetched",
    "file.written",
    "file.arrive.before_commit",
    "file.arrive.after_commit",
    "file.note.before_commit",
    "file.note.after_commit",
    "job.start.before_commit",
    "job.start.after_commit",
    "job.record_call.before_commit",
    "job.record_call.after_commit",
    "job.progress.before_commit",
    "job.progress.after_commit",
    "job.before_spawn",
    "job.after_spawn",
    "sandbox.create",
    "sandbox.reserve.before_commit",
    "sandbox.reserve.after_commit",
    "sandbox.acquire.before_create",
    "sandbox.acquire.after_create",
    "sandbox.acquire.after_restore",
    "sandbox.record.before_commit",
    "sandbox.record.after_commit",
    "sandbox.remake.before_commit",
    "sandbox.remake.after_commit",
    "sandbox.wake.before_commit",
    "sandbox.wake.after_commit",
    "sandbox.snapshot.before",
    "sandbox.snapshot.after_put",
    "sandbox.snapshot.before_commit",
    "sandbox.snapshot.after_commit",
    "sandbox.suspend.before",
    "sandbox.suspend.after",
    "sandbox.suspend.before_commit",
    "sandbox.suspend.after_commit",
    "sandbox.end.before_commit",
    "sandbox.end.after_commit",
    "sandbox.delete.before_commit",
    "sandbox.delete.after_commit",
    "sandbox.delete.after_destroy",
    "workspace.carry.before_store",
    "workspace.carry.after_store",
    "sandbox.spawn.before",
    "sandbox.spawn.after",
    "job.settle.before_commit",
    "job.settle.after_commit",
    "delivery.claim.before_commit",
    "delivery.claim.after_commit",
    "delivery.before_send",
    "delivery.after_send",
    "delivery.noted",
    "delivery.settle.before_commit",
    "delivery.settle.after_commit",
    "delivery.recover.before_commit",
    "delivery.recover.after_commit",
    "delivery.suppress.before_commit",
    "delivery.suppress.after_commit",
    "turn.cancel.before_commit",
    "turn.cancel.after_commit",
)
"""Every step between an incoming message and the recorded delivery of its result."""


class UnknownFaultPoint(ValueError):
    """There is no fault point of this name."""


class FaultPoints:
    """Kills this process with SIGKILL at the chosen point (`NAME`, or `NAME:3` for the third time)."""

    def __init__(self, chosen: str | None) -> None:
        name, _, count = (chosen or "").partition(":")
        if name and name not in FAULT_POINTS:
            raise UnknownFaultPoint(f"no fault point {name!r}; there are: {', '.join(FAULT_POINTS)}")
        self._name = name
        self._remaining = int(count or 1)

    def checkpoint(self, name: str) -> None:
        """Pass a fault point."""
        if name != self._name:
            return
        self._remaining -= 1
        if self._remaining <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

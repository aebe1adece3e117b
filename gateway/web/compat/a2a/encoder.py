"""Shapes of A2A: tasks, and the events of their streams, in the versions 1.0 and 0.3.

In both, each message of the agent is an artifact with the message's id, to which pieces of its text are
appended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from delivery.database.clock import utc_now
from delivery.events.event import rfc3339
from gateway.store.conversations.messages import ChatMessageRow
from gateway.store.turn_state import TurnState
from gateway.web.compat.a2a.tasks import TaskSnapshot
from gateway.web.compat.client_calls import AnswerEvent
from gateway.web.stream.turn_events import TextDelta, TurnDelayed, TurnQueued, with_files

Shape = dict[str, Any]

_STATES = {
    TurnState.QUEUED: "submitted",
    TurnState.RUNNING: "working",
    TurnState.WAITING: "input-required",
    TurnState.COMPLETED: "completed",
    TurnState.FAILED: "failed",
    TurnState.CANCELLED: "canceled",
}


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The shapes of one version; `legacy` is 0.3."""

    legacy: bool

    def task(self, task: TaskSnapshot, *, history: int | None = None, artifacts: bool = True) -> Shape:
        """Return a task with the last messages of its history, by default all."""
        shape: Shape = {
            "id": task.turn.id,
            "contextId": task.context,
            "status": self.status(task),
            **({"kind": "task"} if self.legacy else {}),
        }
        if artifacts:
            shape["artifacts"] = [self._artifact(one) for one in task.replies]
        asked = [self._message(task, "user", one.id, one.text) for one in task.asked]
        shape["history"] = asked if history is None else asked[max(0, len(asked) - history) :]
        return shape

    def status(self, task: TaskSnapshot) -> Shape:
        """Return the status of a task, with the question it waits for or the error it ended with."""
        turn = task.answers
        text = turn.error if turn.state is TurnState.FAILED else task.question
        shape: Shape = {"state": self.state(turn.state), "timestamp": rfc3339(task.status_since)}
        if text:
            shape["message"] = self._message(task, "agent", f"{turn.id}.status", text)
        return shape

    def task_event(self, task: TaskSnapshot) -> Shape:
        """Return the event that begins a stream; the artifacts follow as events."""
        shape = self.task(task, artifacts=False)
        return shape if self.legacy else {"task": shape}

    def status_event(self, task: TaskSnapshot, *, final: bool) -> Shape:
        """Return the event of a changed status; `final` ends the stream."""
        shape = {"taskId": task.turn.id, "contextId": task.context, "status": self.status(task)}
        return self._event("status-update", "statusUpdate", shape, {"final": final})

    def working_event(self, task: TaskSnapshot, now: datetime, *, text: str = "", number: int = 0) -> Shape:
        """Return the event of an agent that works on the task; `text` says what takes long.

        `number` differs between the texts of a task: it is part of the message's id.
        """
        status: Shape = {"state": self.state(TurnState.RUNNING), "timestamp": rfc3339(now)}
        if text:
            status["message"] = self._message(task, "agent", f"{task.turn.id}.status.{number}", text)
        shape = {"taskId": task.turn.id, "contextId": task.context, "status": status}
        return self._event("status-update", "statusUpdate", shape, {"final": False})

    def artifact_event(
        self, task: TaskSnapshot, artifact: str, parts: list[Shape], *, append: bool, last: bool = False
    ) -> Shape:
        """Return the event that begins an artifact or appends to it."""
        shape = {
            "taskId": task.turn.id,
            "contextId": task.context,
            "artifact": {"artifactId": artifact, "parts": parts},
            "append": append,
            "lastChunk": last,
        }
        return self._event("artifact-update", "artifactUpdate", shape, {})

    def text_part(self, text: str) -> Shape:
        """Return a text as a part."""
        return {"kind": "text", "text": text} if self.legacy else {"text": text}

    def file_parts(self, files: Iterable[Mapping[str, Any]]) -> list[Shape]:
        """Return the files of a message as parts."""
        return [self._file_part(file) for file in files if file.get("url")]

    def _file_part(self, file: Mapping[str, Any]) -> Shape:
        if self.legacy:
            about = {"uri": file["url"], "name": file["name"], "mimeType": file.get("type") or ""}
            return {"kind": "file", "file": about}
        return {"url": file["url"], "filename": file["name"], "mediaType": file.get("type") or ""}

    def _artifact(self, reply: ChatMessageRow) -> Shape:
        text = self.text_part(with_files(reply.text, reply.attachments))
        return {"artifactId": reply.id, "parts": [text, *self.file_parts(reply.attachments)]}

    def _message(self, task: TaskSnapshot, role: str, identity: str, text: str) -> Shape:
        about = {"messageId": identity, "taskId": task.turn.id, "contextId": task.context}
        parts = [self.text_part(text)]
        if self.legacy:
            return {"kind": "message", "role": role, "parts": parts, **about}
        return {"role": f"ROLE_{role.upper()}", "parts": parts, **about}

    def state(self, state: TurnState) -> str:
        """Return the name of a state."""
        name = _STATES[state]
        return name if self.legacy else f"TASK_STATE_{name.replace('-', '_').upper()}"

    def _event(self, kind: str, name: str, shape: Shape, legacy_fields: Shape) -> Shape:
        return {"kind": kind, **shape, **legacy_fields} if self.legacy else {name: shape}


class StreamEncoder:
    """Encodes the events of one task's stream."""

    def __init__(self, wire: WireFormat, task: TaskSnapshot) -> None:
        self._wire = wire
        self._task = task
        self._working = False
        self._begun: set[str] = set()

    def encode(self, event: AnswerEvent) -> Iterator[Shape]:
        """Yield the events for a turn event."""
        if not self._working and not isinstance(event, TurnQueued):
            self._working = True
            yield self._wire.working_event(self._task, utc_now())
        if isinstance(event, TurnDelayed):
            yield self._wire.working_event(self._task, utc_now(), text=event.text, number=event.seq)
        elif isinstance(event, TextDelta):
            parts = [self._wire.text_part(event.text)]
            begun = event.message in self._begun
            self._begun.add(event.message)
            yield self._wire.artifact_event(self._task, event.message, parts, append=begun)

    def end(self, task: TaskSnapshot) -> Iterator[Shape]:
        """Yield the files of the agent's messages, and the status with which the stream ends."""
        for reply in task.replies:
            if parts := self._wire.file_parts(reply.attachments):
                begun = reply.id in self._begun
                yield self._wire.artifact_event(task, reply.id, parts, append=begun, last=True)
        yield self._wire.status_event(task, final=True)

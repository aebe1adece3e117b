"""Spans as values; their ids follow from durable ids, so that each process makes the same ones.

    message ── wait
            ├─ turn (each attempt) ─┬ tool
            │                       └ chat (each request to the model)
            ├─ deliver (each attempt)
            └─ job ── message of the follow-up turn ── …

The trace's id follows from the turn that a person's message began; a job's follow-up turn belongs to it.
A request with `traceparent` continues the caller's trace instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from delivery.deliveries.queries import AttemptView, DeliveryView
from delivery.events.event import TURN_ENDS, Event, EventType
from gateway.store.turns.jobs import Job
from gateway.store.turns.lineage import Lineage
from gateway.store.turns.turn_steps import StepRow
from gateway.store.turns.turns import Turn

STARTS = frozenset({EventType.TURN_STARTED, EventType.TURN_RESTARTED})
INTERRUPTED = "the process died, or gave the turn back"

Attributes = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequestTiming:
    """An attempt's nth request to its model."""

    turn: str
    attempt: int
    number: int
    model: str
    started_at: datetime
    ended_at: datetime
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span: name, time, parent and attributes; `error` is the reason of a failure."""

    trace: bytes
    id: bytes
    parent: bytes | None
    name: str
    kind: Literal["internal", "consumer", "client"] = "internal"
    started_at: datetime
    ended_at: datetime
    attributes: Attributes = field(default_factory=dict)
    error: str | None = None


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\x1f".join(parts).encode()).digest()


def span_id(*parts: str) -> bytes:
    """Return the 8 bytes that name a span."""
    return _digest(*parts)[:8]


def trace_id(lineage: Lineage) -> bytes:
    """Return the 16 bytes that name the trace: the caller's, else one of the chain's own."""
    if lineage.traceparent is not None:
        return bytes.fromhex(lineage.traceparent.split("-")[1])
    return _digest(lineage.root)[:16]


def _parent_of_message(lineage: Lineage) -> bytes | None:
    """Return the span that led to a turn: the job that it follows, or the caller's span."""
    if lineage.job:
        return span_id("job", lineage.job)
    if lineage.traceparent is not None and lineage.turn == lineage.root:
        return bytes.fromhex(lineage.traceparent.split("-")[2])
    return None


def message_span_id(lineage: Lineage) -> bytes:
    """Return the parent span of a turn's other spans."""
    return span_id("message", lineage.turn)


def turn_span_id(turn: str, attempt: int) -> bytes:
    """Return the span of one attempt at a turn."""
    return span_id("turn", turn, str(attempt))


def attempt_span_id(delivery: str, number: int) -> bytes:
    """Return the span of one attempt at a delivery."""
    return span_id("deliver", delivery, str(number))


def turn_spans(
    lineage: Lineage, turn: Turn, events: Sequence[Event], steps: Iterable[StepRow], now: datetime
) -> list[Span]:
    """Return a turn's acceptance, wait, attempts and tool calls; `events` are in order."""
    about: dict[str, str | int | bool] = {
        "dovecote.turn": turn.id,
        "dovecote.conversation": turn.conversation,
        "dovecote.trigger": turn.trigger,
    }
    begun = min((event.time for event in events), default=turn.created_at)
    accepted = Span(
        trace=trace_id(lineage),
        id=message_span_id(lineage),
        parent=_parent_of_message(lineage),
        name="message" if lineage.job is None else "job's end",
        kind="consumer",
        started_at=min(turn.created_at, begun),
        ended_at=max(turn.created_at, begun),
        attributes=about,
    )
    attempts = _attempt_spans(lineage, turn, events, about, now)
    wait = replace(
        accepted,
        id=span_id("wait", turn.id),
        parent=message_span_id(lineage),
        name="wait",
        kind="internal",
        started_at=accepted.ended_at,
        ended_at=max(attempts[0].started_at if attempts else now, accepted.ended_at),
    )
    return [accepted, wait, *attempts, *(_tool_span(lineage, turn, step, attempts, now) for step in steps)]


def _attempt_spans(
    lineage: Lineage, turn: Turn, events: Sequence[Event], attributes: Attributes, now: datetime
) -> list[Span]:
    marks = [event for event in events if event.type in STARTS | TURN_ENDS]
    spans = []
    for place, event in enumerate(marks):
        if event.type in TURN_ENDS:
            continue
        number = int(event.data.get("attempt", 0))
        after = marks[place + 1] if place + 1 < len(marks) else None
        spans.append(
            Span(
                trace=trace_id(lineage),
                id=turn_span_id(turn.id, number),
                parent=message_span_id(lineage),
                name="turn",
                started_at=event.time,
                ended_at=after.time if after else now,
                attributes={**attributes, "dovecote.attempt": number, **_outcome_attributes(turn, after)},
                error=_attempt_error(after),
            )
        )
    return spans


def _outcome_attributes(turn: Turn, after: Event | None) -> Attributes:
    """Return the result of the last attempt, with its model usage."""
    if after is None or after.type not in TURN_ENDS:
        return {}
    used = {name: value for name, value in (turn.usage or {}).items() if isinstance(value, str | int)}
    return {"dovecote.state": str(turn.state), **{f"dovecote.usage.{name}": used[name] for name in used}}


def _attempt_error(after: Event | None) -> str | None:
    if after is None or after.type in STARTS:
        return INTERRUPTED
    return str(after.data.get("error", "failed"))[:200] if after.type is EventType.TURN_FAILED else None


def _tool_span(lineage: Lineage, turn: Turn, step: StepRow, attempts: Sequence[Span], now: datetime) -> Span:
    """Return a tool call below its attempt; arguments and output are not exported."""
    during = [one for one in attempts if one.started_at <= step.started_at]
    ok = bool(step.result and step.result.get("ok"))
    return Span(
        trace=trace_id(lineage),
        id=span_id("tool", turn.id, step.step_key),
        parent=during[-1].id if during else message_span_id(lineage),
        name=f"tool {step.tool}"[:80],
        started_at=step.started_at,
        ended_at=step.finished_at or now,
        attributes={"dovecote.turn": turn.id, "dovecote.tool": step.tool, "dovecote.ok": ok},
        error=None if step.finished_at else INTERRUPTED,
    )


def request_span(lineage: Lineage, request: ModelRequestTiming) -> Span:
    """Return a request to a model, below the attempt that sent it, as the conventions for models name it."""
    return Span(
        trace=trace_id(lineage),
        id=span_id("model", request.turn, str(request.attempt), str(request.number)),
        parent=turn_span_id(request.turn, request.attempt),
        name=f"chat {request.model}"[:80],
        kind="client",
        started_at=request.started_at,
        ended_at=request.ended_at,
        attributes={
            "dovecote.turn": request.turn,
            "dovecote.attempt": request.attempt,
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": request.model,
        },
        error=request.error,
    )


def job_span(lineage: Lineage, job: Job, now: datetime) -> Span:
    """Return a job's span, below the turn that started it."""
    return Span(
        trace=trace_id(lineage),
        id=span_id("job", job.id),
        parent=message_span_id(lineage),
        name="job",
        started_at=job.created_at,
        ended_at=job.finished_at or now,
        attributes={
            "dovecote.job": job.id,
            "dovecote.conversation": job.conversation,
            "dovecote.provider": job.provider,
            "dovecote.state": str(job.state),
        },
        error=job.reason,
    )


def delivery_spans(
    lineage: Lineage, delivery: DeliveryView, attempts: Iterable[AttemptView], now: datetime
) -> list[Span]:
    """Return the attempts at a delivery; one that a crash interrupted ends when the next starts."""
    listed = list(attempts)
    ends = [*(one.started_at for one in listed[1:]), now]
    return [
        Span(
            trace=trace_id(lineage),
            id=attempt_span_id(delivery.id, one.number),
            parent=message_span_id(lineage),
            name=f"deliver {delivery.kind}",
            kind="client",
            started_at=one.started_at,
            ended_at=_ended_at(one) or end,
            attributes={
                "dovecote.delivery": delivery.id,
                "dovecote.event": delivery.event_id,
                "dovecote.attempt": one.number,
                "dovecote.outcome": one.outcome or "cut off",
                "dovecote.platform_id": delivery.platform_id or "",
            },
            error=None if one.outcome == "delivered" else (one.detail or one.outcome or INTERRUPTED)[:200],
        )
        for one, end in zip(listed, ends, strict=True)
    ]


def _ended_at(one: AttemptView) -> datetime | None:
    return None if one.duration_ms is None else one.started_at + timedelta(milliseconds=one.duration_ms)

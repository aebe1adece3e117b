"""Spans as values; their ids follow from durable ids, so that whoever makes one makes the same.

    message ── wait
            ├─ turn (each attempt) ─┬ tool
            │                       └ chat (each request to the model)
            ├─ deliver (each attempt)
            └─ job ── message of the follow-up turn ── …

The trace's id follows from the turn that a person's message began; a job's follow-up turn belongs to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from delivery.deliveries.queries import Standing, Tried
from delivery.events.event import Event, Kind
from gateway.store.turns.jobs import Job
from gateway.store.turns.lineage import Lineage
from gateway.store.turns.turns import StepRow, Turn

STARTS = frozenset({Kind.TURN_STARTED, Kind.TURN_RESTARTED})
ENDS = frozenset({Kind.TURN_COMPLETED, Kind.TURN_FAILED, Kind.TURN_CANCELLED})
CUT_OFF = "the process died, or gave the turn back"

Words = Mapping[str, str | int | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An attempt's nth request to its model."""

    turn: str
    attempt: int
    number: int
    model: str
    begun: datetime
    ended: datetime
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took time, below what caused it; `failed` says why it did not work."""

    trace: bytes
    id: bytes
    parent: bytes | None
    name: str
    kind: Literal["internal", "consumer", "client"] = "internal"
    begun: datetime
    ended: datetime
    about: Words = field(default_factory=dict)
    failed: str | None = None


def _digest(*parts: str) -> bytes:
    return hashlib.sha256("\x1f".join(parts).encode()).digest()


def span_id(*parts: str) -> bytes:
    """Return the 8 bytes that name a span."""
    return _digest(*parts)[:8]


def trace_id(lineage: Lineage) -> bytes:
    """Return the 16 bytes that name the trace."""
    return _digest(lineage.root)[:16]


def message_id(lineage: Lineage) -> bytes:
    """Return the span below which a turn's others stand."""
    return span_id("message", lineage.turn)


def turn_id(turn: str, attempt: int) -> bytes:
    """Return the span of one attempt at a turn."""
    return span_id("turn", turn, str(attempt))


def attempt_id(delivery: str, number: int) -> bytes:
    """Return the span of one attempt at a delivery."""
    return span_id("deliver", delivery, str(number))


def of_turn(
    lineage: Lineage, turn: Turn, told: Sequence[Event], steps: Iterable[StepRow], now: datetime
) -> list[Span]:
    """Return a turn's acceptance, wait, attempts and tool calls; `told` are its events, in order."""
    about: dict[str, str | int | bool] = {
        "dovecote.turn": turn.id,
        "dovecote.conversation": turn.conversation,
        "dovecote.trigger": turn.trigger,
    }
    begun = min((event.time for event in told), default=turn.created_at)
    accepted = Span(
        trace=trace_id(lineage),
        id=message_id(lineage),
        parent=span_id("job", lineage.job) if lineage.job else None,
        name="message" if lineage.job is None else "job's end",
        kind="consumer",
        begun=min(turn.created_at, begun),
        ended=max(turn.created_at, begun),
        about=about,
    )
    attempts = _attempts(lineage, turn, told, about, now)
    wait = replace(
        accepted,
        id=span_id("wait", turn.id),
        parent=message_id(lineage),
        name="wait",
        kind="internal",
        begun=accepted.ended,
        ended=max(attempts[0].begun if attempts else now, accepted.ended),
    )
    return [accepted, wait, *attempts, *(_tool(lineage, turn, step, attempts, now) for step in steps)]


def _attempts(lineage: Lineage, turn: Turn, told: Sequence[Event], about: Words, now: datetime) -> list[Span]:
    marks = [event for event in told if event.type in STARTS | ENDS]
    spans = []
    for place, event in enumerate(marks):
        if event.type in ENDS:
            continue
        number = int(event.data.get("attempt", 0))
        after = marks[place + 1] if place + 1 < len(marks) else None
        spans.append(
            Span(
                trace=trace_id(lineage),
                id=turn_id(turn.id, number),
                parent=message_id(lineage),
                name="turn",
                begun=event.time,
                ended=after.time if after else now,
                about={**about, "dovecote.attempt": number, **_outcome(turn, after)},
                failed=_failure(after),
            )
        )
    return spans


def _outcome(turn: Turn, after: Event | None) -> Words:
    """Return how the last attempt came out, with what its model was asked for."""
    if after is None or after.type not in ENDS:
        return {}
    used = {name: value for name, value in (turn.usage or {}).items() if isinstance(value, str | int)}
    return {"dovecote.state": str(turn.state), **{f"dovecote.usage.{name}": used[name] for name in used}}


def _failure(after: Event | None) -> str | None:
    if after is None or after.type in STARTS:
        return CUT_OFF
    return str(after.data.get("error", "failed"))[:200] if after.type is Kind.TURN_FAILED else None


def _tool(lineage: Lineage, turn: Turn, step: StepRow, attempts: Sequence[Span], now: datetime) -> Span:
    """Return a tool call, below the attempt during which it began; arguments and output stay at home."""
    during = [one for one in attempts if one.begun <= step.started_at]
    ok = bool(step.result and step.result.get("ok"))
    return Span(
        trace=trace_id(lineage),
        id=span_id("tool", turn.id, step.step_key),
        parent=during[-1].id if during else message_id(lineage),
        name=f"tool {step.tool}"[:80],
        begun=step.started_at,
        ended=step.finished_at or now,
        about={"dovecote.turn": turn.id, "dovecote.tool": step.tool, "dovecote.ok": ok},
        failed=None if step.finished_at else CUT_OFF,
    )


def of_request(lineage: Lineage, request: Request) -> Span:
    """Return a request to a model, below the attempt that sent it, as the conventions for models name it."""
    return Span(
        trace=trace_id(lineage),
        id=span_id("model", request.turn, str(request.attempt), str(request.number)),
        parent=turn_id(request.turn, request.attempt),
        name=f"chat {request.model}"[:80],
        kind="client",
        begun=request.begun,
        ended=request.ended,
        about={
            "dovecote.turn": request.turn,
            "dovecote.attempt": request.attempt,
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": request.model,
        },
        failed=request.failed,
    )


def of_job(lineage: Lineage, job: Job, now: datetime) -> Span:
    """Return a job's span, below the turn that started it."""
    return Span(
        trace=trace_id(lineage),
        id=span_id("job", job.id),
        parent=message_id(lineage),
        name="job",
        begun=job.created_at,
        ended=job.finished_at or now,
        about={
            "dovecote.job": job.id,
            "dovecote.conversation": job.conversation,
            "dovecote.provider": job.provider,
            "dovecote.state": str(job.state),
        },
        failed=job.reason,
    )


def of_delivery(lineage: Lineage, standing: Standing, tried: Iterable[Tried], now: datetime) -> list[Span]:
    """Return the attempts at a delivery; one that a crash cut off ends when the next began."""
    listed = list(tried)
    ends = [*(one.started_at for one in listed[1:]), now]
    return [
        Span(
            trace=trace_id(lineage),
            id=attempt_id(standing.id, one.number),
            parent=message_id(lineage),
            name=f"deliver {standing.kind}",
            kind="client",
            begun=one.started_at,
            ended=_end_of(one) or end,
            about={
                "dovecote.delivery": standing.id,
                "dovecote.event": standing.event_id,
                "dovecote.attempt": one.number,
                "dovecote.outcome": one.outcome or "cut off",
                "dovecote.platform_id": standing.platform_id or "",
            },
            failed=None if one.outcome == "delivered" else (one.detail or one.outcome or CUT_OFF)[:200],
        )
        for one, end in zip(listed, ends, strict=True)
    ]


def _end_of(one: Tried) -> datetime | None:
    return None if one.duration_ms is None else one.started_at + timedelta(milliseconds=one.duration_ms)

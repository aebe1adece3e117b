"""One trace covers a story from the platform's message to its last answer, through SIGKILL and a job."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from delivery.events.event import Event, EventType
from gateway.observability.tracing.exporter import OpenTelemetryExporter
from gateway.observability.tracing.spans import message_span_id, trace_id, turn_spans
from gateway.store.turns.lineage import Lineage
from gateway.store.turns.turns import Turn
from gateway_process import gateway
from openai_server import OpenAIServer
from openai_server import ScriptedTurn as Reply
from otlp_receiver import TraceCollector, trace_collector
from telegram_gateway import CHAT, telegram_gateway, wait_for_message
from webhook_receiver import webhook_receiver

ASKED = "chat openai:loopback"
EXPECTED_SPANS = {
    "message": 1, "job's end": 1, "wait": 2, "turn": 3, "tool bash": 1, "job": 1, "deliver chat": 2,
}  # fmt: skip
"""Spans by name: two turns, of which the first was begun twice, each with its answer."""

CALLER_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER_SPAN = "00f067aa0ba902b7"


def count_spans(traces: TraceCollector) -> dict[str, int]:
    """Return how many spans of each name there are."""
    return {name: len(traces.spans_named(name)) for name in {span.name for span in traces.spans.values()}}


async def test_one_trace_through_kill_and_job(tmp_path: Path) -> None:
    """A killed turn with a tool call and a job is one trace, whose spans are below their causes."""
    async with trace_collector() as traces:
        otel = {"OTEL_EXPORTER_OTLP_ENDPOINT": traces.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        fault = {"DOVECOTE_FAULT_POINT": "step.end.after_commit"}
        async with telegram_gateway(tmp_path / "data", **otel, **fault) as (platform, process):
            await platform.say(CHAT, "!&echo pigeon")
            await process.wait_for_exit()
            process.env.pop("DOVECOTE_FAULT_POINT")
            await process.start()
            await wait_for_message(platform, "pigeon")
            await traces.until(lambda: count_spans(traces) == EXPECTED_SPANS)
    check_story(traces)


def check_story(traces: TraceCollector) -> None:
    """One trace; every span but the first has its parent; interrupted ones are marked."""
    (message,), (job,) = traces.spans_named("message"), traces.spans_named("job")
    spans = traces.spans
    assert len({span.trace_id for span in spans.values()}) == 1
    assert [span.name for span in spans.values() if span.parent_span_id not in spans] == ["message"]
    first, second, followed = traces.spans_named("turn")
    assert (first.status.code, second.status.code) == (StatusCode.ERROR.value, StatusCode.UNSET.value)
    (tool,), (follow_up,) = traces.spans_named("tool bash"), traces.spans_named("job's end")
    assert tool.parent_span_id == first.span_id
    assert job.parent_span_id == first.parent_span_id == message.span_id
    assert follow_up.parent_span_id == job.span_id
    assert followed.parent_span_id == follow_up.span_id
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
    assert traces.services == {"dovecote"}


async def test_a_webhook_names_the_trace(tmp_path: Path) -> None:
    """Its receiver gets the trace of the caller and the attempt, which is a span of that trace."""
    async with trace_collector() as traces, webhook_receiver() as receiver:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": traces.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "DOVECOTE_EGRESS_ALLOW": "127.0.0.0/8",
        }
        async with gateway(tmp_path / "data", env=env) as process, process.http() as session:
            asked = {"input": "!echo pigeon", "webhook": {"url": receiver.url}}
            headers = {"traceparent": f"00-{CALLER_TRACE}-{CALLER_SPAN}-01"}
            async with session.post("/agents/default/turns", json=asked, headers=headers) as answer:
                assert answer.status == 202
            await traces.until(
                lambda: bool(traces.spans_named("deliver webhook") and traces.spans_named("message"))
            )
    (attempt,), (message,) = traces.spans_named("deliver webhook"), traces.spans_named("message")
    _, trace, span, _ = receiver.requests[0].headers["traceparent"].split("-")
    assert (trace, span) == (attempt.trace_id.hex(), attempt.span_id.hex())
    assert trace == message.trace_id.hex() == CALLER_TRACE
    assert message.parent_span_id.hex() == CALLER_SPAN


def is_traced(traces: TraceCollector, turns: int) -> bool:
    """Return whether so many turns with one request each were exported."""
    return count_spans(traces).get("turn") == count_spans(traces).get(ASKED) == turns


async def test_each_request_to_a_model_is_a_span(tmp_path: Path) -> None:
    """It is below the attempt that sent it, also when the model refuses, and is measured as well."""
    script = [Reply(text="coo"), Reply(fault="401")]
    async with trace_collector() as traces, OpenAIServer(script) as server:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": traces.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OPENAI_API_KEY": "a key for a loopback model",
            "DOVECOTE_AGENT__MODEL": "openai:loopback",
            "DOVECOTE_AGENT__BASE_URL": server.base_url,
        }
        async with gateway(tmp_path / "data", env=env) as process, process.http() as session:
            for said in range(1, len(script) + 1):
                async with session.post("/agents/default/turns", json={"input": "say coo"}) as answer:
                    assert answer.status == 202
                await traces.until(partial(is_traced, traces, said))
            async with session.get("/metrics") as answer:
                metrics = await answer.text()
    for attempt, asked in zip(traces.spans_named("turn"), traces.spans_named(ASKED), strict=True):
        assert (asked.trace_id, asked.parent_span_id) == (attempt.trace_id, attempt.span_id)
        assert attempt.start_time_unix_nano <= asked.start_time_unix_nano < asked.end_time_unix_nano
    assert [span.status.code for span in traces.spans_named(ASKED)] == [
        StatusCode.UNSET.value,
        StatusCode.ERROR.value,
    ]
    for outcome in ("answered", "failed"):
        assert f'dovecote_model_seconds_count{{model="openai:loopback",outcome="{outcome}"}} 1.0' in metrics


async def test_spans_are_handed_on_by_the_sdk(postponed: Event) -> None:
    """The exporter gives the SDK our ids, times and failures; making spans again makes the same."""
    lineage = Lineage(account="acc_1", root="trn_0", turn="trn_1", job="job_1")
    turn = Turn(
        id="trn_1", account="acc_1", conversation="cnv_1", agent="agt_1", trigger="job", input="",
        created_at=postponed.time,
    )  # fmt: skip
    made = turn_spans(lineage, turn, [postponed], [], postponed.time)
    assert made == turn_spans(lineage, turn, [postponed], [], postponed.time)
    memory = InMemorySpanExporter()
    exporter = OpenTelemetryExporter(memory)
    for span in made:
        exporter.export(span)
    await asyncio.to_thread(exporter.close)
    reported = memory.get_finished_spans()
    assert [span.name for span in reported] == ["job's end", "wait", "turn"]
    assert reported[2].status.status_code is StatusCode.ERROR
    assert reported[0].context is not None
    assert reported[0].context.trace_id == int.from_bytes(trace_id(lineage))
    assert reported[0].context.span_id == int.from_bytes(message_span_id(lineage))


@pytest.fixture
def postponed() -> Event:
    """Return the beginning of an attempt whose end is not known."""
    return Event.now(EventType.TURN_STARTED, "cnv_1", {"attempt": 1}, turn="trn_1")

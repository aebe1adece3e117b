"""How a model's streamed answer is read: events, joined text, thinking, and calls in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agents.clients import sse
from gateway.agents.clients.errors import (
    ModelCallError,
    ModelContextExceeded,
    ModelKeyRefused,
    ModelQuotaUsedUp,
    ModelRateLimited,
    ModelRequestRefused,
    ModelServerFailed,
    ModelUnknown,
    ModelUnreachable,
)
from gateway.agents.clients.messages import (
    ChatMessage,
    arguments,
    calls_of,
    repaired,
    request,
    response_text,
    tool_return,
    user_prompt,
    valid_arguments,
)
from gateway.agents.clients.openai_chat import http_error, stream_error
from gateway.agents.clients.openai_reply import ChatReply
from gateway.agents.clients.reply import TextJoiner
from gateway.agents.clients.sse import EventStreamParser, EventTooLarge
from gateway.agents.clients.thinking import ThinkingFilter
from gateway.agents.model.state import repair_response
from model_messages import response, tool_call

events = st.lists(st.text("ab é", max_size=8).map(str.encode), max_size=6)
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
cuts = st.lists(st.integers(0, 400), max_size=12)


def pieces(text: Any, cuts: list[int]) -> Iterator[Any]:
    """Yield a text or bytes in pieces that end at the given places."""
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    for start, end in pairwise(places):
        yield text[start:end]


@given(events, ends, cuts)
def test_events_do_not_depend_on_how_they_arrive(events: list[bytes], end: bytes, cuts: list[int]) -> None:
    """Any division into blocks, with any of the line ends, gives the same events; comments are skipped."""
    body = b"".join(b": ping" + end + b"event: x" + end + b"data: " + one + end + end for one in events)
    parser = EventStreamParser()
    found = [event for block in pieces(body, cuts) for event in parser.feed(block)]
    assert [*found, *parser.close()] == events


def test_an_event_of_several_lines_is_joined() -> None:
    """Lines of data are joined by line feeds, and an end of the stream ends the last event."""
    parser = EventStreamParser()
    assert parser.feed(b"data: one\ndata:two\n\ndata: three") == [b"one\ntwo"]
    assert parser.close() == [b"three"]


def test_an_endless_event_is_refused() -> None:
    """A server cannot fill the memory with one event; many small ones are no problem."""
    parser, block = EventStreamParser(), b"x" * (sse.MAX_EVENT_BYTES // 8)
    for _ in range(20):
        assert parser.feed(b"data: " + block + b"\n\n") == [block]
    for _ in range(8):
        parser.feed(block)
    with pytest.raises(EventTooLarge):
        parser.feed(block)


def test_text_is_sent_at_once_and_then_joined() -> None:
    """300 pieces that arrive within a second are sent in at most 21 parts, the first without delay."""
    now = 0.0
    joiner = TextJoiner(lambda: now)
    taken = []
    for _ in range(300):
        joiner.add("a")
        if joiner.is_due:
            taken.append(joiner.take())
        now += 1 / 300
    taken.append(joiner.take(is_end=True))
    assert taken[0] == "a"
    assert "".join(taken) == "a" * 300
    assert len(taken) <= 22


def test_half_a_character_waits_for_its_other_half() -> None:
    """A surrogate pair that two pieces share is not torn apart."""
    joiner = TextJoiner(lambda: 0.0)
    joiner.add("see \ud83d")
    assert joiner.take() == "see "
    joiner.add("\ude00")
    assert joiner.take(is_end=True) == "\ud83d\ude00"


@given(
    st.sampled_from(
        ["", " \n", "<think>why</think>\n\n", "<think></think>", "\n<think>a < b</thin</think> "]
    ),
    st.text("<think/> a", max_size=30).map(lambda text: "Q" + text),
    cuts,
)
def test_thinking_is_kept_apart_from_the_text(head: str, text: str, cuts: list[int]) -> None:
    """A section in tags at the beginning is no text, wherever the pieces end; later tags are text."""
    found = ThinkingFilter()
    shown = "".join(found.feed(piece) for piece in pieces(head + text, cuts)) + found.close()
    assert shown == (text if "think" in head else head + text)
    assert found.thinking in {"", "why", "a < b</thin"}


def decoded(*deltas: dict[str, Any], finish: str = "stop") -> tuple[str, ChatMessage]:
    """Return the text of an answer of deltas as it streamed, and its response."""
    reply = ChatReply("m", provider="openai", url="http://x", error_of=stream_error)
    text = "".join(
        reply.add(json.dumps({"choices": [{"delta": delta, "finish_reason": None}]}).encode())
        for delta in deltas
    )
    text += reply.add(json.dumps({"choices": [{"delta": {}, "finish_reason": finish}]}).encode())
    reply.add(b"[DONE]")
    return text, reply.response()


def call_delta(index: int | None, identity: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """Return a piece of a call, without the fields that are None."""
    found: dict[str, Any] = {"function": {"arguments": arguments, **({"name": name} if name else {})}}
    found |= {"index": index} if index is not None else {}
    return {"tool_calls": [found | ({"id": identity} if identity else {})]}


@pytest.mark.parametrize("indexes", [(0, 1), (0, 0), (None, None)])
def test_calls_in_pieces_are_put_together(indexes: tuple[int | None, int | None]) -> None:
    """Also from servers that give all calls one index, or none."""
    first, second = indexes
    _, found = decoded(
        call_delta(first, "one", "bash", '{"command": '),
        call_delta(first, None, None, '"ls"}'),
        call_delta(second, "two", "bash", ""),
        call_delta(second, "two", None, '{"command": "pwd"}'),
        finish="tool_calls",
    )
    assert [(call["tool_call_id"], call["args"]) for call in calls_of(found)] == [
        ("one", '{"command": "ls"}'),
        ("two", '{"command": "pwd"}'),
    ]
    assert found.get("finish_reason") == "tool_call"


def test_reasoning_is_stored_and_not_shown() -> None:
    """Reasoning in a field of its own is a thinking part; white space between it and the text is dropped."""
    text, found = decoded({"reasoning_content": "hm"}, {"content": "\n\n"}, {"content": "Hello"})
    assert (text, response_text(found)) == ("Hello", "Hello")
    assert [part["part_kind"] for part in found["parts"]] == ["thinking", "text"]


def test_an_answer_of_white_space_is_empty() -> None:
    """Nothing is shown, and the response has no text."""
    text, found = decoded({"content": " \n"})
    assert (text, found["parts"]) == ("", [])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"{no json", ModelUnreachable),
        (b"[1]", ModelUnreachable),
        (b'{"error": {"message": "overloaded", "code": 503}}', ModelServerFailed),
        (b'{"error": {"message": "Context size has been exceeded.", "code": 500}}', ModelContextExceeded),
        (
            b'{"error": {"message": "Cannot truncate prompt with n_keep (9) >= n_ctx (4)"}}',
            ModelContextExceeded,
        ),
        (b'{"object": "error", "message": "the engine stopped", "code": 500}', ModelServerFailed),
        (b'{"error": {"message": "slow down", "type": "rate_limit_error"}}', ModelRateLimited),
    ],
)
def test_errors_within_a_stream_are_distinguished(data: bytes, kind: type[ModelCallError]) -> None:
    """An error after the status 200 has the class that it would have had before."""
    reply = ChatReply("m", provider="openai", url="http://x", error_of=stream_error)
    with pytest.raises(kind):
        reply.add(data)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (401, {"code": "invalid_api_key"}, ModelKeyRefused),
        (403, {}, ModelKeyRefused),
        (404, {"code": "model_not_found"}, ModelUnknown),
        (429, {"code": "rate_limit_exceeded"}, ModelRateLimited),
        (429, {"type": "insufficient_quota", "code": None}, ModelQuotaUsedUp),
        (400, {"code": "context_length_exceeded"}, ModelContextExceeded),
        (400, {"message": "This model's maximum context length is 4 tokens"}, ModelContextExceeded),
        (500, {"type": "exceed_context_size_error"}, ModelContextExceeded),
        (400, {"message": "the request exceeds the available context size"}, ModelContextExceeded),
        (500, {"message": "Context size has been exceeded.", "type": "server_error"}, ModelContextExceeded),
        (400, "The number of tokens to keep is greater than the context length", ModelContextExceeded),
        (
            400,
            {"message": "The decoder prompt (length 9) is longer than the maximum model length of 4"},
            ModelContextExceeded,
        ),
        (400, {"message": "The input token count (9) exceeds the maximum number"}, ModelContextExceeded),
        (413, {"message": "Request too large"}, ModelContextExceeded),
        (429, {"message": "the maximum context length counts against your rate"}, ModelRateLimited),
        (400, {"message": "bad image"}, ModelRequestRefused),
        (500, {}, ModelServerFailed),
        (529, {}, ModelServerFailed),
    ],
)
def test_refusals_are_distinguished(
    status: int, error: dict[str, Any] | str, kind: type[ModelCallError]
) -> None:
    """Status and code decide what the operator reads, and whether another attempt makes sense."""
    assert type(http_error("m", status, json.dumps({"error": error}), None)) is kind


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (r'{"command":"echo \ud83d"}', '{"command": "echo \ufffd"}'),
        (r'{"\udc26":["\ud83d\udc26 \ud83d"]}', '{"\ufffd": ["\U0001f426 \ufffd"]}'),
        (r'{"command":"\\ud83d \ud83d\udc26"}', r'{"command":"\\ud83d \ud83d\udc26"}'),
        (r'{"command":"\ud83d', r'{"command":"\ud83d'),
    ],
)
def test_arguments_have_no_lone_surrogates(written: str, kept: str) -> None:
    """An escape may name half a character, which no tool could encode; whole ones stay as they are."""
    found = response(tool_call(written, "c"))
    repair_response(found)
    assert calls_of(found)[0]["args"] == kept


@pytest.mark.parametrize("written", ['{"a": NaN}', '{"a": [-Infinity]}', '{"a":' + "[" * 100_000])
def test_arguments_that_no_vendor_reads_are_no_json(written: str) -> None:
    """The model learns of them, and its vendor gets them as a text that it accepts."""
    call = tool_call(written, "c")
    with pytest.raises(ValueError, match=r"JSON|nested"):
        arguments(call)
    assert valid_arguments(call) == {"INVALID_JSON": written}


def test_broken_histories_are_repaired() -> None:
    """Open calls get results, results without a call go, and results come before what people said."""
    one, two, gone = (tool_call({}, f"call_{name}") for name in ("one", "two", "gone"))
    fixed = repaired(
        [
            request([user_prompt("do it"), tool_return(gone, "stale")]),
            response(one, two),
            request([user_prompt("and?"), tool_return(one, "done")]),
            response("next", gone),
        ]
    )
    kinds = [[part["part_kind"] for part in message["parts"]] for message in fixed]
    assert kinds == [
        ["user-prompt"],
        ["tool-call", "tool-call"],
        ["tool-return", "tool-return", "user-prompt"],
        ["text", "tool-call"],
        ["tool-return"],
    ]
    assert repaired(fixed) == fixed

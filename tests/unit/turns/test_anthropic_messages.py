"""Anthropic's messages: what is sent, how an answer is read, and which errors are distinguished."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_tools import BASH
from gateway.agents.clients.anthropic_messages import http_error, largest_output, request_body, stream_error
from gateway.agents.clients.anthropic_reply import MessagesReply
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
    image_item,
    request,
    response_text,
    tool_return,
    user_prompt,
)
from gateway.agents.clients.port import ModelQuery
from model_messages import response, tool_call

THINKING: list[dict[str, Any]] = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
    {
        "type": "content_block_start",
        "index": 1,
        "content_block": {"type": "redacted_thinking", "data": "xyz"},
    },
]
CALL: list[dict[str, Any]] = [
    {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "Looking."}},
    {"type": "ping"},
    {
        "type": "content_block_start",
        "index": 3,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {}},
    },
    {
        "type": "content_block_delta",
        "index": 3,
        "delta": {"type": "input_json_delta", "partial_json": '{"command": "ls"}'},
    },
]
END: list[dict[str, Any]] = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
    {"type": "message_stop"},
]
START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "model": "claude-x-2026",
        "usage": {"input_tokens": 3, "cache_read_input_tokens": 90, "output_tokens": 1},
    },
}


def decoded(*events: dict[str, Any]) -> tuple[str, ChatMessage]:
    """Return the text of an answer as it streamed, and its response."""
    reply = MessagesReply("claude-x", provider="anthropic", url="http://x", error_of=stream_error)
    text = "".join(reply.add(json.dumps(event).encode()) for event in events)
    return text, reply.response()


def sent_body(messages: list[ChatMessage]) -> dict[str, Any]:
    """Return the body of a request with a tool."""
    return request_body("claude-x", ModelQuery(messages=messages, instructions="Be brief.", tools=[BASH]))


def test_an_answer_is_read_with_its_thinking_its_call_and_its_usage() -> None:
    """Only text is shown; input tokens count the cached ones too."""
    text, found = decoded(START, *THINKING, *CALL, *END)
    assert (text, response_text(found)) == ("Looking.", "Looking.")
    assert [part["part_kind"] for part in found["parts"]] == ["thinking", "thinking", "text", "tool-call"]
    assert arguments(calls_of(found)[0]) == {"command": "ls"}
    assert found.get("usage") == {"input_tokens": 93, "output_tokens": 7, "cache_read_tokens": 90}
    assert (found.get("model_name"), found.get("finish_reason")) == ("claude-x-2026", "tool_call")


def test_signed_thinking_goes_back_as_it_came() -> None:
    """The vendor refuses a tool's result without the thinking before its call."""
    _, found = decoded(START, *THINKING, *CALL, *END)
    body = sent_body([request([user_prompt("hi")]), found])
    assert body["messages"][1]["content"][:2] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
    ]


def test_roles_take_turns_and_results_name_their_calls() -> None:
    """Messages of one role are joined; broken arguments are sent as an object; images go as base64."""
    broken = tool_call('{"command": ', "call_1")
    body = sent_body(
        [
            request([user_prompt("one")]),
            request([user_prompt(["two", "", image_item("image/png", "AAAA")])]),
            response("thinking of it", broken),
            request([tool_return(broken, "not JSON", "failed"), user_prompt("go on")]),
        ]
    )
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    first, second, third = (message["content"] for message in body["messages"])
    assert [block["type"] for block in first] == ["text", "text", "image"]
    assert second[1]["input"] == {"INVALID_JSON": '{"command": '}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "not JSON", "is_error": True}
    assert third == [result, {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}}]
    assert [block["text"] for block in body["system"]] == ["Be brief."]
    assert body["tools"][0]["name"] == "bash"


def test_images_of_results_follow_all_results_in_one_message() -> None:
    """The API refuses a message with anything before its results ("Handle tool calls")."""
    calls = [tool_call({}, f"call_{number}", "camera") for number in (1, 2)]
    results = [tool_return(call, "taken") for call in calls]
    shown = user_prompt(["[images]", "[image: a.png]", image_item("image/png", "AAAA")])
    messages = [request([user_prompt("look")]), response(*calls), request([*results, shown])]
    last = sent_body(messages)["messages"][-1]
    kinds = [block["type"] for block in last["content"]]
    assert (last["role"], kinds) == ("user", ["tool_result", "tool_result", "text", "text", "image"])


def test_calls_are_text_in_a_request_without_tools() -> None:
    """The API refuses blocks of calls without `tools`, as after the agent's tools were taken away."""
    call = tool_call({"command": "ls"}, "c")
    messages = [
        request([user_prompt("one")]),
        response("I look", call),
        request([tool_return(call, "a.txt")]),
    ]
    body = request_body("claude-x", ModelQuery(messages=messages))
    assert "tools" not in body
    assert [[block["text"] for block in said["content"]] for said in body["messages"]] == [
        ["one"],
        ["I look", '[called bash {"command":"ls"}]'],
        ["[bash returned] a.txt"],
    ]


def test_an_answer_that_breaks_off_is_an_error() -> None:
    """A stream that ends before the message does is no complete answer."""
    with pytest.raises(ModelUnreachable):
        decoded(START, *CALL)


@pytest.mark.parametrize(
    ("status", "kind", "message", "error"),
    [
        (401, "authentication_error", "invalid x-api-key", ModelKeyRefused),
        (404, "not_found_error", "model: claude-y", ModelUnknown),
        (429, "rate_limit_error", "slow down", ModelRateLimited),
        (529, "overloaded_error", "Overloaded", ModelServerFailed),
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", ModelContextExceeded),
        (400, "invalid_request_error", "Your credit balance is too low", ModelQuotaUsedUp),
        (400, "invalid_request_error", "image exceeds 5 MB", ModelRequestRefused),
    ],
)
def test_refusals_are_distinguished(
    status: int, kind: str, message: str, error: type[ModelCallError]
) -> None:
    """The status before a stream, and the type within one, lead to the same class."""
    body = {"type": "error", "error": {"type": kind, "message": message}}
    assert type(http_error("m", status, json.dumps(body), None)) is error
    with pytest.raises(error):
        decoded(START, body)


@pytest.mark.parametrize(
    ("model", "most"),
    [
        ("claude-3-5-sonnet-latest", 4096),
        ("claude-sonnet-4-20250514", 4096),
        ("claude-sonnet-4-5", 64_000),
        ("claude-sonnet-5-5", 128_000),
        ("claude-of-the-future", 16_384),
    ],
)
def test_the_output_limit_fits_the_model(model: str, most: int) -> None:
    """The API requires a limit, and refuses one that is larger than the model's."""
    assert largest_output(model) == most


def test_what_the_next_request_repeats_is_cached() -> None:
    """The instructions with the tools before them, and the last two user messages: at most four marks."""
    messages = [
        request([user_prompt("one")]),
        response("1"),
        request([user_prompt("two")]),
        response(tool_call({"command": "ls"}, "c")),
        request([tool_return(tool_call({"command": "ls"}, "c"), "done"), user_prompt("three")]),
    ]
    body = request_body("claude-x", ModelQuery(messages=messages, instructions="Be brief.", tools=(BASH,)))
    blocks = [*body["tools"], *body["system"], *(one for said in body["messages"] for one in said["content"])]
    marked = [one.get("text") for one in blocks if one.pop("cache_control", None) == {"type": "ephemeral"}]
    assert marked == ["Be brief.", "two", "three"]
    bare = request_body("claude-x", ModelQuery(messages=messages[:1], tools=(BASH,)))
    assert (bare["tools"][-1]["cache_control"], "system" in bare) == ({"type": "ephemeral"}, False)

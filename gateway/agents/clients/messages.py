"""The messages of a conversation with a model, in their stored form: JSON objects.

The form is that of pydantic-ai's `ModelMessage`, in which conversations have always been stored. Parts and
fields that this gateway does not know stay as they are, and are not sent to models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, TypedDict, cast

from delivery.database.clock import utc_now
from gateway.agents.clients.text import repair_surrogates

INTERRUPTED = "The tool call was interrupted before it returned a result."


class ChatPart(TypedDict, total=False):
    """A part of a message; `part_kind` names it.

    `user-prompt`: `content` is a text, or a list of texts and images. `tool-return`: `content` is the result.
    `retry-feedback`: `content` is what was wrong with a response. `text`, `thinking`: `content` is a text.
    `tool-call`: `args` are JSON as the model wrote it, or an object.
    """

    part_kind: Required[str]
    content: Any
    timestamp: str
    tool_name: str
    args: str | dict[str, Any] | None
    tool_call_id: str
    outcome: str
    metadata: Any
    id: str | None
    signature: str | None
    provider_name: str | None
    provider_details: dict[str, Any] | None


REFUSAL = "refusal"
"""The key in `provider_details` of a text with which the model refuses to answer."""


class ResponseTokens(TypedDict, total=False):
    """The tokens of one response."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    output_reasoning_tokens: int


class ChatMessage(TypedDict):
    """A request to a model, or its response."""

    kind: Literal["request", "response"]
    parts: list[ChatPart]
    timestamp: NotRequired[str]
    instructions: NotRequired[str | None]
    usage: NotRequired[ResponseTokens]
    model_name: NotRequired[str | None]
    provider_name: NotRequired[str | None]
    provider_url: NotRequired[str | None]
    provider_response_id: NotRequired[str | None]
    finish_reason: NotRequired[str | None]


def timestamp() -> str:
    """Return the present time as messages store it."""
    return utc_now().isoformat().replace("+00:00", "Z")


def request(parts: Sequence[ChatPart]) -> ChatMessage:
    """Return a request that consists of parts."""
    return {"parts": list(parts), "timestamp": timestamp(), "kind": "request"}


def response(model: str, *, provider: str, url: str) -> ChatMessage:
    """Return a response without parts; `url` is the server that gives it."""
    return {
        "kind": "response",
        "parts": [],
        "timestamp": timestamp(),
        "model_name": model,
        "provider_name": provider,
        "provider_url": url,
    }


def user_prompt(content: object) -> ChatPart:
    """Return what a person says: a text, or a list of texts and images."""
    return {"content": content, "timestamp": timestamp(), "part_kind": "user-prompt"}


def image_item(media_type: str, encoded: str) -> dict[str, str]:
    """Return an image as an item of a prompt; `encoded` are its bytes in base64."""
    return {"data": encoded, "media_type": media_type, "kind": "binary"}


def is_image(item: object) -> bool:
    """Return whether an item of a prompt is an image with its bytes."""
    return isinstance(item, dict) and item.get("kind") == "binary"


def tool_return(call: ChatPart, content: str, outcome: str = "success") -> ChatPart:
    """Return the result of a call: success, failed, denied or interrupted."""
    return {
        "tool_name": call["tool_name"],
        "content": content,
        "tool_call_id": call["tool_call_id"],
        "timestamp": timestamp(),
        "outcome": outcome,
        "part_kind": "tool-return",
    }


def is_result(part: ChatPart) -> bool:
    """Return whether a part answers a call."""
    kind = part["part_kind"]
    return kind == "tool-return" or (kind == "retry-prompt" and bool(part.get("tool_name")))


def is_prompt(message: ChatMessage) -> bool:
    """Return whether a message contains words of a person."""
    return any(part["part_kind"] == "user-prompt" for part in message["parts"])


def calls_of(message: ChatMessage) -> list[ChatPart]:
    """Return the calls of a response."""
    if message["kind"] != "response":
        return []
    return [part for part in message["parts"] if part["part_kind"] == "tool-call"]


def is_refusal(message: ChatMessage) -> bool:
    """Return whether a response's text is a refusal to answer, by the server's own mark."""
    return any((part.get("provider_details") or {}).get(REFUSAL) for part in message["parts"])


def response_text(message: ChatMessage) -> str:
    """Return the text of a response, without thinking and calls."""
    return "".join(part["content"] for part in message["parts"] if part["part_kind"] == "text")


def arguments(call: ChatPart) -> dict[str, Any]:
    """Return the arguments of a call; raises ValueError if they are no JSON object.

    NaN and Infinity are no JSON (RFC 8259, section 6): vendors refuse each request that repeats them.
    """
    given = call.get("args")
    try:
        parsed = json.loads(given or "{}", parse_constant=_refuse) if isinstance(given, str) else given or {}
    except RecursionError as error:
        raise ValueError("the arguments are nested too deeply") from error
    if not isinstance(parsed, dict):
        raise ValueError("the arguments are not a JSON object")
    return parsed


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


def storable_arguments(call: ChatPart) -> str:
    """Return the arguments of a call as a text without lone surrogates, also in JSON's escapes."""
    given = repair_surrogates(arguments_text(call))
    try:
        plain = json.dumps(arguments({**call, "args": given}), ensure_ascii=False)
    except ValueError:
        return given
    storable = repair_surrogates(plain)
    return given if storable == plain else storable


def arguments_text(call: ChatPart) -> str:
    """Return the arguments of a call as JSON; as the model wrote them if they are broken."""
    given = call.get("args")
    if isinstance(given, str):
        return given or "{}"
    return json.dumps(given or {}, ensure_ascii=False, separators=(",", ":"))


def valid_arguments(call: ChatPart) -> dict[str, Any]:
    """Return the arguments of a call as an object, which vendors require also of broken ones."""
    try:
        return arguments(call)
    except ValueError:
        return {"INVALID_JSON": call.get("args")}


def valid_arguments_text(call: ChatPart) -> str:
    """Return the arguments of a call as a JSON object, which some servers require."""
    try:
        arguments(call)
    except ValueError:
        return json.dumps({"INVALID_JSON": call.get("args")})
    return arguments_text(call)


def content_text(part: ChatPart) -> str:
    """Return the content of a result as a text."""
    content = part.get("content")
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def unanswered_calls(messages: Sequence[ChatMessage]) -> list[ChatPart]:
    """Return the calls of the last response that have no result yet."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message["kind"] == "response":
            return [call for call in calls_of(message) if call["tool_call_id"] not in answered]
        answered.update(part["tool_call_id"] for part in message["parts"] if is_result(part))
    return []


def repaired(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Return messages that every vendor accepts: each call has a result behind it, and each result a call.

    Requests that follow one another are joined, with results before what people said.
    """
    fixed: list[ChatMessage] = []
    for message in messages:
        if message["kind"] == "request":
            _add_request(fixed, message)
        else:
            _close_calls(fixed)
            fixed.append(message)
    _close_calls(fixed)
    return fixed


def _add_request(fixed: list[ChatMessage], message: ChatMessage) -> None:
    called = {call["tool_call_id"] for call in _open_calls(fixed)}
    parts = [part for part in message["parts"] if not is_result(part) or part["tool_call_id"] in called]
    if not parts:
        return
    if fixed and fixed[-1]["kind"] == "request":
        parts = [*fixed[-1]["parts"], *parts]
        fixed.pop()
    ordered = sorted(parts, key=lambda part: not is_result(part))
    fixed.append(message if ordered == message["parts"] else with_parts(message, ordered))


def _open_calls(messages: Sequence[ChatMessage]) -> list[ChatPart]:
    return unanswered_calls(messages[-2:])


def _close_calls(fixed: list[ChatMessage]) -> None:
    """Give interrupted results to the calls of the last response that have none."""
    missing = [tool_return(call, INTERRUPTED, "interrupted") for call in _open_calls(fixed)]
    if not missing:
        return
    if fixed[-1]["kind"] == "response":
        fixed.append(request(missing))
        return
    parts = sorted([*fixed[-1]["parts"], *missing], key=lambda part: not is_result(part))
    fixed[-1] = with_parts(fixed[-1], parts)


def calls_as_text(messages: Iterable[ChatMessage]) -> Iterator[ChatMessage]:
    """Yield messages with text in place of calls and results, for a request that offers no tools."""
    for message in messages:
        yield with_parts(message, [_call_as_text(part) for part in message["parts"]])


def _call_as_text(part: ChatPart) -> ChatPart:
    if is_result(part):
        return user_prompt(f"[{part['tool_name']} returned] {content_text(part)}")
    if part["part_kind"] == "tool-call":
        return {"part_kind": "text", "content": f"[called {part['tool_name']} {arguments_text(part)}]"}
    return part


def with_parts(message: ChatMessage, parts: Sequence[ChatPart]) -> ChatMessage:
    """Return a copy of a message with other parts."""
    changed = message.copy()
    changed["parts"] = list(parts)
    return changed


def check_messages(found: object) -> list[ChatMessage]:
    """Return stored messages; raises ValueError if they do not have the form of messages."""
    if not isinstance(found, list):
        raise ValueError("the messages are no list")
    for message in found:
        if not _is_message(message):
            raise ValueError("a message has no kind or no parts")
    return found


def _is_message(message: object) -> bool:
    if not isinstance(message, dict) or message.get("kind") not in {"request", "response"}:
        return False
    parts = message.get("parts")
    return isinstance(parts, list) and all(_is_part(part) for part in parts)


def _is_part(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("part_kind")
    if kind in {"tool-call", "tool-return"}:
        return isinstance(part.get("tool_name"), str) and isinstance(part.get("tool_call_id"), str)
    if kind in {"text", "thinking"}:
        return isinstance(part.get("content"), str)
    return isinstance(kind, str)


MAX_TOKENS = 2**53
"""A number of tokens that is larger is a fault of the vendor."""


def usage_numbers(found: Mapping[str, Any]) -> ResponseTokens:
    """Return the numbers of a vendor's usage that are numbers of tokens."""
    usage: Any = {
        name: int(value)
        for name, value in found.items()
        if isinstance(value, int | float) and 0 < value < MAX_TOKENS
    }
    return cast("ResponseTokens", usage)

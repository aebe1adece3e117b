"""The frames of the WebSocket: parsing those of clients, and encoding those of the stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from delivery.events.port import StoredEvent
from delivery.events.replay import CaughtUp, Events, Frame, Gap, Reset, Subscribed
from gateway.records.input_problems import to_problems
from gateway.web.http import request_body
from gateway.web.http.attachments import Attachments
from gateway.web.http.problems import HttpProblem

BATCH_BYTES = 256 * 1024
_CURSOR = re.compile(r"^(?:([0-9a-z_]{1,40})-)?([0-9]{1,20})$")

NameField = Annotated[StrictStr, Field(min_length=1, max_length=200)]
Position = Annotated[StrictInt, Field(ge=0)] | Annotated[StrictStr, Field(pattern=_CURSOR.pattern)]


class InvalidFrame(Exception):
    """The text is no valid frame; the connection is closed with 4400."""


class ProtocolError(Exception):
    """A valid frame was refused; the client gets an error frame and stays connected."""

    def __init__(self, code: str, detail: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.fields = dict(fields or {})


class _Frame(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AuthenticateFrame(_Frame):
    """Authenticate with a key that could not be sent as a header."""

    type: Literal["auth"]
    key: Annotated[StrictStr, Field(max_length=1000)]


class SubscribeFrame(_Frame):
    """Subscribe to a conversation from a position; without one, from now on."""

    type: Literal["subscribe"]
    conversation: NameField
    after: Position | None = None
    epoch: Annotated[StrictStr, Field(max_length=40)] | None = None
    deltas: StrictBool = True
    batch: StrictBool = False


class UnsubscribeFrame(_Frame):
    """Unsubscribe from a conversation."""

    type: Literal["unsubscribe"]
    conversation: NameField


class SendFrame(_Frame):
    """Send a message; `id` is its idempotency key. A `literal` text is never taken for a command."""

    type: Literal["send"]
    conversation: NameField | None = None
    text: Annotated[StrictStr, Field(min_length=1, max_length=60_000)]
    id: NameField
    agent: NameField | None = None
    attachments: Attachments = ()
    literal: StrictBool = False


class ApproveFrame(_Frame):
    """Decide on a tool call that waits, or answer a question: `decision`, or `answer`."""

    type: Literal["approve"]
    approval: NameField
    decision: Literal["approve", "deny"] | None = None
    answer: Annotated[StrictStr, Field(max_length=4_000)] | dict[str, StrictStr] | None = None
    comment: Annotated[StrictStr, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> ApproveFrame:
        if (self.decision is None) == (self.answer is None):
            raise ValueError("give either decision or answer")
        return self


class CancelFrame(_Frame):
    """Cancel a turn."""

    type: Literal["cancel"]
    turn: NameField


class PingFrame(_Frame):
    """Ask for a pong."""

    type: Literal["ping"]


ClientFrame = (
    AuthenticateFrame | SubscribeFrame | UnsubscribeFrame | SendFrame | ApproveFrame | CancelFrame | PingFrame
)
_FRAMES: Mapping[str, type[ClientFrame]] = {
    "auth": AuthenticateFrame,
    "subscribe": SubscribeFrame,
    "unsubscribe": UnsubscribeFrame,
    "send": SendFrame,
    "approve": ApproveFrame,
    "cancel": CancelFrame,
    "ping": PingFrame,
}
_ECHOED_FIELDS = ("id", "conversation", "approval", "turn")


def parse(text: str) -> ClientFrame:
    """Return the frame of a text; raises InvalidFrame, or ProtocolError for wrong fields."""
    raw = text.encode("utf-8", "surrogatepass")
    try:
        shape = request_body.parse_json(raw)
    except HttpProblem as problem:
        if problem.errors:  # JSON with text that cannot be stored
            raise _unstorable(problem, raw) from None
        raise InvalidFrame(problem.detail.replace("the body", "the frame")) from None
    if not isinstance(shape, dict):
        raise InvalidFrame("a frame must be a JSON object")
    kind = shape.get("type")
    if not isinstance(kind, str) or kind not in _FRAMES:
        raise InvalidFrame(f"a frame's type is one of {', '.join(_FRAMES)}")
    try:
        return _FRAMES[kind].model_validate(shape)
    except ValidationError as error:
        raise ProtocolError("invalid", _explain(error, shape, _FRAMES[kind]), echoed_fields(shape)) from None


def _unstorable(problem: HttpProblem, raw: bytes) -> ProtocolError:
    """Return the error that names the field whose text cannot be stored."""
    first = problem.errors[0]
    shape = request_body.parse_json(raw, lenient=True)
    about = echoed_fields(shape) if isinstance(shape, Mapping) else {}
    return ProtocolError("invalid", f"{first.pointer.removeprefix('/')}: {first.detail}"[:300], about)


def echoed_fields(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a frame that its error repeats, so that the client can match them."""
    return {key: shape[key] for key in _ECHOED_FIELDS if isinstance(shape.get(key), str)}


def _explain(error: ValidationError, shape: Mapping[str, Any], frame: type[BaseModel]) -> str:
    first = to_problems(error, shape, frame)[0]
    return f"{first.pointer.removeprefix('/')}: {first.detail}"[:300]


@dataclass(frozen=True, slots=True)
class StreamCursor:
    """A position in a stream, with its epoch if the client gave one."""

    seq: int
    epoch: str | None = None


def parse_cursor(value: int | str) -> StreamCursor | None:
    """Return the cursor of `N` or `<epoch>-N`, None when it is neither."""
    if isinstance(value, int):
        return StreamCursor(value)
    found = _CURSOR.match(value)
    return StreamCursor(int(found[2]), found[1]) if found else None


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """An encoded frame, with the seq from which a reader can resume after it."""

    body: bytes
    seq: int | None = None


def encode_frames(frame: Frame, conversation: str, *, batch: bool) -> Iterator[EncodedFrame]:
    """Yield the encoded frames for a frame of the replay."""
    if not isinstance(frame, Events):
        yield EncodedFrame(
            encode_json(control_frame(frame, conversation)),
            frame.seq if isinstance(frame, CaughtUp) else None,
        )
    elif batch and len(frame.items) > 1:
        yield from _encode_batches(frame.items)
    else:
        for item in frame.items:
            yield EncodedFrame(item.as_json(), item.seq)


def _encode_batches(items: Sequence[StoredEvent]) -> Iterator[EncodedFrame]:
    waiting: list[bytes] = []
    size = last = 0
    for item in items:
        body = item.as_json()
        if waiting and size + len(body) > BATCH_BYTES:
            yield EncodedFrame(_encode_batch(waiting), last)
            waiting, size = [], 0
        waiting.append(body)
        size += len(body)
        last = item.seq
    yield EncodedFrame(_encode_batch(waiting), last)


def _encode_batch(bodies_of_events: Sequence[bytes]) -> bytes:
    return b'{"type":"events","items":[' + b",".join(bodies_of_events) + b"]}"


def control_frame(frame: Subscribed | CaughtUp | Gap | Reset, conversation: str) -> dict[str, Any]:
    """Return the JSON object of a frame that is no event."""
    match frame:
        case Subscribed():
            shape: dict[str, Any] = {
                "type": "subscribed",
                "epoch": frame.epoch,
                "first_seq": frame.first_seq,
                "last_seq": frame.last_seq,
            }
        case CaughtUp():
            shape = {"type": "caught_up", "seq": frame.seq}
        case Gap():
            shape = {
                "type": "gap",
                "from": frame.first,
                "to": frame.last,
                "snapshot": snapshot_path(conversation),
            }
        case Reset():
            shape = {"type": "reset", "epoch": frame.epoch, "snapshot": snapshot_path(conversation)}
    return shape | {"conversation": conversation}


def snapshot_path(conversation: str) -> str:
    """Return the path of a conversation's snapshot."""
    return f"/conversations/{conversation}/snapshot"


def encode_json(shape: Mapping[str, Any]) -> bytes:
    """Return a frame as JSON text."""
    return json.dumps(shape, separators=(",", ":"), ensure_ascii=False).encode()

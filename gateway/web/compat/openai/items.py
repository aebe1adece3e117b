"""Items of responses and the events of their streams: messages, calls of the client's tools, and results.

A turn that waited for its client's tools has several responses: one until the first calls, and one for each
request that returned results. `ResponsePart` is one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, StrictStr, ValidationError

from delivery.database.engine import Connection
from delivery.events.event import new_id
from gateway.agents.client_request import ClientRequest
from gateway.conversations.questions import ANSWERED
from gateway.conversations.submissions.queue_policy import MAX_INPUT
from gateway.store.conversations import messages
from gateway.store.conversations.messages import ChatMessageRow
from gateway.store.turn_state import TurnState
from gateway.store.turns import approvals as approval_store
from gateway.store.turns.approvals import Approval
from gateway.store.turns.turns import Turn
from gateway.web.compat import openai_ids
from gateway.web.compat.client_calls import AnswerEvent, ClientCalls, round_endings, to_rounds
from gateway.web.compat.openai_messages import InputMessage, LenientRequest, Text
from gateway.web.http.problems import invalid_field
from gateway.web.stream.turn_events import ClientToolCalled, MessageDone, TextDelta, TurnEnded, with_files

NUMBERS_PER_EVENT = 8
"""Sequence numbers of a response per stored event: they begin at its seq times eight."""

_END_EVENTS = {
    "completed": "response.completed",
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
}
"""The event that ends a stream, by the response's status; OpenAI has none of its own for a cancelled one."""

Item = dict[str, Any]
MAX_KIND = 60
CallName = Annotated[StrictStr, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePart:
    """One response of a turn, with the rounds of calls before it, and the `calls` with which it ends."""

    earlier: Sequence[Sequence[Approval]]
    calls: Sequence[Approval]
    replies: Sequence[ChatMessageRow]

    @property
    def answered(self) -> Sequence[Approval]:
        """The calls whose results the response began with."""
        return self.earlier[-1] if self.earlier else ()

    def output(self, *, shows_files: bool) -> list[Item]:
        """Return the items of the response; links to files are below the text, or not shown."""
        said = [
            message_item(one.id, with_files(one.text, one.attachments if shows_files else ()))
            for one in self.replies
        ]
        return [*said, *(pending_call_item(one) for one in self.calls)]

    @property
    def results(self) -> list[Item]:
        """The results that the response began with, as items."""
        return [output_item(one) for one in self.answered if one.state == ANSWERED]

    def tokens(self, turn: Turn) -> tuple[int, int] | None:
        """Return the tokens that the response read and wrote; None if it runs, or if that is not known."""
        ended = self.calls[0].usage if self.calls else turn.usage
        return used_tokens(ended, before=self.answered[0].usage if self.answered else None)

    def previous(self, turn: Turn) -> str | None:
        """Return the id of the response of the same turn that it continues."""
        after = self.earlier[-2][-1].id if len(self.earlier) > 1 else None
        return openai_ids.from_turn(turn.id, "resp_", after=after) if self.answered else None

    def echo(self, request: ClientRequest) -> Mapping[str, Any]:
        """Return what the response repeats of its request, which the turn's `request` contains."""
        return request.echo_after(round_endings(self.earlier))

    def waits(self, turn: Turn) -> bool:
        """Return whether the response has ended with calls, although the turn has not."""
        return bool(self.calls) and (
            turn.state is TurnState.WAITING or any(one.state == ANSWERED for one in self.calls)
        )


def used_tokens(
    used: Mapping[str, Any] | None, *, before: Mapping[str, Any] | None = None
) -> tuple[int, int] | None:
    """Return the tokens that were read and written of a usage, without those `before`; None if not known."""
    if used is None:
        return None
    read, written = (
        int(used.get(name, 0)) - int((before or {}).get(name, 0))
        for name in ("input_tokens", "output_tokens")
    )
    return read, written


async def load_part(connection: Connection, turn: str, after: str) -> ResponsePart | None:
    """Return the response of a turn after a call whose id ends so; the first one for an empty text."""
    approvals = await approval_store.list_for_turn(connection, turn)
    rounds = to_rounds(approvals)
    replies = await messages.list_replies(connection, turn)
    place = next((n for n, calls in enumerate(rounds, 1) if calls[-1].id.endswith(after)), 0) if after else 0
    if after and not place:
        return None
    calls = rounds[place] if place < len(rounds) else ()
    began = rounds[place - 1][-1].created_at if place else None
    ended = calls[0].created_at if calls else None
    return ResponsePart(
        earlier=rounds[:place],
        calls=calls,
        replies=[
            one
            for one in replies
            if (began is None or one.created_at > began) and (ended is None or one.created_at <= ended)
        ],
    )


async def with_referenced(
    connection: Connection, account: str, sent: Sequence[InputMessage]
) -> Sequence[InputMessage]:
    """Return messages with the texts of those that are given by their ids; unknown ones stay empty."""
    ids = {one.reference for one in sent if one.reference}
    if not ids:
        return sent
    known = await messages.list_spoken(connection, account, ids)
    return [_referenced(one, known) for one in sent]


def _referenced(message: InputMessage, known: Mapping[str, tuple[str, str]]) -> InputMessage:
    found = known.get(message.reference or "")
    if found is None:
        return message
    role, text = found
    return InputMessage(role="user" if role == "user" else "assistant", content=text[:MAX_INPUT])


def pending_call_item(approval: Approval) -> Item:
    """Return the call that an approval stands for as an item."""
    return call_item(ClientToolCalled.parse(approval.id, approval.args))


def output_item(approval: Approval) -> Item:
    """Return the result of an answered call as an item; one with files is a list of parts."""
    text = approval.comment or ""
    parts = [{"type": "input_text", "text": text}] if text else []
    kind, prefix = ("custom_tool", "ctco") if approval.args.get("custom") else ("function", "fco")
    return {
        "type": f"{kind}_call_output",
        "id": f"{prefix}_{approval.id.removeprefix('apr_')}",
        "call_id": openai_ids.from_approval(approval.id),
        "output": [*parts, *map(_file_part, approval.files)] if approval.files else text,
        "status": "completed",
    }


def _file_part(stored: Mapping[str, Any]) -> Item:
    file = openai_ids.from_file(stored["id"])
    if stored["type"].startswith("image/"):
        return {"type": "input_image", "file_id": file, "detail": "auto"}
    return {"type": "input_file", "file_id": file, "filename": stored["name"]}


def call_item(called: ClientToolCalled) -> Item:
    """Return a call of a client's tool as an item."""
    kind, prefix = ("custom_tool_call", "ctc") if called.is_custom else ("function_call", "fc")
    return {
        "type": kind,
        "id": f"{prefix}_{called.approval.removeprefix('apr_')}",
        "call_id": openai_ids.from_approval(called.approval),
        "name": called.name,
        **({"namespace": called.namespace} if called.namespace else {}),
        _CALL_TEXTS[kind]: called.text,
        "status": "completed",
    }


_CALL_TEXTS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field of a call that has what the model gave, which is streamed, by the item's type."""


class _Result(LenientRequest):
    call_id: CallName


class _FunctionCall(_Result):
    name: CallName
    arguments: Text


class _CustomCall(_Result):
    name: CallName
    input: Text


class _ReasoningPart(LenientRequest):
    type: Annotated[StrictStr, Field(max_length=60)]
    text: Text


class _Reasoning(LenientRequest):
    summary: tuple[_ReasoningPart, ...]
    content: tuple[_ReasoningPart, ...] | None = None


_KINDS: Mapping[str, tuple[str, type[LenientRequest]]] = {
    "function_call": ("fc", _FunctionCall),
    "custom_tool_call": ("ctc", _CustomCall),
    "function_call_output": ("fco", _Result),
    "custom_tool_call_output": ("ctco", _Result),
    "reasoning": ("rs", _Reasoning),
}
"""The prefix of an item's id, and the fields that it must have."""


MAX_KEPT_TEXT = 32_000
"""Characters of a text in an item of another type; a longer one, such as an image, is left out."""


def to_kept_item(message: InputMessage, place: int) -> Item | None:
    """Return a call of a tool, a result, reasoning or an item of another type to keep; raises a 422.

    None: it is a message. Images and files of a result are left out, with a line in place of each, and so
    is what only the provider of a model decrypts in reasoning.
    """
    given = message.item
    if given is None:
        return None
    kind = given["type"]
    if not isinstance(kind, str) or len(kind) > MAX_KIND:
        raise invalid_field(f"/items/{place}/type", f"the type must be a text, {MAX_KIND} characters at most")
    if kind not in _KINDS:
        return {**_shortened(dict(given)), "id": new_id("item")}
    prefix, model = _KINDS[kind]
    try:
        fields = model.model_validate(given).model_dump(exclude_none=True)
    except ValidationError as error:
        field, why = error.errors()[0]["loc"][0], error.errors()[0]["msg"]
        raise invalid_field(f"/items/{place}/{field}", f"{why}; {kind} needs it") from None
    output = {"output": _output(message)} if message.is_output else {}
    return {"type": kind, "id": new_id(prefix), **fields, **output, "status": "completed"}


def _shortened(value: Any) -> Any:
    """Return a value of JSON with a mark in place of each text that is too long to keep."""
    if isinstance(value, Mapping):
        return {name: _shortened(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner) for inner in value]
    if isinstance(value, str) and len(value) > MAX_KEPT_TEXT:
        return f"(left out: {len(value)} characters)"
    return value


def _output(message: InputMessage) -> str | list[dict[str, str]]:
    if isinstance(message.content, str):
        return message.content
    shown = [part.text or part.mark for part in message.parts]
    return [{"type": "input_text", "text": text} for text in shown if text]


def message_item(message: str, text: str | None, status: str = "completed") -> Item:
    """Return a message of the agent as an item; one without text has no content yet."""
    content = [] if text is None else [text_part(text)]
    return {"type": "message", "id": message, "role": "assistant", "status": status, "content": content}


def text_part(text: str) -> Item:
    """Return a text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def user_item(message: ChatMessageRow) -> Item:
    """Return a message of the user as an item."""
    text = with_files(message.text, message.attachments)
    return {
        "type": "message",
        "id": message.id,
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": text}],
    }


class ResponseEncoder:
    """Encodes one response as stream events; the same turn events give the same events and numbers."""

    def __init__(self, initial: dict[str, Any]) -> None:
        self._initial: dict[str, Any] | None = initial
        self._seq = self._next = 0
        self._item_indexes: dict[str, int] = {}

    def encode(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        """Yield the events for a turn event."""
        yield from self._start(event.seq)
        if isinstance(event, TextDelta):
            yield from self._text_delta(event)
        elif isinstance(event, MessageDone):
            yield from self._message_done(event)

    def encode_end(self, end: TurnEnded | ClientCalls, response: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of the end, with the calls of the client's tools."""
        yield from self._start(end.seq)
        for called in end.calls if isinstance(end, ClientCalls) else ():
            yield from self._call(end.seq, call_item(called))
        yield self._event(end.seq, _END_EVENTS[response["status"]], response=response)

    def _call(self, seq: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        index = self._item_indexes[item["id"]] = len(self._item_indexes)
        place = {"output_index": index, "item_id": item["id"]}
        field = _CALL_TEXTS[item["type"]]
        begun = {**item, field: "", "status": "in_progress"}
        yield self._event(seq, "response.output_item.added", output_index=index, item=begun)
        text, kind = item[field], f"response.{item['type']}_{field}"
        named = {"name": item["name"]} if field == "arguments" else {}
        yield self._event(seq, f"{kind}.delta", **place, delta=text)
        yield self._event(seq, f"{kind}.done", **place, **named, **{field: text})
        yield self._event(seq, "response.output_item.done", output_index=index, item=item)

    def _start(self, seq: int) -> Iterator[dict[str, Any]]:
        started, self._initial = self._initial, None
        if started is not None:
            yield self._event(seq, "response.created", response=started)
            yield self._event(seq, "response.in_progress", response=started)

    def _text_delta(self, event: TextDelta) -> Iterator[dict[str, Any]]:
        if event.message not in self._item_indexes:
            self._item_indexes[event.message] = len(self._item_indexes)
            item = message_item(event.message, None, "in_progress")
            yield self._item_event(event, "response.output_item.added", item=item)
            yield self._text_event(event, "response.content_part.added", part=text_part(""))
        yield self._text_event(event, "response.output_text.delta", delta=event.text, logprobs=[])

    def _message_done(self, event: MessageDone) -> Iterator[dict[str, Any]]:
        if event.message not in self._item_indexes:
            return  # an answer without text, but with files
        yield self._text_event(event, "response.output_text.done", text=event.text, logprobs=[])
        yield self._text_event(event, "response.content_part.done", part=text_part(event.text))
        yield self._item_event(
            event, "response.output_item.done", item=message_item(event.message, event.text)
        )

    def _item_event(self, event: TextDelta | MessageDone, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(event.seq, kind, output_index=self._item_indexes[event.message], **fields)

    def _text_event(self, event: TextDelta | MessageDone, kind: str, **fields: Any) -> dict[str, Any]:
        return self._item_event(event, kind, item_id=event.message, content_index=0, **fields)

    def _event(self, seq: int, kind: str, **fields: Any) -> dict[str, Any]:
        if seq != self._seq:
            self._seq, self._next = seq, 0
        number = NUMBERS_PER_EVENT * seq + self._next
        self._next += 1
        return {"type": kind, "sequence_number": number, **fields}

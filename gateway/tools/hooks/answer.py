"""What a hook is asked, and what it answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from gateway.records.tools.http_requests import OnFailure, Point

MAX_TEXT = 20_000

HookText = Annotated[str, Field(max_length=MAX_TEXT)]


class HookCall(BaseModel):
    """What a hook is asked. `id` is the same when it is asked again about the same.

    `tool`, `args` and `call` are of the points of tools; `ok` and `result` of `after_tool`; `input` of
    `before_turn`; `output` of `after_turn`.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    point: Point
    account: str
    agent: str
    conversation: str
    turn: str
    attempt: int
    tool: str | None = None
    args: Mapping[str, Any] | None = None
    call: str | None = None
    ok: bool | None = None
    result: str | None = None
    input: str | None = None
    output: str | None = None


class HookAnswer(BaseModel):
    """What a hook answers; nothing means that it allows what it was asked.

    `deny` needs a `reason`, which the model or the person reads. `args` replaces the arguments of a call,
    `input` that of a turn, `result` that of a call, `output` that of a turn. `note` is added for the model,
    after a turn for the person.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision: Literal["allow", "deny"] = "allow"
    reason: HookText = ""
    args: dict[str, Any] | None = None
    input: HookText | None = None
    result: HookText | None = None
    output: HookText | None = None
    note: HookText = ""


ALLOW = HookAnswer()


class HookFailed(Exception):
    """A hook gave no usable answer; the message is for the log."""


class Hook(Protocol):
    """One hook. `on_failure` is what its failure counts as."""

    name: str
    points: frozenset[Point]
    on_failure: OnFailure

    @abstractmethod
    async def ask(self, call: HookCall) -> HookAnswer:
        """Return the answer within the hook's time limit; raises HookFailed."""

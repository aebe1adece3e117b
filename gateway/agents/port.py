"""The door to agents: what a turn gives one, and what one says while it performs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Ceilings of one turn; 0 means none. `context_tokens` is what the model can hold (compaction).

    The budgets are ceilings of all the agent's turns together.
    """

    requests: int = 50
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    context_tokens: int = 128_000
    budget_seconds: float = 0.0
    budget_requests: int = 0
    budget_tokens: int = 0
    budget_cost: float = 0.0
    turn_timeout: float = 3600.0
    step_timeout: float = 180.0
    repeated_calls: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent record as a turn needs it. `models` is the failover list, tried in order."""

    id: str
    name: str
    models: tuple[str, ...]
    instructions: str = ""
    base_url: str | None = None
    limits: TurnLimits = field(default_factory=TurnLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecision:
    """What a person decided about one tool call."""

    approved: bool
    by: str
    comment: str = ""


ReadSteering = Callable[[], Awaitable[Sequence[str]]]
"""Return all that people have said to a turn while it runs, in order, in this attempt and earlier ones."""


async def no_steering() -> Sequence[str]:
    """Return nothing: nobody speaks to this turn."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentImage:
    """A picture a person sent, PNG, JPEG, GIF or WebP of at most 5 MB; `name` is where it lies."""

    name: str
    media_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInput:
    """One attempt at one turn. `history` is the conversation's, `saved` this turn's own progress: both are
    what this agent wrote before (Finished.history; Saved.state or Asked.state), opaque to everybody else.

    `trigger` "job" means that `input` tells the result of a background job. `decisions` maps call ids of
    an earlier Asked to what people decided; it holds all of them or none. `hear` hands
    over what is said to the turn while it runs. What it returned once is this turn's to answer: an agent
    that listens asks before each model request and keeps in its progress how much it has heard; one that
    does not listen never calls it. `attached` are lines about files: what came with the input, and what
    became of files sent earlier. `images` go to models that see; an agent keeps none of their bytes in what
    it saves, and is given them again with every attempt.
    """

    turn: str
    conversation: str
    attempt: int
    trigger: Literal["message", "job"]
    input: str
    agent: AgentSpec
    history: bytes | None = None
    checkpoint: bytes | None = None
    decisions: Mapping[str, ApprovalDecision] = field(default_factory=dict)
    read_steering: ReadSteering = no_steering
    attachment_lines: tuple[str, ...] = ()
    images: tuple[AgentImage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model is told of it; `schema` is the JSON schema of its arguments object."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool call came to: `content` is for the model, cut to the output limit; `detail` holds the
    same in parts (exit_code, stdout, …) for those who show it to a person."""

    ok: bool
    content: str
    detail: Mapping[str, Any] = field(default_factory=dict)


class Tools(Protocol):
    """What the agent may do in this turn. Calls are checkpointed: a call id that was carried out in an
    earlier attempt returns the recorded result and does nothing."""

    @abstractmethod
    def list(self) -> Sequence[ToolSpec]:
        """Return the tools of this turn."""

    @abstractmethod
    async def needs_approval(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> bool:
        """Say whether a person must approve this call first (and has not yet)."""

    @abstractmethod
    async def call(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> ToolResult:
        """Carry a call out and tell the stream; wrong arguments and failures are a ToolResult too.

        A call that still asks is refused by a ToolResult. `typed_by_asker`: a person typed this very
        command, which counts as that person's approval where that person may approve at all.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Some more of the message being said."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCompleted:
    """A complete message; the deltas since the last one are its parts."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the model counted for this turn."""

    model: str = ""
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequestEnded:
    """A request to the turn's model has ended; `failed` names the kind of error. For those who measure."""

    started_at: datetime
    ended_at: datetime
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Progress worth resuming from after a crash: a later attempt gets it as Work.saved.

    `usage` is what the turn has used so far.
    """

    state: bytes
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingToolCall:
    """A tool call that waits for a person."""

    id: str
    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequired:
    """The turn pauses until people have decided about all these calls; always the last step."""

    calls: tuple[PendingToolCall, ...]
    state: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The turn's result; always the last step. `output` was already Said; `history` replaces the old."""

    output: str
    history: bytes | None = None
    usage: Usage = field(default_factory=Usage)


AgentEvent = Delta | MessageCompleted | ModelRequestEnded | Checkpoint | ApprovalRequired | Finished


class AgentError(Exception):
    """The agent cannot finish this turn; the message is for the person who asked.

    `retryable` errors (the model's service is down) may be tried again by a later attempt.
    """

    def __init__(self, detail: str, *, retryable: bool = False) -> None:
        super().__init__(detail)
        self.retryable = retryable


class AgentClosed(AgentError):
    """The agent was closed during the attempt because this process stops; another process can run the turn."""

    def __init__(self) -> None:
        super().__init__("The gateway stopped during this attempt.", retryable=True)


class Agent(Protocol):
    """Who performs turns. Stateless: everything it must remember goes through Work and its steps."""

    @abstractmethod
    def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Perform one attempt, yielding steps as they come; raises AgentError.

        Cancelling the iteration cancels the model call and the running tool.
        """

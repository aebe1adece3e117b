"""The port of agents: the input of an attempt and the events it yields."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from delivery.deliveries.transactions import Transaction
from gateway.agents.history import HistoryEntry

CUT_NOTICES = {
    "length": "(The answer ends here because the model reached its output limit. Ask it to continue.)",
    "content_filter": "(The answer ends here because the model's content filter stopped it.)",
}
"""What people read below an answer that is not complete, by its finish reason (OpenAI's names)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Limits of one turn; 0 means none. `context_tokens` is the model's context window (compaction).

    The budgets limit all the agent's turns together.
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
    budget_day_requests: int = 0
    budget_day_tokens: int = 0
    budget_day_cost: float = 0.0
    budget_month_requests: int = 0
    budget_month_tokens: int = 0
    budget_month_cost: float = 0.0
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
    """A person's decision about one tool call."""

    approved: bool
    by: str
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormat:
    """The form of a turn's answer: one JSON object, or JSON that matches a schema and nothing else.

    The fields are those of OpenAI's `json_schema`; `schema` is None for any object (`json_object`).
    """

    schema: Mapping[str, Any] | None = None
    name: str = "answer"
    description: str = ""
    is_strict: bool = False


ANY_TOOL = "*"
"""The name that stands for any tool of the client, where a tool is required."""

ReadSteering = Callable[[], Awaitable[Sequence[str]]]
"""Return all messages the turn received while it runs, in order, including those of earlier attempts."""


async def no_steering() -> Sequence[str]:
    """Return nothing: this turn receives no messages."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentImage:
    """An image from a user: PNG, JPEG, GIF or WebP of at most 5 MB; `name` is its path."""

    name: str
    media_type: str
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnInput:
    """The input of one attempt at one turn.

    `history` is what the conversation's earlier turns added to it, oldest first. `checkpoint` is this turn's
    own progress, which this agent wrote before (`Checkpoint.state` or `ApprovalRequired.state`).
    `trigger` "job" means that `input` is the result of a background job, "compact" that a person asks for a
    summary of the history in its place and there is no input. `decisions` maps call ids of an
    earlier `ApprovalRequired` to the decisions; it contains all of them or none.

    `read_steering` returns the messages that the turn received while it runs. A returned message is
    answered by this turn. An agent that supports steering calls it before each model request and keeps in
    its progress how many messages it has processed; others never call it.

    `attachment_lines` describe files: those that came with the input, and the outcome of files sent
    earlier. `images` are for models that accept images; an agent does not save their bytes and receives
    them again with every attempt. So it does `answer_images`, which it saw as images of tools' results.

    With an `output_format` the turn has one message, its answer. Only language models have formats.
    `required_tool` is what the model's response after `required_after` others has to call, if its vendor can
    enforce that: the name of a tool, `ANY_TOOL` for one of the `client_tools`, or nothing. With
    `single_calls`, only the first call of each response is made.
    """

    turn: str
    conversation: str
    attempt: int
    trigger: Literal["message", "job", "compact"]
    input: str
    agent: AgentSpec
    history: Sequence[HistoryEntry] = ()
    checkpoint: bytes | None = None
    decisions: Mapping[str, ApprovalDecision] = field(default_factory=dict)
    read_steering: ReadSteering = no_steering
    attachment_lines: tuple[str, ...] = ()
    images: tuple[AgentImage, ...] = ()
    answer_images: tuple[AgentImage, ...] = ()
    output_format: OutputFormat | None = None
    required_tool: str = ""
    required_after: int = 0
    client_tools: frozenset[str] = frozenset()
    single_calls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as it is described to a model; `schema` is the JSON schema of its arguments object."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool call came to: `content` is for the model, cut to the output limit; `detail` holds the
    same in parts (exit_code, stdout, …) for those who show it to a person. `images` are shown to the model
    once: a recorded result has none."""

    ok: bool
    content: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[AgentImage, ...] = ()


class Tools(Protocol):
    """The tools of a turn.

    Calls are checkpointed: a call id that was executed in an earlier attempt returns the recorded result
    and does nothing.
    """

    @abstractmethod
    def list(self) -> Sequence[ToolSpec]:
        """Return the tools of this turn. Raises nothing."""

    @abstractmethod
    async def needs_approval(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> bool:
        """Return whether a person must approve this call first (and has not yet).

        False for an unknown tool and for invalid arguments. Raises ConfigurationChanged, DatabaseUnavailable.
        """

    @abstractmethod
    async def call(
        self, name: str, args: Mapping[str, Any], *, call: str, typed_by_asker: bool = False
    ) -> ToolResult:
        """Execute a call and publish its events; invalid arguments and failures are a ToolResult too.

        A call that still needs approval returns a failed ToolResult. `typed_by_asker`: the person typed this
        very command, which counts as approval if that person may approve. Raises LeaseLost once another
        attempt has the turn, ConfigurationChanged, and DatabaseUnavailable.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Another part of the current message."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCompleted:
    """A complete message; the deltas since the last one are its parts."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The model usage of this turn."""

    model: str = ""
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequestStarting:
    """A request to the turn's model follows, which reserves its share of budgets.

    An agent yields it before each request: the caller raises AgentError if a budget is used up.
    `estimate_tokens` returns about how many tokens the request has.
    """

    estimate_tokens: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequestEnded:
    """A request to the turn's model has ended; `error` is the kind of error.

    `usage` is the turn's usage so far, with this request; None if the request failed.
    """

    started_at: datetime
    ended_at: datetime
    error: str | None = None
    usage: Usage | None = None


RecordUsage = Callable[[Transaction], Awaitable[None]]
"""Record the usage of a turn in the transaction that saves what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Progress to resume from after a crash; a later attempt gets it as `TurnInput.checkpoint`.

    `state` is bytes of `history.encode_progress`: if the turn fails or is cancelled, they become its entry
    in the history. `usage` is the turn's usage so far; `record_usage` is set by who meters the agent.
    """

    state: bytes
    usage: Usage = field(default_factory=Usage)
    record_usage: RecordUsage | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingToolCall:
    """A tool call that waits for approval."""

    id: str
    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequired:
    """The turn pauses until all these calls are decided; always the last event. `usage` is that so far."""

    calls: tuple[PendingToolCall, ...]
    state: bytes
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The turn's result; always the last event. `history` is what the turn adds to the conversation's.

    `record_usage` is set by who meters the agent.
    """

    output: str
    history: HistoryEntry | None = None
    usage: Usage = field(default_factory=Usage)
    record_usage: RecordUsage | None = field(default=None, repr=False, compare=False)


AgentEvent = (
    Delta
    | MessageCompleted
    | ModelRequestStarting
    | ModelRequestEnded
    | Checkpoint
    | ApprovalRequired
    | Finished
)


class AgentError(Exception):
    """The agent cannot finish this turn; the message is shown to the user.

    `retryable` errors (the model's service is down) may succeed in a later attempt.
    """

    def __init__(self, detail: str, *, retryable: bool = False) -> None:
        super().__init__(detail)
        self.retryable = retryable


class AgentClosed(AgentError):
    """The agent was closed because this process stops; another process can run the turn."""

    def __init__(self) -> None:
        super().__init__("The gateway stopped during this attempt.", retryable=True)


class ConfigurationChanged(Exception):
    """The agent's tools, or where they run, were changed: another attempt continues with the present ones."""


class Agent(Protocol):
    """An agent runs turns. Stateless: its memory is in `TurnInput` and in the events it yields."""

    @abstractmethod
    def run(self, turn_input: TurnInput, tools: Tools) -> AsyncGenerator[AgentEvent, None]:
        """Run one attempt and yield its events.

        Raises AgentError if the turn cannot be finished, and what the methods of `tools` raise. Cancelling
        the iteration cancels the model call and the running tool.
        """

"""The port of model clients: what a model is asked, and what it answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.agents.clients.messages import ChatMessage
from gateway.agents.port import OutputFormat, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EarlierTurn:
    """The messages of an earlier turn, or of several in a row, which never change.

    A client may keep in `encoded` how it sends them, under a name of its own.
    """

    messages: Sequence[ChatMessage]
    encoded: dict[str, str] = field(default_factory=dict, init=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQuery:
    """One request: a conversation that `messages.repaired` returned, instructions, and the tools to call.

    `earlier` are the turns whose messages come first in `messages`. A client whose vendor can enforce the
    `output_format` passes it on; the instructions describe it too. With `requires_call` it asks its vendor
    to enforce that the response calls one of the `tools`.
    """

    messages: Sequence[ChatMessage]
    earlier: Sequence[EarlierTurn] = ()
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    output_format: OutputFormat | None = None
    requires_call: bool = False


class ModelClient(Protocol):
    """Sends requests to one model, or to the first of several that answers. Holds no state of a turn."""

    @abstractmethod
    def ask(self, query: ModelQuery) -> AsyncGenerator[str | ChatMessage, None]:
        """Yield the answer: pieces of its text, and at last the whole response as a message.

        The first piece comes at once, later ones at most every 50 ms. Nothing is yielded before the model
        has begun to answer. Raises ModelCallError. Closing the iteration, or cancelling it, closes the
        connection.
        """

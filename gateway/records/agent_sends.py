"""Where an agent may send messages besides its own conversation: `config.sends`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, StrictStr, model_validator

from egress.typed_model import TypedModel

MAX_TARGETS = 50

TargetName = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=60)]
Place = Annotated[StrictStr, Field(min_length=1, max_length=300)]


class SendTarget(TypedModel):
    """A conversation by its id or own name, or a chat: a channel, a room there, and a thread in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    conversation: Place | None = None
    channel: Place | None = None
    room: Place | None = None
    thread: Place | None = None

    @model_validator(mode="after")
    def _one_of(self) -> SendTarget:
        is_chat = self.channel is not None and self.room is not None
        is_partial = not is_chat and (self.channel, self.room, self.thread) != (None, None, None)
        if is_partial or (self.conversation is not None) == is_chat:
            raise ValueError("give either conversation, or channel and room (and thread)")
        return self


class AgentSends(TypedModel):
    """The places that an agent may send to, by the names that it knows; none unless they are listed.

    `approval`: whether a person must approve each message, or change of one, first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: Annotated[dict[TargetName, SendTarget], Field(max_length=MAX_TARGETS)] = Field(default_factory=dict)
    approval: Literal["always", "never"] = "always"

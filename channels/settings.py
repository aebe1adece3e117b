"""What every channel's settings share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints


def _id_as_text(value: object) -> object:
    """Take platform ids written as numbers: TOML and JSON users do."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


AllowedUser = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1), BeforeValidator(_id_as_text)
]


class RoomSettings(BaseModel):
    """What is different in one room: which messages are for the bot, and which agent (by name) answers."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    groups: Literal["mention", "always", "command"] | None = None
    agent: str | None = None


class ChannelSettings(BaseModel):
    """The base of every adapter's settings: unknown keys are refused, values never stand in error texts.

    `allow` says who may talk: platform user ids, `*` for anyone, `pairing` for strangers who bring a code.
    `groups` says which messages of a group are for the bot: those that mention it, all, or commands only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    allow: tuple[AllowedUser, ...] = Field(
        default=("pairing",),
        description="User ids that may talk to the bot, `*` for anyone, `pairing` for codes.",
    )
    ambiguous: Literal["at_least_once", "at_most_once"] = Field(
        default="at_least_once",
        description="A message that may have arrived: send it again, or leave it and mark it.",
    )
    groups: Literal["mention", "always", "command"] = Field(
        default="mention", description="Which messages of a group are for the bot."
    )
    rooms: dict[str, RoomSettings] = Field(
        default_factory=dict, description="What is different in single rooms, by the platform's room id."
    )
    approvers: Literal["anyone", "asker"] | tuple[AllowedUser, ...] = Field(
        default="anyone",
        description="Who may decide about a command: `anyone` whom the bot listens to in that chat, the "
        "`asker` alone, or a list of user ids.",
    )
    messages_per_minute: int = Field(
        default=1200,
        ge=0,
        description="Messages a minute taken from one person in one room (0: no bound).",
    )
    reactions: bool = Field(
        default=False, description="Whether the bot shows by reactions that it saw and answered a message."
    )
    sends_per_second: float | None = Field(
        default=None,
        gt=0,
        le=10_000,
        description="Messages a second the platform takes from this bot (default: what it says of any bot).",
    )

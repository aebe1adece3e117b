"""What every channel's settings share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints


def _as_text(value: object) -> object:
    """Take platform ids written as numbers: TOML and JSON users do."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Allowed = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), BeforeValidator(_as_text)]


class ChannelSettings(BaseModel):
    """The base of every adapter's settings: unknown keys are refused, values never stand in error texts.

    `allow` says who may talk: platform user ids, `*` for anyone, `pairing` for strangers who bring a code.
    `groups` says which messages of a group are for the bot: those that mention it, all, or commands only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    allow: tuple[Allowed, ...] = Field(
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
    sends_per_second: float | None = Field(
        default=None,
        gt=0,
        le=10_000,
        description="Messages a second the platform takes from this bot (default: what it says of any bot).",
    )

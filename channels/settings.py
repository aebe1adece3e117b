"""Settings that all channels share."""

from __future__ import annotations

from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints

from egress.typed_model import TypedModel


def _id_as_text(value: object) -> object:
    """Accept platform ids written as numbers, as TOML and JSON users write them."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


AllowedUser = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1), BeforeValidator(_id_as_text)
]


def _require_timezone(value: str) -> str:
    try:
        return ZoneInfo(value).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone {value[:60]!r}: use a name of IANA, such as Europe/Berlin"
        ) from None


TimeZoneName = Annotated[str, AfterValidator(_require_timezone)]

MAX_CONTEXT_MESSAGES = 200
MAX_CONTEXT_BYTES = 65_536
MAX_RESET_SECONDS = 366 * 86_400
MAX_HOUR = 23


class RoomSettings(TypedModel):
    """Overrides for one room: which messages are for the bot, and which agent (by name) answers.

    `context_messages` and `context_bytes` limit what the model gets of the messages before the bot's own.
    `reset_after` are the seconds without messages after which a new conversation begins, `reset_daily` is the
    hour of the day at which it does (-1: never).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    groups: Literal["mention", "always", "command"] | None = None
    agent: str | None = None
    context_messages: int | None = Field(default=None, ge=0, le=MAX_CONTEXT_MESSAGES)
    context_bytes: int | None = Field(default=None, ge=1, le=MAX_CONTEXT_BYTES)
    reset_after: int | None = Field(default=None, ge=0, le=MAX_RESET_SECONDS)
    reset_daily: int | None = Field(default=None, ge=-1, le=MAX_HOUR)


class ChannelSettings(TypedModel):
    """Base of every adapter's settings; unknown keys are refused, and errors never show values.

    `allow` lists who may use the bot: platform user ids, `*` for anyone, `pairing` for unknown users who
    bring a code. `groups` selects which group messages are for the bot: those that mention it, all, or
    commands only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    allow: tuple[AllowedUser, ...] = Field(
        default=("pairing",),
        description="User ids that may use the bot, `*` for anyone, `pairing` for pairing codes.",
    )
    ambiguous: Literal["at_least_once", "at_most_once"] = Field(
        default="at_least_once",
        description="After a send that may have arrived: send again, or stop and mark it.",
    )
    groups: Literal["mention", "always", "command"] = Field(
        default="mention", description="Which messages of a group are for the bot."
    )
    rooms: dict[str, RoomSettings] = Field(
        default_factory=dict, description="Overrides for single rooms, by the platform's room id."
    )
    approvers: Literal["anyone", "asker"] | tuple[AllowedUser, ...] = Field(
        default="anyone",
        description="Who may approve a command: `anyone` who may use the bot in that chat, the `asker` "
        "alone, or a list of user ids.",
    )
    messages_per_minute: int = Field(
        default=1200,
        ge=0,
        description="Messages per minute accepted from one user in one room (0: no limit).",
    )
    context_messages: int = Field(
        default=20,
        ge=0,
        le=MAX_CONTEXT_MESSAGES,
        description="Earlier messages of a room or thread that the model gets with a message (0: none).",
    )
    context_bytes: int = Field(
        default=16_384,
        ge=1,
        le=MAX_CONTEXT_BYTES,
        description="Bytes that the earlier and quoted messages may have together.",
    )
    reset_after: int = Field(
        default=0,
        ge=0,
        le=MAX_RESET_SECONDS,
        description="Seconds without messages after which the next one begins a new conversation (0: never).",
    )
    reset_daily: int | None = Field(
        default=None,
        ge=-1,
        le=MAX_HOUR,
        description="Hour of the day from which the next message begins a new conversation (-1: never).",
    )
    reset_timezone: TimeZoneName | None = Field(
        default=None, description="Time zone of `reset_daily` (default: the account's, or the operator's)."
    )
    reactions: bool = Field(
        default=False, description="Whether the bot reacts to a message when it has seen and answered it."
    )
    sends_per_second: float | None = Field(
        default=None,
        gt=0,
        le=10_000,
        description="Messages per second the platform accepts from this bot (default: its documented limit).",
    )

    def groups_in(self, room: str) -> str:
        """Return which messages of a room are for the bot."""
        found = self.rooms.get(room)
        return (found.groups if found else None) or self.groups

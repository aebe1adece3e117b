"""The services that stream connections use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from delivery.events.port import EventStream
from gateway.accounts.api_keys import Principal
from gateway.web.http.rate_limit import RateLimitState
from gateway.web.stream.frames import ApproveFrame, CancelFrame, SendFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedMessage:
    """The turn and conversation of an accepted message; a command has no turn, but its name and reply."""

    turn: str | None
    conversation: str
    command: str | None = None
    reply: str | None = None

    def frame(self, message: str) -> dict[str, object]:
        """Return the frame that accepts a message of this id."""
        shape: dict[str, object] = {
            "type": "accepted",
            "id": message,
            "turn": self.turn,
            "conversation": self.conversation,
        }
        return shape if self.command is None else shape | {"command": self.command, "reply": self.reply}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamServices:
    """The services of a connection; commands raise ProtocolError, `authenticate` raises HttpProblem.

    `count_frame` counts a frame for the rate limit of the key, as a request is counted.
    `wait_until_published` waits for the events of an account's conversation that are recorded but not yet in
    the stream. `published_seq` returns the last seq that a conversation ever had in the stream.
    """

    stream: EventStream
    authenticate: Callable[[web.Request, str], Awaitable[Principal]]
    count_frame: Callable[[Principal], RateLimitState]
    wait_until_published: Callable[[str, str], Awaitable[object]]
    published_seq: Callable[[str], Awaitable[int]]
    find_conversation: Callable[[Principal, str], Awaitable[str | None]]
    get_or_create_conversation: Callable[[Principal, str], Awaitable[str | None]]
    submit: Callable[[Principal, SendFrame], Awaitable[SubmittedMessage]]
    decide: Callable[[Principal, ApproveFrame], Awaitable[None]]
    cancel: Callable[[Principal, CancelFrame], Awaitable[None]]

"""The door to a chat platform: what an adapter promises and what it may rely on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from channels.errors import Unsupported
from channels.message import (
    Address,
    ButtonPress,
    Command,
    DraftText,
    File,
    Reply,
    SentMessage,
    StatusReaction,
    Update,
)
from channels.settings import ChannelSettings

Accept = Callable[[Update], Awaitable[None]]
"""Store an update durably. When it returns, the update is ours and the platform may be told so; when it
raises, the platform must be left to deliver the update again."""


class ChannelFeature(StrEnum):
    """What a platform can do beyond sending; a method of an undeclared one raises Unsupported."""

    EDIT = "edit"
    TYPING = "typing"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    BUTTONS = "buttons"
    PROMPTS = "prompts"
    """A button may ask for words (Button.prompt)."""
    REACT = "react"
    STREAM = "stream"
    """The platform shows a reply while it is being said, by calls of its own."""
    IDEMPOTENT_SEND = "idempotent_send"
    """A send with a known key is recognised and not carried out twice."""
    FIND = "find"
    """Whether a send was carried out can be looked up by its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRequest:
    """An HTTP request a platform posted to us; header names are lower-case, the body is bounded."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookResponse:
    """What we answer to an Incoming request."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"


RECENT_PREFIX = "recent:"
"""How the names of notes begin that matter only while what they are about may be repeated."""


class ChannelState(Protocol):
    """A channel's small durable memory, shared by all replicas: how far it has read, which rooms it knows.

    Names are at most 200 characters, values at most 1,000; hints only, never secrets. A note whose value is
    empty may be forgotten after a day, and one whose name begins with RECENT after a month.
    """

    @abstractmethod
    async def get(self, name: str) -> str | None:
        """Return what was put under a name."""

    @abstractmethod
    async def set(self, values: Mapping[str, str]) -> None:
        """Keep notes durably, each under its name; raises when they cannot be kept."""

    @abstractmethod
    async def list(self, prefix: str = "") -> Mapping[str, str]:
        """Return the newest notes (10,000 at the most) whose names begin so."""


class ReceiverStatus(Protocol):
    """Is told whether updates really arrive here, and when they do not, why not."""

    @abstractmethod
    def __call__(self, is_receiving: bool, reason: str = "", /) -> None:  # noqa: FBT001 - read as a sentence: receiving(True)
        """Take what is the case now; `why` is for an operator to read."""


class Receiver(Protocol):
    """The receiving half of a channel: pulls (`run`) or is posted to (`receive`), by its settings."""

    @abstractmethod
    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled, calling `accept` once for every update and acknowledging only after.

        Order within a room is kept. Connection failures are retried inside, with back-off, and reported
        through `receiving(False, why)`; `receiving(True)` says that updates really arrive. Raises
        Unauthorized or Conflict when only an operator can help. In webhook mode it registers the webhook
        where the platform wants that, then waits for cancellation. Returns within a second of cancellation.
        """

    @abstractmethod
    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Verify a posted request in constant time, accept its updates, and answer.

        401 for anything unsigned or wrongly signed (and in polling mode), 400 for garbage behind a valid
        signature, 2xx only after `accept` has returned. Never raises for bad input.
        """


class Sender(Protocol):
    """The sending half of a channel. Adapters do not retry, limit, split or decide: they translate."""

    @abstractmethod
    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message; raises ChannelError. One HTTP request at the most reaches the platform.

        Markup the platform refuses is sent once more as plain text (a refusal is known not to be sent).
        """

    @abstractmethod
    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Make the message show `reply`; saying the same again succeeds. Feature EDIT.

        `platform_id` may be one that `show` returned: then this ends the showing. The answer's is the
        message's own.
        """

    async def update_draft(self, address: Address, draft: DraftText) -> SentMessage | None:
        """Show what has been said so far; the answer is for the next call and for `edit`. Feature STREAM.

        None: what is shown is a preview that goes away by itself; the final text is sent as any other.
        """
        del address, draft
        raise Unsupported

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Say whether a reply or file of this key was taken since then. Feature FIND."""
        del address, key, since
        raise Unsupported

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Put our sign under a message, in place of an earlier one; None takes it away. Feature REACT."""
        del address, platform_id, reaction
        raise Unsupported

    @abstractmethod
    async def typing(self, address: Address) -> None:
        """Show that we are at work, for the few seconds the platform grants. Feature TYPING."""

    @abstractmethod
    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file as a native attachment. Feature UPLOAD."""

    @abstractmethod
    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an Attachment's `ref` in chunks. Feature DOWNLOAD."""

    @abstractmethod
    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Tell the person who pressed a button (or gave a command with a token) what came of it, once.

        Seen by that person alone where the platform can. Feature BUTTONS.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A configured bot at work: its two halves and who it is on the platform."""

    receiver: Receiver
    sender: Sender


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of `dovecote channels test`: what was looked at, whether it is well, and what to do."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """A platform's limits: text in the units of `measure`, files in bytes, edits and sends per second.

    `room_sends_per_minute` (0: none) holds in the rooms of which `is_crowded(room)` is true, all by default.
    `recognised_seconds`: for how long a repeated send is recognised (Feature IDEMPOTENT_SEND).
    """

    text: int
    upload_bytes: int = 0
    room_sends_per_second: float = 1.0
    room_sends_per_minute: int = 0
    account_sends_per_second: float = 30.0
    typing_seconds: float = 5.0
    recognised_seconds: float = float("inf")
    measure: Callable[[str], int] = len
    is_group: Callable[[str], bool] = lambda _room: True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPlugin:
    """The manifest of an adapter: known without importing its SDK.

    `settings` extends ChannelSettings and holds secrets as SecretStr; every endpoint
    the adapter calls is one of its fields. `open(channel_id, settings, notes)` is an async context manager
    that imports the SDK, yields the Connection, and closes everything on exit. `probe(settings)` answers
    `channels test`. `account(settings)` names the bot account (for the lease) without a network call.
    """

    name: str
    title: str
    features: frozenset[ChannelFeature]
    limits: ChannelLimits
    settings: type[ChannelSettings]
    open: Callable[[str, Any, ChannelState], AbstractAsyncContextManager[Connection]]
    probe: Callable[[Any], Awaitable[tuple[CheckResult, ...]]]
    account: Callable[[Any], str]
    polls: Callable[[Any], bool]
    simulate: Callable[[], AbstractAsyncContextManager[Any]] | None = None

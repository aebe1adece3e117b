"""The port to a chat platform: what an adapter promises and what it may rely on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Protocol

from channels.emoji import ReactionEmoji
from channels.errors import Unsupported
from channels.message import (
    Address,
    ButtonPress,
    Command,
    DraftText,
    File,
    Message,
    Reply,
    SentMessage,
    StatusReaction,
    ToolSteps,
    Update,
)
from channels.settings import ChannelSettings
from egress.guard import EgressGuard

Accept = Callable[[Update], Awaitable[None]]
"""Store an update durably.

When it returns, the adapter may acknowledge the update to the platform. When it raises, the adapter must not
acknowledge, so that the platform delivers the update again.
"""


class ChannelFeature(StrEnum):
    """Optional abilities of a platform; a method of an undeclared feature raises Unsupported."""

    EDIT = "edit"
    DELETE = "delete"
    TYPING = "typing"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    BUTTONS = "buttons"
    PROMPTS = "prompts"
    """A button may ask for a comment (Button.prompt)."""
    REACT = "react"
    EDITS = "edits"
    """People's changes to their messages arrive as updates."""
    REACTIONS = "reactions"
    """People's reactions to messages arrive as updates."""
    STREAM = "stream"
    """The platform shows a reply while it is generated, by calls of its own."""
    STEPS = "steps"
    """The platform shows the tool calls of a turn while they run."""
    IDEMPOTENT_SEND = "idempotent_send"
    """A repeated send with a known key is recognised and not carried out twice."""
    FIND = "find"
    """The platform can be asked whether a send with a key was carried out."""
    CONFIDENTIAL = "confidential"
    """The author of a message in a room can get an answer that only they can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRequest:
    """An HTTP request that a platform posted; header names are lower-case, the body is bounded."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookResponse:
    """The response to a WebhookRequest."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"


RECENT_PREFIX = "recent:"
"""Prefix of the names of values that may be deleted after a month."""


class ChannelSecrets(Protocol):
    """A channel's secrets, such as the tokens of workspaces that installed it; encrypted in the database.

    Names have at most 200 characters. A secret whose name begins with RECENT_PREFIX may be deleted after an
    hour. Each method raises DatabaseUnavailable, a RuntimeError, if the database does not answer, and
    DecryptionFailed for a secret whose key is gone.
    """

    @abstractmethod
    async def get(self, name: str) -> str | None:
        """Return the secret of a name, or None."""

    @abstractmethod
    async def set(self, name: str, secret: str | None) -> None:
        """Store a secret durably under a name, or delete it (None)."""

    @abstractmethod
    async def take(self, name: str) -> str | None:
        """Return and delete the secret of a name; of concurrent calls one returns it, the others None."""

    @abstractmethod
    async def list(self, prefix: str, *, after: str = "", limit: int = 200) -> Mapping[str, str]:
        """Return up to `limit` secrets by name, in order: with `prefix`, and after the name `after`."""


class ChannelState(Protocol):
    """A channel's small durable key-value state, shared by all replicas, such as read positions.

    Names have at most 200 characters, values at most 1,000; values are hints, never secrets. A name with an
    empty value may be deleted after a day, a name that begins with RECENT_PREFIX after a month. Each method
    raises DatabaseUnavailable, a RuntimeError, if the database does not answer.
    """

    secrets: ChannelSecrets | None = None
    """Where the adapter keeps secrets; None where there is no such store."""

    @abstractmethod
    async def get(self, name: str) -> str | None:
        """Return the value of a name, or None."""

    @abstractmethod
    async def set(self, values: Mapping[str, str]) -> None:
        """Store values durably, each under its name: all of them or, if this raises, none."""

    @abstractmethod
    async def list(self, prefix: str = "") -> Mapping[str, str]:
        """Return the newest values (at most 10,000) by name, of names that begin with `prefix`."""


class ReceiverStatus(Protocol):
    """Callback by which a receiver reports whether updates arrive."""

    @abstractmethod
    def __call__(self, is_receiving: bool, reason: str = "", /) -> None:  # noqa: FBT001 - reads well: receiving(True)
        """Record the present state; `reason` is for an operator to read. Raises nothing."""


class Receiver(Protocol):
    """The receiving half of a channel: it pulls (`run`) or handles posted requests (`receive`)."""

    @abstractmethod
    async def run(self, accept: Accept, *, receiving: ReceiverStatus) -> None:
        """Receive until cancelled; call `accept` once for every update and acknowledge only afterwards.

        Order within a room is preserved. Connection failures, and errors that `accept` raises, are retried
        with back-off; failures are reported through `receiving(False, reason)`; `receiving(True)` reports
        that updates arrive. Raises Unauthorized, ConnectedElsewhere or another error of the remedy "operator"
        if only an operator can help. In webhook mode it registers the webhook where the platform requires
        that, then waits for cancellation. Returns within a second of cancellation.
        """

    async def receive(self, request: WebhookRequest, accept: Accept) -> WebhookResponse:
        """Verify a posted request in constant time, accept its updates, and return the response.

        401 for anything unsigned or wrongly signed (and in polling mode, or without webhooks: the default),
        400 for a malformed body with a valid signature, 2xx only after `accept` has returned, 503 if it
        raises. Raises nothing for bad input.
        """
        del request, accept
        return WebhookResponse(status=401)


class Sender(Protocol):
    """The sending half of a channel. Adapters translate; they do not retry, limit, split or decide.

    Each method raises ChannelError (see `channels.errors`): Ambiguous if the request may have been carried
    out, another one if it was not. By default the methods of a feature raise Unsupported.
    """

    @abstractmethod
    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Send one message, and return its id. The platform carries out at most one request.

        Markup that the platform refuses is sent once more as plain text (a refused message was not sent).
        """

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Replace a message's content by `reply`; repeating the same content succeeds. Feature EDIT.

        `platform_id` may be one that `update_draft` returned: then this ends the draft. The returned id is
        the message's own.
        """
        del address, platform_id, reply
        raise Unsupported

    async def delete(self, address: Address, platform_id: str) -> None:
        """Delete one of the bot's messages; one that no longer exists is no error. Feature DELETE."""
        del address, platform_id
        raise Unsupported

    async def update_draft(self, address: Address, draft: DraftText) -> SentMessage | None:
        """Show the text generated so far; the result is for the next call and for `edit`. Feature STREAM.

        None means that the draft is a preview that disappears by itself; the final text is sent as usual.
        """
        del address, draft
        raise Unsupported

    async def show_steps(self, address: Address, steps: ToolSteps) -> SentMessage | None:
        """Show the tool calls of a turn; the result is for the next call. Feature STEPS.

        None means that the platform does not show them in this place: no further call is made.
        """
        del address, steps
        raise Unsupported

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Return the message of a reply or file with this key sent since then, or None. Feature FIND.

        None means that it was not sent. If the platform hides the keys of the bot's messages, that is not
        known: raises Unsupported.
        """
        del address, key, since
        raise Unsupported

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set the bot's reaction on a message, replacing an earlier one; None removes it. Feature REACT."""
        del address, platform_id, reaction
        raise Unsupported

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction of the bot to a message, by the platform's name of the emoji. Feature REACT.

        Repeating succeeds. It is shown beside the status reaction, or replaces it
        (`ReactionEmoji.is_single`).
        """
        del address, platform_id, emoji
        raise Unsupported

    async def typing(self, address: Address) -> None:
        """Show a typing indicator for about `ChannelLimits.typing_seconds`. Feature TYPING."""
        del address
        raise Unsupported

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Send a file as a native attachment, and return its id; `key` is as in Reply. Feature UPLOAD."""
        del address, file, key
        raise Unsupported

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an Attachment's `ref` in chunks. Feature DOWNLOAD."""
        del ref
        raise Unsupported

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Reply once to the user who pressed a button or gave a command with a token.

        Only that user sees the reply where the platform supports it. Feature BUTTONS.
        """
        del to, text
        raise Unsupported

    async def reply_confidentially(self, to: Message | Command, text: str) -> None:
        """Reply to a message or command of a room so that only its author reads it. Feature CONFIDENTIAL.

        Raises ChannelError if the author cannot be reached in this way; then no one has seen the text.
        """
        del to, text
        raise Unsupported


ChannelPage = Literal["install", "oauth"]
"""The pages on which people install an app: where they begin, and where the platform sends them back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A person's request of one of a channel's pages; header names are lower-case."""

    page: ChannelPage
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResponse:
    """A channel's page for a person's browser.

    `installed` has the extras of the addresses for which the bot got new permissions; None if it got none.
    """

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    installed: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInstallation:
    """A workspace (or a whole organisation) that installed a channel's app; `id` is the platform's."""

    id: str
    name: str
    installed_at: datetime
    is_organisation: bool = False


class ChannelInstallations(Protocol):
    """The workspaces that installed a channel's app, and the pages on which people install it.

    Each method raises DatabaseUnavailable, a RuntimeError, if the database does not answer.
    """

    @abstractmethod
    async def show_page(self, request: PageRequest) -> PageResponse:
        """Return a page for a person's browser; 503 if the platform cannot be reached."""

    @abstractmethod
    async def list(self, *, after: str = "", limit: int = 200) -> Sequence[ChannelInstallation]:
        """Return up to `limit` installations whose ids follow `after`, in the order of ids."""

    @abstractmethod
    async def get(self, installation: str) -> ChannelInstallation | None:
        """Return the installation with an id, or None."""

    @abstractmethod
    async def uninstall(self, installation: str) -> bool:
        """Uninstall the app and forget its token; return whether it was installed; raises ChannelError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A connected bot: its receiver, its sender, and its installations if people install it.

    `account` names the bot's account if only the platform knows it; it then replaces the plugin's `account`.
    """

    receiver: Receiver
    sender: Sender
    installations: ChannelInstallations | None = None
    account: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line of `dovecote channels test`: what was checked, the result, and what to do."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """A platform's limits: text in the units of `measure`, files in bytes, sends per second or minute.

    `room_sends_per_minute` (0: none) applies to rooms for which `is_group(room)` is true, all by default.
    `recognised_seconds` is how long a repeated send is recognised (Feature IDEMPOTENT_SEND).
    `account_of(room)` names the account at the platform whose limits a room shares, such as an installation
    of an app. A rate limit of the scope "account" pauses the rooms of that name, by default all of them.
    What a thread no longer accepts goes to `public_place(address)`, if there is one: all there may read both.
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
    account_of: Callable[[str], str] = lambda _room: ""
    public_place: Callable[[Address], Address | None] = lambda _address: None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelPlugin:
    """The manifest of an adapter; loading it does not import the vendor's SDK.

    `settings` extends ChannelSettings and holds secrets as SecretStr; every endpoint the adapter calls is one
    of its fields, of the type `egress.urls.EndpointUrl` or `SocketUrl`. `open(channel_id, settings, state,
    guard)` is an async context manager that imports the SDK, yields the Connection, and closes everything on
    exit. `probe(settings, guard)` answers `channels test`. Connections are made by clients of `egress` with
    this guard, which refuses what the owner may not reach. `account(settings)` names the bot account
    without a network call: of the channels of one account only one receives. `connection_key(settings)` names
    a connection that only one record may use ("": any number may). `is_installable(settings)`: the Connection
    has `installations`. `emoji` is what bots can react with (Feature REACT).
    """

    name: str
    title: str
    features: frozenset[ChannelFeature]
    limits: ChannelLimits
    settings: type[ChannelSettings]
    open: Callable[[str, Any, ChannelState, EgressGuard], AbstractAsyncContextManager[Connection]]
    probe: Callable[[Any, EgressGuard], Awaitable[tuple[CheckResult, ...]]]
    account: Callable[[Any], str]
    connection_key: Callable[[Any], str] = lambda _settings: ""
    is_installable: Callable[[Any], bool] = lambda _settings: False
    emoji: ReactionEmoji = field(default_factory=ReactionEmoji)
    simulate: Callable[[], AbstractAsyncContextManager[Any]] | None = None

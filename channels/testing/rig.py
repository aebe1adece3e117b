"""The rig of a channel: what the suite needs to do on a platform, as a person or as the platform itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from channels.message import Button
from channels.port import WebhookRequest

WEBHOOK_SECRET = "canary-webhook-secret_1"
"""The secret with which the suite's webhooks are signed."""


@dataclass(frozen=True, slots=True)
class VisibleMessage:
    """A message of the bot as people see it, without markup; `buttons` is how many it has."""

    room: str
    thread: str | None
    text: str
    buttons: int = 0


class ChannelRig(ABC):
    """A simulated platform with one bot, one person and one group room, in which all of this happens.

    `secrets` must appear in no log and no repr. `unknown_sender` is a token that the platform refuses.
    `stop` stops the platform: connections to it are refused afterwards. `refuses_markup` is false for a
    platform that accepts any markup and renders what it knows.
    """

    secrets: Sequence[str]
    unknown_sender: str
    stop: Callable[[], Awaitable[None]]
    refuses_markup: bool = True

    @abstractmethod
    def settings(self, **others: Any) -> dict[str, Any]:
        """Return settings that lead to the platform, with `others`; `token` replaces the bot's secret."""

    @abstractmethod
    async def say(self, text: str) -> None:
        """Send a message as the person."""

    @abstractmethod
    async def say_in_thread(self, text: str) -> str | None:
        """Send a message as the person in a thread, and return the thread's id; the room may be another.

        A platform without threads sends it in the room, and returns None.
        """

    @abstractmethod
    async def echo(self, text: str) -> None:
        """Deliver a message of the bot itself to the bot."""

    @abstractmethod
    async def send_command(self, text: str) -> None:
        """Send a command as the person: `status` is `/status` where commands have a slash."""

    async def edit_message(self, platform_id: str, text: str) -> None:
        """Change a message of the person. Feature EDITS."""
        raise NotImplementedError

    @abstractmethod
    def visible_messages(self) -> list[VisibleMessage]:
        """Return the bot's messages, in order."""

    @abstractmethod
    def send_count(self) -> int:
        """Return how many sends have reached the platform, refused ones included."""

    @abstractmethod
    async def throttle(self, seconds: int) -> None:
        """Answer the next send with a rate limit of so many seconds."""

    @abstractmethod
    async def fail(self) -> None:
        """Answer the next send with a server error."""

    @abstractmethod
    async def revoke(self) -> None:
        """Refuse the bot's token from now on."""

    @abstractmethod
    async def kick(self) -> None:
        """Remove the bot from the room."""

    @abstractmethod
    async def refuse_markup(self) -> None:
        """Refuse the next send because of its markup; do nothing on a platform of plain text."""

    @abstractmethod
    async def cut_receiving(self) -> None:
        """Break the connection over which updates arrive, more than once."""

    @abstractmethod
    async def cut_sending(self, *, carried_out: bool) -> None:
        """Break the connection of the next send, after it was carried out or before."""

    async def press(self, platform_id: str, button: str) -> None:
        """Press a button as the person. Feature BUTTONS."""
        raise NotImplementedError

    async def press_with_text(self, platform_id: str, button: Button, text: str) -> None:
        """Press a button that asks for text, and answer with `text`. Feature PROMPTS."""
        raise NotImplementedError

    async def react(self, platform_id: str, *, added: bool) -> None:
        """Add or remove a reaction of the person to a message of the bot. Feature REACTIONS."""
        raise NotImplementedError

    def reactions(self, platform_id: str) -> list[str]:
        """Return the bot's reactions to a message, as the platform names them. Feature REACT."""
        raise NotImplementedError

    async def open_private_chat(self) -> None:  # noqa: B027 - most platforms need none
        """Begin a chat of the person with the bot, where the bot may not begin one. Feature CONFIDENTIAL."""

    def confidential_texts(self) -> list[str]:
        """Return what the bot has said so that only the person sees it. Feature CONFIDENTIAL."""
        raise NotImplementedError

    async def send_file(self, content: bytes) -> None:
        """Send a file as the person. Features UPLOAD and DOWNLOAD."""
        raise NotImplementedError

    async def answer_late(self, seconds: float) -> None:
        """Carry out the next send at once, and answer it after `seconds`; the suite does not need it."""
        raise NotImplementedError

    def show_keys(self) -> None:  # noqa: B027 - most platforms always show them
        """Show the keys of sends, on a platform that does not always do so. Feature FIND."""


class WebhookRig(ChannelRig):
    """A platform that can post updates to the bot.

    `signs_webhooks` is false for a platform that signs nothing: its posts only announce updates, and the
    channel reads them from the platform.
    """

    signs_webhooks: bool = True

    @abstractmethod
    def webhook_settings(self) -> dict[str, Any]:
        """Return settings for receiving by webhook, with WEBHOOK_SECRET."""

    @abstractmethod
    def webhook_request(self, body: bytes, *, secret: str | None = WEBHOOK_SECRET) -> WebhookRequest:
        """Return a request as the platform would post it, signed with the secret (None: not signed)."""

    @abstractmethod
    def update(self, text: str) -> bytes:
        """Return the body of an update about a message of the person."""

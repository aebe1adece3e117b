"""Errors of the channel port.

    ChannelError                 remedy   meaning
    ├── RateLimited              retry    wait `retry_after` seconds; `scope` is the room or the account
    ├── Unreachable              retry    nothing was sent: connection refused, DNS, or a clear refusal
    ├── Ambiguous                retry    it may have been sent: time-out, reset, 5xx after the request
    ├── Undeliverable            give_up  this address is dead: blocked, removed, chat deleted
    │   └── ThreadUndeliverable  give_up  this thread is dead; its `public_place` is not
    ├── Rejected                 give_up  this content is refused (too long, bad markup); others may pass
    ├── Unauthorized             operator the token is wrong or revoked
    ├── NotPermitted             operator the bot lacks a permission in this room (`permission` names it)
    ├── ConnectedElsewhere       operator another process holds this bot's connection
    └── Unsupported              give_up  the adapter does not declare this feature

Callers branch on `remedy` (and on RateLimited and Ambiguous for when and whether to retry), never on a
vendor's class.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import ClassVar, Literal

Remedy = Literal["retry", "give_up", "operator"]

MAX_WAIT_SECONDS = 3600.0
"""The longest wait that a platform may ask for; it is asked again after it."""


def parse_wait(value: object) -> float:
    """Return the seconds of a wait that a platform names, at most an hour; 0 for anything else.

    A text may be a date, as in the header Retry-After (RFC 9110, section 10.2.3).
    """
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        seconds = _seconds_until(value) if isinstance(value, str) else 0.0
    return min(seconds, MAX_WAIT_SECONDS) if seconds > 0 else 0.0


def _seconds_until(date: str) -> float:
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - time.time()
    except (TypeError, ValueError, IndexError, OverflowError):
        return 0.0


class ChannelError(Exception):
    """The platform could not be used."""

    remedy: ClassVar[Remedy] = "retry"

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or (self.__doc__ or "").strip())


class RateLimited(ChannelError):
    """The platform asks us to wait `retry_after` seconds, at most an hour.

    A `scope` of "account" concerns the rooms for which `ChannelLimits.account_of` returns the same name.
    """

    def __init__(self, retry_after: float, *, scope: Literal["room", "account"] = "room") -> None:
        self.retry_after = parse_wait(retry_after)
        super().__init__(f"rate limited: try again in {self.retry_after:g} s")
        self.scope = scope


class Unreachable(ChannelError):
    """The platform could not be reached; nothing was sent."""


class Ambiguous(ChannelError):
    """The connection broke after the request was written; it may or may not have been carried out."""


class Undeliverable(ChannelError):
    """This chat no longer accepts messages from the bot."""

    remedy = "give_up"


class ThreadUndeliverable(Undeliverable):
    """This thread no longer accepts messages from the bot: it was deleted or locked."""


class Rejected(ChannelError):
    """The platform refuses this content."""

    remedy = "give_up"


class Unauthorized(ChannelError):
    """The platform refuses the token."""

    remedy = "operator"


class NotPermitted(ChannelError):
    """The bot lacks a permission in this room."""

    remedy = "operator"

    def __init__(self, permission: str, detail: str = "") -> None:
        super().__init__(detail or f"the bot lacks the permission {permission!r} in this room: grant it")
        self.permission = permission


class ConnectedElsewhere(ChannelError):
    """Another process is connected as this bot."""

    remedy = "operator"


class Unsupported(ChannelError):
    """This channel does not have the feature."""

    remedy = "give_up"


@contextmanager
def before_sending() -> Iterator[None]:
    """Raise Unreachable in place of Ambiguous: what breaks before a message is sent is repeated safely."""
    try:
        yield
    except Ambiguous as error:
        raise Unreachable(f"{error}: nothing was sent") from None

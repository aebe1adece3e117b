"""Preview a reply by `sendMessageDraft` (Bot API 9.3 and later, private chats only)."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from channels.errors import ChannelError, NotPermitted, Rejected, Undeliverable
from channels.message import Address, DraftText
from channels.receiving.expiring_set import ExpiringSet
from channels.telegram.errors import is_unknown_method
from channels.telegram.send.rendering import target
from channels.telegram.text import is_group

METHOD = "sendMessageDraft"
MAX_REFUSALS = 10_000
REFUSED_SECONDS = 3600.0
"""Seconds for which no preview is tried where one was refused."""

_EVERYWHERE = ""
CallWithText = Callable[[str, Mapping[str, Any], str], Awaitable[Any]]


def draft_id(key: str) -> int:
    """Return the number of a reply's draft: stable for a key, never 0, at most 31 bits."""
    return (int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) & 0x7FFFFFFF) or 1


class DraftPreviews:
    """Sends previews and remembers for a while the rooms and servers that refused them."""

    def __init__(self, call: CallWithText) -> None:
        self._call = call
        self._refused = ExpiringSet[str](MAX_REFUSALS, seconds=REFUSED_SECONDS)

    async def preview(self, address: Address, draft: DraftText) -> bool:
        """Show a preview; False if a message must be used instead, also for the rest of this reply."""
        if draft.platform_id is not None or not self._is_allowed(address.room):
            return False
        try:
            await self._call(METHOD, {**target(address), "draft_id": draft_id(draft.key)}, draft.text)
        except ChannelError as error:
            if not self._remember_refusal(error, address.room):
                raise
            return False
        return True

    def _is_allowed(self, room: str) -> bool:
        return not is_group(room) and room not in self._refused and _EVERYWHERE not in self._refused

    def _remember_refusal(self, error: ChannelError, room: str) -> bool:
        """Remember a server without the method, or a room without previews; a dead chat may come back."""
        if is_unknown_method(error):
            self._refused.add(_EVERYWHERE)
            return True
        if not isinstance(error, Rejected | NotPermitted | Undeliverable) or _is_about_text(error):
            return False
        if not isinstance(error, Undeliverable):
            self._refused.add(room)
        return True


def _is_about_text(error: ChannelError) -> bool:
    """Return whether a message with this text would be refused as well."""
    return any(words in str(error).lower() for words in ("too long", "is empty", "must be non-empty"))

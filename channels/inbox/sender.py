"""A sender that has no optional feature: adapters override what their platform can."""

from __future__ import annotations

from collections.abc import AsyncIterator

from channels.errors import Unsupported
from channels.message import Address, ButtonPress, Command, File, Reply, SentMessage
from channels.port import Sender


class InboxSender(Sender):
    """Refuses every optional feature with Unsupported."""

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Not a feature."""
        del address, platform_id, reply
        raise Unsupported

    async def typing(self, address: Address) -> None:
        """Not a feature."""
        del address
        raise Unsupported

    async def upload(self, address: Address, file: File, *, key: str) -> SentMessage:
        """Not a feature."""
        del address, file, key
        raise Unsupported

    def download(self, ref: str) -> AsyncIterator[bytes]:
        """Not a feature."""
        del ref
        raise Unsupported

    async def reply_privately(self, to: ButtonPress | Command, text: str) -> None:
        """Not a feature."""
        del to, text
        raise Unsupported

"""Our reactions: one sign under a message, in place of an earlier one.

The first sign, that a message was seen, needs no look at what is there; any other does after a restart.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from channels.errors import NotPermitted, Rejected
from channels.message import Address, Sign
from channels.slack.api import Api
from channels.slack.errors import word_of

EMOJI = {Sign.SEEN: "eyes", Sign.DONE: "white_check_mark", Sign.FAILED: "x"}
REMEMBERED = 2000


@dataclass(slots=True)
class Put:
    """Our signs under one message (None: not known yet); who changes them holds the lock."""

    names: set[str] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Signs:
    """The signs we put; those of an earlier process are looked up."""

    def __init__(self, api: Api, *, me: str) -> None:
        self._api = api
        self._me = me
        self._put: OrderedDict[tuple[str, str], Put] = OrderedDict()

    async def put(self, address: Address, ts: str, sign: Sign | None) -> None:
        """Make the sign the only one of ours; raises ChannelError."""
        wanted = EMOJI[sign] if sign else None
        put = self._of(address, ts)
        async with put.lock:
            if put.names is None:
                put.names = set() if sign is Sign.SEEN else await self._looked_up(address, ts)
            if wanted and wanted not in put.names:
                await self._call("reactions.add", address, ts, wanted, well="already_reacted")
                put.names.add(wanted)
            for name in sorted(put.names - {wanted}):
                await self._call("reactions.remove", address, ts, name, well="no_reaction")
                put.names.discard(name)

    def _of(self, address: Address, ts: str) -> Put:
        """Return what is remembered of a message; the longest unused is forgotten."""
        put = self._put.setdefault((address.room, ts), Put())
        self._put.move_to_end((address.room, ts))
        if len(self._put) > REMEMBERED:
            self._put.popitem(last=False)
        return put

    async def _looked_up(self, address: Address, ts: str) -> set[str]:
        """Ask what is there; where that is refused the first sign is, most likely."""
        try:
            answer = await self._api.call("reactions.get", {"channel": address.room, "timestamp": ts})
        except (Rejected, NotPermitted):
            return {EMOJI[Sign.SEEN]}
        message = answer.get("message")
        found = message.get("reactions") if isinstance(message, dict) else None
        return {
            str(one["name"])
            for one in (found if isinstance(found, list) else [])
            if isinstance(one, dict) and one.get("name") in EMOJI.values() and self._is_ours(one)
        }

    def _is_ours(self, reaction: dict[str, Any]) -> bool:
        users = reaction.get("users")
        return isinstance(users, list) and self._me in users

    async def _call(self, method: str, address: Address, ts: str, name: str, *, well: str) -> None:
        try:
            await self._api.call(method, {"channel": address.room, "timestamp": ts, "name": name})
        except Rejected as error:
            if word_of(error) != well:
                raise

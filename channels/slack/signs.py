"""Our reactions: one sign under a message, in place of an earlier one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from channels.errors import Rejected
from channels.message import Address, Sign
from channels.slack.api import Api
from channels.slack.errors import word_of

EMOJI = {Sign.SEEN: "eyes", Sign.DONE: "white_check_mark", Sign.FAILED: "x"}
REMEMBERED = 2000


class Signs:
    """The signs we put; those of an earlier process are looked up."""

    def __init__(self, api: Api, *, me: str) -> None:
        self._api = api
        self._me = me
        self._put: OrderedDict[tuple[str, str], set[str]] = OrderedDict()

    async def put(self, address: Address, ts: str, sign: Sign | None) -> None:
        """Make the sign the only one of ours; raises ChannelError."""
        wanted = EMOJI[sign] if sign else None
        there = await self._there(address, ts, first=sign is Sign.SEEN)
        if wanted and wanted not in there:
            await self._call("reactions.add", address, ts, wanted, well="already_reacted")
            there.add(wanted)
        for name in sorted(there - {wanted}):
            await self._call("reactions.remove", address, ts, name, well="no_reaction")
            there.discard(name)

    async def _there(self, address: Address, ts: str, *, first: bool) -> set[str]:
        """Return our signs under a message; the first of them needs no look."""
        place = (address.room, ts)
        known = self._put.pop(place, None)
        if known is None:
            known = set() if first else await self._looked_up(address, ts)
        self._put[place] = known
        if len(self._put) > REMEMBERED:
            self._put.popitem(last=False)
        return known

    async def _looked_up(self, address: Address, ts: str) -> set[str]:
        answer = await self._api.call("reactions.get", {"channel": address.room, "timestamp": ts})
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

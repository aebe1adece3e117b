"""Routes: the targets of the results of a conversation or of one turn."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.events.event import new_id


def bot_destination(destination: str, account: str = "") -> str:
    """Return the destination that represents all chats of the bot of a chat destination.

    `account` is the account at the platform whose limits the chat shares (`ChannelLimits.account_of`), "" if
    all chats of the bot share them.
    """
    channel, *_ = json.loads(destination)
    return json.dumps([channel, "", account] if account else [channel])


class RouteKind(StrEnum):
    """The kind of a route's target; the event stream needs no route, because it has every event."""

    CHAT = "chat"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One target of results: an Address as JSON (chat) or an endpoint's id (webhook).

    With `turn` set it receives only that turn's results. The follow-up turn of a job gets a copy.
    """

    id: str
    account: str
    conversation: str
    turn: str | None
    kind: RouteKind
    target: str
    created_at: datetime

    @classmethod
    def to_chat(cls, *, account: str, conversation: str, address: Address) -> Route:
        """Return the route to the chat thread of a conversation."""
        return cls._new(account, conversation, None, RouteKind.CHAT, address.encode())

    @classmethod
    def to_endpoint(cls, *, account: str, conversation: str, turn: str | None, endpoint: str) -> Route:
        """Return the route to a webhook endpoint."""
        return cls._new(account, conversation, turn, RouteKind.WEBHOOK, endpoint)

    @classmethod
    def _new(cls, account: str, conversation: str, turn: str | None, kind: RouteKind, target: str) -> Route:
        return cls(
            id=new_id("rte"),
            account=account,
            conversation=conversation,
            turn=turn,
            kind=kind,
            target=target,
            created_at=utc_now(),
        )

    def for_turn(self, turn: str) -> Route:
        """Return a copy of the route for another turn (a job's follow-up)."""
        return self._new(self.account, self.conversation, turn, self.kind, self.target)

    @property
    def destination(self) -> str:
        """The destination, within which deliveries are sent in order."""
        if self.kind is RouteKind.CHAT:
            return Address.decode(self.target).destination
        return self.target

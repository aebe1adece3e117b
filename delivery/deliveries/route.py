"""Routes: where the results of a conversation, or of one turn, go."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from channels.message import Address
from delivery.database.clock import utc_now
from delivery.events.event import new_id


def bot_destination(destination: str) -> str:
    """Return the destination that stands for everything the bot of a chat says."""
    return json.dumps(json.loads(destination)[:1])


class RouteKind(StrEnum):
    """What a route leads to. The stream needs no route: every event is in it."""

    CHAT = "chat"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One way home. `target` is an Address as JSON (chat) or an endpoint's id (webhook).

    With `turn` set it carries only that turn's results (and, copied to the follow-up, its jobs').
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
        """Return the route to the chat thread a conversation was opened in."""
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
        """Return the same way home for another turn (a job's follow-up)."""
        return self._new(self.account, self.conversation, turn, self.kind, self.target)

    @property
    def destination(self) -> str:
        """The unit within which deliveries keep their order."""
        if self.kind is RouteKind.CHAT:
            return Address.decode(self.target).destination
        return self.target

"""The events of a simulated GitHub: their payloads, signed posts, and the log of deliveries."""

from __future__ import annotations

import hashlib
import hmac
import json
import uuid
from dataclasses import dataclass
from typing import Any

from channels.github.simulator.world import ADA, INSTALLATION, Entry, World, now

EVENTS = {
    "issue": "issues",
    "pull_request": "pull_request",
    "discussion": "discussion",
    "issue_comment": "issue_comment",
    "review": "pull_request_review",
    "review_comment": "pull_request_review_comment",
    "discussion_comment": "discussion_comment",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookDelivery:
    """One delivery of an event, as the log shows it."""

    id: int
    guid: str
    event: str
    payload: dict[str, Any]
    status_code: int
    delivered_at: str
    redelivery: bool = False

    def summary(self) -> dict[str, Any]:
        """Return the row of the list."""
        return {
            "id": self.id,
            "guid": self.guid,
            "delivered_at": self.delivered_at,
            "redelivery": self.redelivery,
            "duration": 0.03,
            "status": "OK" if self.status_code == 200 else "Invalid HTTP Response",  # noqa: PLR2004
            "status_code": self.status_code,
            "event": self.event,
            "action": self.payload.get("action"),
            "installation_id": INSTALLATION,
        }

    def detail(self) -> dict[str, Any]:
        """Return the delivery with its request."""
        return {**self.summary(), "request": {"headers": {}, "payload": self.payload}, "response": {}}


def payload_of(
    world: World,
    entry: Entry,
    action: str,
    *,
    changes: dict[str, Any] | None = None,
    sender: dict[str, Any] = ADA,
) -> dict[str, Any]:
    """Return the payload of an event about an entry."""
    owner, _, name = world.room.partition("/")
    payload: dict[str, Any] = {
        "action": action,
        "sender": sender,
        "installation": {"id": INSTALLATION},
        "repository": {"id": 5005, "name": name, "full_name": world.room, "owner": {"login": owner}},
    }
    thread = world.thread(entry.number)
    if thread is not None:
        field = "issue" if entry.kind == "issue_comment" else thread.kind
        payload[field] = {**thread.json(), **({"pull_request": {}} if field != thread.kind else {})}
    if not entry.title:
        payload["review" if entry.kind == "review" else "comment"] = entry.json()
    return payload if changes is None else {**payload, "changes": changes}


def make_guid() -> str:
    """Return a delivery's id."""
    return str(uuid.uuid4())


def encode(payload: dict[str, Any]) -> bytes:
    """Return a payload as it is posted."""
    return json.dumps(payload).encode()


def headers_of(secret: str, event: str, guid: str, body: bytes) -> dict[str, str]:
    """Return the headers of a post."""
    digest = hmac.new(secret.encode("utf-8", "surrogatepass"), body, hashlib.sha256).hexdigest()
    return {
        "content-type": "application/json",
        "x-github-event": event,
        "x-github-delivery": guid,
        "x-hub-signature-256": f"sha256={digest}",
    }


def logged(
    number: int, guid: str, event: str, payload: dict[str, Any], status: int, *, again: bool
) -> WebhookDelivery:
    """Return a delivery that has just ended."""
    return WebhookDelivery(
        id=number,
        guid=guid,
        event=event,
        payload=payload,
        status_code=status,
        delivered_at=now(),
        redelivery=again,
    )

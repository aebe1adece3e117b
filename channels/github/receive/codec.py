"""Verify and decode GitHub's events; pure.

`decode` expects {"event", "delivery", "payload"}: the two headers of a delivery and its body. The delivery's
id is the update's key, so that a redelivery is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from channels.github.api import Bot
from channels.github.threads import SUBJECTS, Subject, Thread
from channels.inbox.commands import parse_decision, parse_mentioned
from channels.inbox.signatures import is_hmac
from channels.inbox.text import clean, identifier, iso_time, mapping
from channels.inbox.updates import find_mention, make_update
from channels.message import (
    Address,
    Author,
    IgnoredUpdate,
    MessageDeleted,
    PermissionsChanged,
    RoomKind,
    RoomMigrated,
    Update,
)

is_signed = partial(is_hmac, header="x-hub-signature-256", prefix="sha256=")
"""Return whether a post has GitHub's HMAC-SHA256 of its body; the older SHA-1 does not count."""

_ACTIONS = {"opened": False, "created": False, "submitted": False, "edited": True, "deleted": False}
"""The actions that bring or delete text, and whether it replaces an earlier one."""


def read_post(headers: Mapping[str, str], body: Mapping[str, Any]) -> Any:
    """Return a posted event as `decode` expects it; None without its headers."""
    event, delivery = headers.get("x-github-event", ""), clean(headers.get("x-github-delivery", ""))
    return {"event": event, "delivery": delivery, "payload": body} if event and delivery else None


def decode(update: object, *, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Decode one event."""
    event, payload = clean(mapping(update).get("event")), mapping(mapping(update).get("payload"))
    key = clean(mapping(update).get("delivery"))
    room = clean(mapping(payload.get("repository")).get("full_name"))
    if event.startswith("installation") and key:
        return _permitted(payload, key=key, channel=channel)
    if not key or not room:
        return IgnoredUpdate(reason="an event without a delivery id or a repository")
    if event == "repository":
        return _moved(payload, room, key=key, channel=channel)
    about, action = SUBJECTS.get(event), payload.get("action")
    text = mapping(payload.get(about.field)) if about else {}
    if not about or not text or not isinstance(action, str) or action not in _ACTIONS:
        return IgnoredUpdate(reason=f"an event of another kind: {event[:40]} {clean(action)[:40]}")
    changes = mapping(payload.get("changes"))
    if "old_issue" in changes or (_ACTIONS[action] and "body" not in changes):
        return IgnoredUpdate(reason="an edit or a transfer that leaves the text as it was")
    return _message(about, payload, text, Address(channel=channel, room=room), key=key, bot=bot)


def _message(
    about: Subject, payload: Mapping[str, Any], text: Mapping[str, Any], room: Address, *, key: str, bot: Bot
) -> Update | IgnoredUpdate:
    user, edited = mapping(payload.get("sender")), _ACTIONS[payload["action"]]
    thread, login = _thread(about, payload, text), clean(user.get("login"))
    if thread is None or not identifier(user.get("id")):
        return IgnoredUpdate(reason="an event without a thread or a sender")
    if login == bot.login:
        return IgnoredUpdate(reason="the bot's own message")
    writer = mapping(text.get("user")).get("id")
    if payload["action"] != "deleted" and writer != user.get("id"):  # the sender may lend others no rights
        return IgnoredUpdate(reason="a text that another person wrote")
    find = partial(find_mention, name=bot.slug, suffix=r"\[bot\]")
    title, node = clean(text.get("title")), clean(text.get("node_id"))
    mention, body = find(clean(text.get("body")).replace("\r\n", "\n").strip())
    is_mentioned = mention or find(title)[0]
    extras = _extras(about, payload, text)
    number = {"issue": thread.number, "node": node}.get(about.kind) or identifier(text.get("id"))
    common: dict[str, Any] = {
        "key": key,
        "address": Address(channel=room.channel, room=room.room, thread=thread.id, extras=extras),
        "platform_id": f"{about.kind}/{number}",
    }
    if payload["action"] == "deleted":
        return MessageDeleted(**common)
    moment = text.get("updated_at" if edited else "created_at") or text.get("submitted_at")
    author = Author(id=identifier(user.get("id")), name=login, is_bot=user.get("type") == "Bot")
    common |= {"author": author, "sent_at": iso_time(moment), "room": RoomKind.GROUP}
    command = parse_mentioned(body) if is_mentioned else parse_decision(body)
    whole = f"{title}\n\n{body}".strip()
    return make_update(whole, None if title else command, common, mention=is_mentioned, edited=edited)


def _thread(about: Subject, payload: Mapping[str, Any], text: Mapping[str, Any]) -> Thread | None:
    owners = ("issue", "pull_request", "discussion")
    number = identifier(next((mapping(payload[one]).get("number") for one in owners if one in payload), ""))
    root = identifier(text.get(about.above) or text.get("id")) if about.above else ""
    return Thread(about.place, number, root) if number.isdecimal() else None


def _extras(about: Subject, payload: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, str]:
    """Return the GraphQL ids by which a discussion, and a comment in its thread, are answered."""
    reply = {"reply_to": clean(text.get("node_id"))} if about.above else {}
    nodes = {"discussion": clean(mapping(payload.get("discussion")).get("node_id")), **reply}
    return nodes if about.place == "discussion" else {}


def _moved(payload: Mapping[str, Any], room: str, *, key: str, channel: str) -> RoomMigrated | IgnoredUpdate:
    changes, (owner, _, name) = mapping(payload.get("changes")), room.partition("/")
    former = clean(mapping(mapping(changes.get("repository")).get("name")).get("from"))
    owners = mapping(mapping(changes.get("owner")).get("from"))
    holder = mapping(owners.get("user") or owners.get("organization"))
    old = f"{clean(holder.get('login')) or owner}/{former or name}"
    if payload.get("action") not in {"renamed", "transferred"} or old == room:
        return IgnoredUpdate(reason="an event of a repository that was not moved")
    before, after = (Address(channel=channel, room=name) for name in (old, room))
    return RoomMigrated(key=key, old=before, new=after)


def _permitted(payload: Mapping[str, Any], *, key: str, channel: str) -> PermissionsChanged | IgnoredUpdate:
    owner = clean(mapping(mapping(payload.get("installation")).get("account")).get("login"))
    if not owner or clean(payload.get("action")) in {"", "deleted", "removed", "suspend"}:
        return IgnoredUpdate(reason="an event of an installation that gives no permissions")
    return PermissionsChanged(key=key, channel=channel, room_prefix=f"{owner}/")

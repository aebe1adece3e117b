"""Decode GitHub's events; pure.

`decode` expects {"event", "delivery", "payload"}: the two headers of a delivery and its body. The delivery's
id is the update's key, so that a redelivery is recognised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.github.api import Bot
from channels.github.receive.mentions import find_mention
from channels.github.threads import Place, Thread
from channels.inbox.commands import parse_decision, parse_mentioned
from channels.inbox.text import clean, identifier, iso_time, mapping
from channels.message import (
    Address,
    Author,
    Command,
    IgnoredUpdate,
    Message,
    MessageDeleted,
    RoomKind,
    RoomMigrated,
    Update,
)

__all__ = ["Bot", "decode"]

_ACTIONS = {"opened": False, "created": False, "submitted": False, "edited": True, "deleted": False}
"""The actions that bring or delete text, and whether it replaces an earlier one."""

_SUBJECTS = {
    "issues": "issue",
    "issue_comment": "comment",
    "pull_request": "pull_request",
    "pull_request_review": "review",
    "pull_request_review_comment": "comment",
    "discussion": "discussion",
    "discussion_comment": "comment",
}
"""The field of each event's payload that holds the text."""


def decode(update: object, *, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Decode one event."""
    event, payload = clean(mapping(update).get("event")), mapping(mapping(update).get("payload"))
    key = clean(mapping(update).get("delivery"))
    room = clean(mapping(payload.get("repository")).get("full_name"))
    if not key or not room:
        return IgnoredUpdate(reason="an event without a delivery id or a repository")
    if event == "repository":
        return _moved(payload, room, key=key, channel=channel)
    action, subject = payload.get("action"), mapping(payload.get(_SUBJECTS.get(event, "")))
    if not isinstance(action, str) or action not in _ACTIONS or not subject:
        return IgnoredUpdate(reason=f"an event of another kind: {event[:40]} {clean(action)[:40]}")
    if _ACTIONS[action] and "body" not in mapping(payload.get("changes")):
        return IgnoredUpdate(reason="an edit that leaves the text as it was")
    return _message(event, payload, subject, Address(channel=channel, room=room), key=key, bot=bot)


def _message(
    event: str, payload: Mapping[str, Any], subject: Mapping[str, Any], room: Address, *, key: str, bot: Bot
) -> Message | Command | MessageDeleted | IgnoredUpdate:
    user = mapping(payload.get("sender"))
    thread = _thread(event, payload, subject)
    if thread is None or not identifier(user.get("id")):
        return IgnoredUpdate(reason="an event without a thread or a sender")
    if clean(user.get("login")) == bot.login:
        return IgnoredUpdate(reason="the bot's own message")
    mention, body = find_mention(clean(subject.get("body")).replace("\r\n", "\n").strip(), bot.slug)
    title = clean(subject.get("title")) if event in {"issues", "pull_request", "discussion"} else ""
    mention = mention or find_mention(title, bot.slug)[0]
    edited = _ACTIONS[payload["action"]]
    common: dict[str, Any] = {
        "key": key,
        "address": Address(
            channel=room.channel, room=room.room, thread=thread.id, extras=_extras(event, payload, subject)
        ),
        "author": Author(
            id=identifier(user.get("id")), name=clean(user.get("login")), is_bot=user.get("type") == "Bot"
        ),
        "sent_at": iso_time(
            subject.get("updated_at" if edited else "created_at") or subject.get("submitted_at")
        ),
        "room": RoomKind.GROUP,
        "platform_id": _platform_id(event, thread, subject),
    }
    if payload["action"] == "deleted":
        return MessageDeleted(**{name: common[name] for name in ("key", "address", "platform_id")})
    command = parse_mentioned(body) if mention else parse_decision(body)
    if command is not None and not edited and not title:
        return Command(name=command[0], rest=command[1], **common)
    text = f"{title}\n\n{body}".strip()
    if not text:
        return IgnoredUpdate(reason="a message without text")
    return Message(text=text, mentions_bot=mention, edited=edited, **common)


def _thread(event: str, payload: Mapping[str, Any], subject: Mapping[str, Any]) -> Thread | None:
    owner = next(
        (mapping(payload[name]) for name in ("issue", "pull_request", "discussion") if name in payload), {}
    )
    number = identifier(owner.get("number"))
    if not number.isdecimal():
        return None
    match event:
        case "pull_request_review_comment":
            root = identifier(subject.get("in_reply_to_id") or subject.get("id"))
            return Thread(place=Place.REVIEW, number=number, root=root)
        case "discussion_comment":
            root = identifier(subject.get("parent_id") or subject.get("id"))
            return Thread(place=Place.DISCUSSION, number=number, root=root)
        case "discussion":
            return Thread(place=Place.DISCUSSION, number=number)
        case _:
            return Thread(place=Place.ISSUE, number=number)


def _extras(event: str, payload: Mapping[str, Any], subject: Mapping[str, Any]) -> dict[str, str]:
    """Return the GraphQL ids by which a discussion, and a comment in its thread, are answered."""
    if not event.startswith("discussion"):
        return {}
    discussion = {"discussion": clean(mapping(payload.get("discussion")).get("node_id"))}
    reply = {"reply_to": clean(subject.get("node_id"))} if event == "discussion_comment" else {}
    return {**discussion, **reply}


def _platform_id(event: str, thread: Thread, subject: Mapping[str, Any]) -> str:
    """Return the message's id: the kind of subject, and the number or GraphQL id by which it is found."""
    match event:
        case "issues" | "pull_request":
            return f"issue/{thread.number}"
        case "issue_comment":
            return f"comment/{identifier(subject.get('id'))}"
        case "pull_request_review_comment":
            return f"review/{identifier(subject.get('id'))}"
        case _:
            return f"node/{clean(subject.get('node_id'))}"


def _moved(payload: Mapping[str, Any], room: str, *, key: str, channel: str) -> RoomMigrated | IgnoredUpdate:
    changes, (owner, _, name) = mapping(payload.get("changes")), room.partition("/")
    former = clean(mapping(mapping(changes.get("repository")).get("name")).get("from"))
    owners = mapping(mapping(changes.get("owner")).get("from"))
    holder = mapping(owners.get("user") or owners.get("organization"))
    old = f"{clean(holder.get('login')) or owner}/{former or name}"
    if payload.get("action") not in {"renamed", "transferred"} or old == room:
        return IgnoredUpdate(reason="an event of a repository that was not moved")
    return RoomMigrated(
        key=key, old=Address(channel=channel, room=old), new=Address(channel=channel, room=room)
    )

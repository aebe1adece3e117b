"""Verify and decode GitHub's events; pure.

`decode` expects {"event", "delivery", "payload"}: the two headers of a delivery and its body. The delivery's
id is the update's key, so that a redelivery is recognised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from channels.github.api import Bot
from channels.github.receive.reviews import LINE_COMMENTS
from channels.github.receive.rooms import owner_change, room_change
from channels.github.threads import SUBJECTS, SUFFIX, Subject, Thread
from channels.inbox.commands import parse_decision, parse_mentioned
from channels.inbox.signatures import is_hmac
from channels.inbox.text import clean, identifier, iso_time, mapping, mappings
from channels.inbox.updates import find_mention, make_update
from channels.message import (
    Address,
    Author,
    IgnoredUpdate,
    Message,
    MessageDeleted,
    QuotedMessage,
    RoomKind,
    Update,
)
from channels.receiving.descriptions import describe_code

is_signed = partial(is_hmac, header="x-hub-signature-256", prefix="sha256=")
"""Return whether a post has GitHub's HMAC-SHA256 of its body; the older SHA-1 does not count."""

_ACTIONS = {"opened": False, "created": False, "submitted": False, "edited": True, "deleted": False}
"""The actions that bring or delete text, and whether it replaces an earlier one."""


_LINE_COMMENT = SUBJECTS["pull_request_review_comment"]


def read_post(headers: Mapping[str, str], body: Mapping[str, Any]) -> Any:
    """Return a posted event as `decode` expects it; None without its headers."""
    event, delivery = headers.get("x-github-event", ""), clean(headers.get("x-github-delivery", ""))
    return {"event": event, "delivery": delivery, "payload": body} if event and delivery else None


def decode(update: object, *, channel: str, bot: Bot) -> Update | IgnoredUpdate:
    """Decode one event."""
    event, payload = clean(mapping(update).get("event")), mapping(mapping(update).get("payload"))
    key = clean(mapping(update).get("delivery"))
    here = Address(channel=channel, room=clean(mapping(payload.get("repository")).get("full_name")))
    if event.startswith("installation") and key:
        return owner_change(payload, key=key, channel=channel)
    if not key or not here.room:
        return IgnoredUpdate(reason="an event without a delivery id or a repository")
    if event == "repository" or payload.get("action") in ("unlocked", "transferred"):
        return room_change(event, payload, here, key=key)
    about, action = SUBJECTS.get(event), payload.get("action")
    text = mapping(payload.get(about.field)) if about else {}
    if not about or not text or not isinstance(action, str) or action not in _ACTIONS:
        return IgnoredUpdate(reason=f"an event of another kind: {event[:40]} {clean(action)[:40]}")
    changes = mapping(payload.get("changes"))
    if "old_issue" in changes or (_ACTIONS[action] and "body" not in changes):
        return IgnoredUpdate(reason="an edit or a transfer that leaves the text as it was")
    return _message(about, payload, text, here, key=key, bot=bot)


def _message(
    about: Subject, payload: Mapping[str, Any], text: Mapping[str, Any], room: Address, *, key: str, bot: Bot
) -> Update | IgnoredUpdate:
    owner = mapping(payload.get("issue") or payload.get("pull_request") or payload.get("discussion"))
    thread, author = _thread(about, owner, text), _author(mapping(payload.get("sender")))
    if thread is None or not author.id:
        return IgnoredUpdate(reason="an event without a thread or a sender")
    if author.name == bot.login:
        return IgnoredUpdate(reason="the bot's own message")
    writer = _author(mapping(text.get("user"))).id  # the sender may lend others no rights
    if payload["action"] != "deleted" and writer != author.id:
        return IgnoredUpdate(reason="a text that another person wrote")
    find = partial(find_mention, name=bot.slug, suffix=SUFFIX)
    title, edited = clean(text.get("title")), _ACTIONS[payload["action"]]
    mention, body = find(clean(text.get("body")).replace("\r\n", "\n").strip())
    is_mentioned = mention or find(title)[0]
    address = replace(room, thread=thread.id, extras=_extras(about, owner, text))
    number = _id(about.kind, text)
    key = number if about is _LINE_COMMENT and payload["action"] == "created" else key
    common: dict[str, Any] = {"key": key, "address": address, "platform_id": number}
    if payload["action"] == "deleted":
        return MessageDeleted(**common)
    moment = text.get("updated_at" if edited else "created_at") or text.get("submitted_at")
    common |= {"author": author, "sent_at": iso_time(moment), "room": RoomKind.GROUP}
    command = parse_mentioned(body) if is_mentioned else parse_decision(body)
    if title:
        return make_update(f"{title}\n\n{body}".strip(), None, common, mention=is_mentioned, edited=edited)
    above = thread._replace(root="").id if about.above and not text.get(about.above) else ""
    lines, code = tuple(_line_comments(payload, room, bot)), _code(text) if above else ""
    body = "\n\n".join(filter(None, (body, code, *(one.text for one in lines))))
    others: dict[str, Any] = {"root": _root(about, owner, text), "above": above, "includes": lines}
    return make_update(body, command, common, mention=is_mentioned, edited=edited, **others)


def _line_comments(payload: Mapping[str, Any], room: Address, bot: Bot) -> Iterator[Message]:
    """Yield the comments of a review, from `complete_review`, that are not for the bot by themselves.

    Each is the message of its own event, with the changed lines.
    """
    made = {**payload, "action": "created", LINE_COMMENTS: ()}
    for one in mappings(payload.get(LINE_COMMENTS)):
        found = _message(_LINE_COMMENT, {**made, "sender": one.get("user")}, one, room, key="", bot=bot)
        if isinstance(found, Message) and not found.mentions_bot:
            code = _code(one, clean(one.get("diff_hunk")))
            yield replace(found, text=f"{code}\n{clean(one.get('body'))}".strip())


def _code(text: Mapping[str, Any], change: str = "") -> str:
    line = identifier(text.get("line") or text.get("original_line"))
    return describe_code(clean(text.get("path")), line, change)


def _root(about: Subject, owner: Mapping[str, Any], text: Mapping[str, Any]) -> QuotedMessage:
    """Return the issue, pull request or discussion of a comment, after the code that it is about."""
    code = _code(text, clean(text.get("diff_hunk")))
    words = "\n\n".join(filter(None, (code, clean(owner.get("title")), clean(owner.get("body")).strip())))
    number = _id("node" if about.place == "discussion" else "issue", owner)
    return QuotedMessage(author=_author(mapping(owner.get("user"))), text=words, platform_id=number)


def _author(user: Mapping[str, Any]) -> Author:
    name, is_bot = clean(user.get("login")), user.get("type") == "Bot"
    return Author(id=identifier(user.get("id")), name=name, is_bot=is_bot)


def _id(kind: str, text: Mapping[str, Any]) -> str:
    """Return the id of a text: issues and pull requests have theirs by number."""
    number = {"issue": identifier(text.get("number")), "node": clean(text.get("node_id"))}.get(kind)
    return f"{kind}/{number or identifier(text.get('id'))}"


def _thread(about: Subject, owner: Mapping[str, Any], text: Mapping[str, Any]) -> Thread | None:
    number = identifier(owner.get("number"))
    root = identifier(text.get(about.above) or text.get("id")) if about.above else ""
    return Thread(about.place, number, root) if number.isdecimal() else None


def _extras(about: Subject, owner: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, str]:
    """Return the GraphQL ids by which a discussion, and a comment in its thread, are answered."""
    reply = {"reply_to": clean(text.get("node_id"))} if about.above else {}
    return {"discussion": clean(owner.get("node_id")), **reply} if about.place == "discussion" else {}

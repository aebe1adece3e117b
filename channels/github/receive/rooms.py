"""Decode what GitHub reports of repositories, their owners, and issues and discussions that move; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from channels.github.threads import Place, Thread
from channels.inbox.text import identifier, mapping, text_at
from channels.message import (
    Address,
    IgnoredUpdate,
    PermissionsChanged,
    RoomMigrated,
    RoomReopened,
    RoomsRenamed,
    Update,
)


def room_change(event: str, payload: Mapping[str, Any], here: Address, *, key: str) -> Update | IgnoredUpdate:
    """Decode that a conversation or repository is open again or moved, or its new name or owner."""
    action = payload.get("action")
    if action in {"unlocked", "unarchived"}:
        return RoomReopened(key=key, address=here)
    if event != "repository":
        return _transferred(event, payload, here, key=key)
    old = _former_name(payload, here.room)
    if action not in {"renamed", "transferred"} or old == here.room:
        return IgnoredUpdate(reason="an event of a repository that was not moved")
    return RoomMigrated(key=key, old=replace(here, room=old), new=here)


def owner_change(payload: Mapping[str, Any], *, key: str, channel: str) -> Update | IgnoredUpdate:
    """Decode an event of an installation: its owner has a new name, or the app got permissions."""
    former, owner = text_at(payload, "changes", "login", "from"), text_at(payload, "account", "login")
    if former and owner and former != owner:
        return RoomsRenamed(key=key, channel=channel, old=f"{former}/", new=f"{owner}/")
    owner = text_at(payload, "installation", "account", "login")
    if not owner or text_at(payload, "action") in {"", "deleted", "removed", "suspend"}:
        return IgnoredUpdate(reason="an event of an installation that gives no permissions")
    return PermissionsChanged(key=key, channel=channel, room_prefix=f"{owner}/")


def _former_name(payload: Mapping[str, Any], room: str) -> str:
    owner, _, name = room.partition("/")
    holders = (text_at(payload, "changes", "owner", "from", who, "login") for who in ("user", "organization"))
    return f"{''.join(holders) or owner}/{text_at(payload, 'changes', 'repository', 'name', 'from') or name}"


def _transferred(
    event: str, payload: Mapping[str, Any], here: Address, *, key: str
) -> RoomMigrated | IgnoredUpdate:
    """Decode that an issue or a discussion is in another repository, where all its numbers are others."""
    place: Place = "issue" if event == "issues" else "discussion"
    changes = mapping(payload.get("changes"))
    made, room = mapping(changes.get(f"new_{place}")), text_at(changes, "new_repository", "full_name")
    old, new = (identifier(one.get("number")) for one in (mapping(payload.get(place)), made))
    if not (old.isdecimal() and new.isdecimal() and room):
        return IgnoredUpdate(reason="a transfer to an unknown place")
    extras = {"discussion": text_at(made, "node_id")} if place == "discussion" else {}
    target = replace(here, room=room, thread=Thread(place, new).id, extras=extras)
    source = replace(here, thread=Thread(place, old).id)
    return RoomMigrated(key=key, old=source, new=target, keeps_messages=False)

"""The part of a simulated GitHub's GraphQL API that concerns discussions and reactions."""

from __future__ import annotations

import re
from typing import Any

from channels.github.simulator.world import BOT, MAX_BODY, Entry, World

_FIELD = re.compile(r"\b(addDiscussionComment|updateDiscussionComment|addReaction|removeReaction)\(")

CONTENTS = {"THUMBS_UP": "+1", "THUMBS_DOWN": "-1"} | {
    name: name.lower() for name in ("LAUGH", "HOORAY", "CONFUSED", "HEART", "ROCKET", "EYES")
}
"""ReactionContent, and the names of the REST API."""


class GraphQLRefusal(Exception):
    """GitHub answers with an error of a type, and with the status 200."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def run(world: World, query: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Run a mutation by the field it names, or a query of one node."""
    found = _FIELD.search(query)
    if found is None:
        return {"node": _node(world, _entry(world, variables.get("id")))}
    given = variables["input"]
    if world.permissions.get("discussions") != "write":
        raise GraphQLRefusal("FORBIDDEN", "Resource not accessible by integration")
    match found[1]:
        case "addDiscussionComment":
            return {"addDiscussionComment": {"comment": {"id": _add(world, given).node_id}}}
        case "updateDiscussionComment":
            comment = _entry(world, given.get("commentId"))
            comment.body = _checked(given.get("body"))
            return {"updateDiscussionComment": {"comment": {"id": comment.node_id}}}
        case verb:
            return {verb: {"reaction": {"content": _react(world, given, adds=verb == "addReaction")}}}


def _entry(world: World, node: object) -> Entry:
    entry = world.by_node(node)
    if entry is None:
        raise GraphQLRefusal("NOT_FOUND", f"Could not resolve to a node with the global id of '{node}'")
    return entry


def _checked(body: object) -> str:
    if not isinstance(body, str) or not body.strip() or len(body) > MAX_BODY:
        raise GraphQLRefusal("UNPROCESSABLE", f"Body is too long (maximum is {MAX_BODY} characters)")
    return body


def _add(world: World, given: dict[str, Any]) -> Entry:
    discussion, parent = _entry(world, given.get("discussionId")), None
    if given.get("replyToId"):
        above = _entry(world, given["replyToId"])
        if above.parent is not None:
            raise GraphQLRefusal("UNPROCESSABLE", "Parent comment is already in a thread, cannot reply to it")
        parent = above.id
    return world.add(
        "discussion_comment", discussion.number, _checked(given.get("body")), user=BOT, parent=parent
    )


def _react(world: World, given: dict[str, Any], *, adds: bool) -> str:
    entry, name = _entry(world, given.get("subjectId")), str(given["content"])
    if name not in CONTENTS:
        raise GraphQLRefusal("UNPROCESSABLE", f"{name} is no ReactionContent")
    content = CONTENTS[name]
    own = [number for number, (one, user) in entry.reactions.items() if user is BOT and one == content]
    if adds and not own:
        entry.reactions[next(world.ids)] = (content, BOT)
    for number in () if adds else own:
        del entry.reactions[number]
    return name


def _node(world: World, entry: Entry) -> dict[str, Any]:
    """Return every field that a query of a node may ask for."""
    above = world.entries.get(entry.parent) if entry.parent is not None else None
    below = [one for one in world.comments("discussion_comment", entry.number) if one.parent == entry.id]
    top = [one for one in world.comments("discussion_comment", entry.number) if one.parent is None]
    contents = {content for content, _user in entry.reactions.values()}
    own = {content for content, user in entry.reactions.values() if user is BOT}
    names = {content: name for name, content in CONTENTS.items()}
    groups = [{"content": names[one], "viewerHasReacted": one in own} for one in sorted(contents)]
    field = {"replies": _rows(below)} if entry.kind == "discussion_comment" else {"comments": _rows(top)}
    return {
        "id": entry.node_id,
        "replyTo": {"id": above.node_id} if above else None,
        "reactionGroups": groups,
        **field,
    }


def _rows(entries: list[Entry]) -> dict[str, Any]:
    rows = [{"id": one.node_id, "body": one.body, "viewerDidAuthor": one.user is BOT} for one in entries]
    return {"nodes": rows[-100:]}

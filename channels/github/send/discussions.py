"""Send to discussions, which only the GraphQL API can write to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

from channels.errors import Rejected, ThreadUndeliverable
from channels.github.api import Api
from channels.inbox.errors import NodeNotFound, require_id
from channels.inbox.text import clean, mapping, mappings
from channels.message import Address, SentMessage

_PARENT = "... on DiscussionComment { id replyTo { id } }"
_ROWS = "nodes { id body viewerDidAuthor }"
_RECENT = f"""... on Discussion {{ comments(last: 100) {{ {_ROWS} }} }}
  ... on DiscussionComment {{ replies(last: 100) {{ {_ROWS} }} }}"""
_REACTED = "... on Reactable { reactionGroups { content viewerHasReacted } }"


class Discussions:
    """Comments and reactions in the discussions of repositories."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def add(self, address: Address, body: str) -> SentMessage:
        """Add a comment to a discussion, or a reply to a comment's thread, unless it was deleted."""
        given, parent = {"discussionId": _discussion(address), "body": body}, await self._parent(address)
        given |= {"replyToId": parent} if parent else {}
        try:
            comment = await self._change(address, "addDiscussionComment", given)
        except NodeNotFound as error:
            raise ThreadUndeliverable(f"{error}: the discussion is gone") from error
        return SentMessage(platform_id=f"node/{require_id(comment.get('id'), 'addDiscussionComment')}")

    async def update(self, address: Address, node: str, body: str) -> None:
        """Replace the text of a comment."""
        await self._change(address, "updateDiscussionComment", {"commentId": node, "body": body})

    async def recent(self, address: Address) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the latest comments in a thread: {id, body, viewerDidAuthor}."""
        node = await self._node(address, await self._parent(address) or _discussion(address), _RECENT)
        for row in mappings(mapping(node.get("comments") or node.get("replies")).get("nodes")):
            yield row

    async def react(self, address: Address, node: str, wanted: str | None, *, only: Collection[str]) -> None:
        """Add the app's reaction to a discussion or a comment in one, as the only one of these."""
        rows = mappings((await self._node(address, node, _REACTED)).get("reactionGroups"))
        own = {clean(row.get("content")) for row in rows if row.get("viewerHasReacted") is True}
        old = own.intersection(map(_graphql_name, only)) - {_graphql_name(wanted)}
        changes = [("removeReaction", one) for one in sorted(old)]
        changes += [("addReaction", _graphql_name(wanted))] if wanted else []
        for change, content in changes:
            await self._change(address, change, {"subjectId": node, "content": content})

    async def _parent(self, address: Address) -> str:
        """Return the comment to reply to: a reply's own parent, because replies have no replies.

        Raises ThreadUndeliverable if it was deleted.
        """
        node = address.extras.get("reply_to", "")
        try:
            found = await self._node(address, node, _PARENT) if node else {}
        except NodeNotFound as error:
            raise ThreadUndeliverable(f"{error}: what began the thread is gone") from error
        return clean(mapping(found.get("replyTo")).get("id")) or node

    async def _node(self, address: Address, node: str, fields: str) -> Mapping[str, Any]:
        query = f"query($id: ID!) {{ node(id: $id) {{ {fields} }} }}"
        return mapping((await self._api.query(address.room, query, id=node)).get("node"))

    async def _change(self, address: Address, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run a mutation, whose input's type has its name; return the comment that it made, if any."""
        kind = f"{name[0].upper()}{name[1:]}Input"
        result = "comment { id }" if name.endswith("Comment") else "reaction { content }"
        query = f"mutation($input: {kind}!) {{ {name}(input: $input) {{ {result} }} }}"
        answer = mapping((await self._api.query(address.room, query, input=given)).get(name))
        return mapping(answer.get("comment"))


def _discussion(address: Address) -> str:
    if node := address.extras.get("discussion"):
        return node
    raise Rejected("the address of a discussion lacks its node id: mention the bot there again")


def _graphql_name(content: str | None) -> str:
    return {"+1": "THUMBS_UP", "-1": "THUMBS_DOWN"}.get(content or "", (content or "").upper())

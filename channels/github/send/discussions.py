"""Send to discussions, which only the GraphQL API can write to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from channels.errors import Ambiguous, Rejected
from channels.github.api import Api
from channels.inbox.text import clean, mapping
from channels.message import Address, SentMessage

_ADD = """mutation($input: AddDiscussionCommentInput!) {
  addDiscussionComment(input: $input) { comment { id } } }"""
_UPDATE = """mutation($input: UpdateDiscussionCommentInput!) {
  updateDiscussionComment(input: $input) { comment { id } } }"""
_PARENT = "query($id: ID!) { node(id: $id) { ... on DiscussionComment { id replyTo { id } } } }"
_RECENT = """query($id: ID!) { node(id: $id) {
  ... on Discussion { comments(last: 100) { nodes { id body viewerDidAuthor } } }
  ... on DiscussionComment { replies(last: 100) { nodes { id body viewerDidAuthor } } } } }"""
_REACTED = """query($id: ID!) { node(id: $id) {
  ... on Reactable { reactionGroups { content viewerHasReacted } } } }"""
_REACT = """mutation($input: %sReactionInput!) { %sReaction(input: $input) { reaction { content } } }"""


class Discussions:
    """Comments and reactions in the discussions of repositories."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def add(self, address: Address, body: str) -> SentMessage:
        """Add a comment to a discussion, or a reply to a comment's thread."""
        fields = {"discussionId": self._discussion(address), "body": body}
        parent = await self._parent(address)
        data = await self._api.graphql(
            address.room, _ADD, input={**fields, **({"replyToId": parent} if parent else {})}
        )
        comment = clean(mapping(mapping(data.get("addDiscussionComment")).get("comment")).get("id"))
        if not comment:
            raise Ambiguous("addDiscussionComment: the response names no comment")
        return SentMessage(platform_id=f"node/{comment}")

    async def update(self, address: Address, node: str, body: str) -> None:
        """Replace the text of a comment."""
        await self._api.graphql(address.room, _UPDATE, input={"commentId": node, "body": body})

    async def recent(self, address: Address) -> list[Mapping[str, Any]]:
        """Return the app's latest comments in a thread: {id, body}."""
        subject = await self._parent(address) or self._discussion(address)
        node = mapping((await self._api.graphql(address.room, _RECENT, id=subject)).get("node"))
        found = mapping(node.get("comments") or node.get("replies")).get("nodes")
        rows = [mapping(row) for row in found] if isinstance(found, list) else []
        return [row for row in rows if row.get("viewerDidAuthor") is True]

    async def react(
        self, address: Address, node: str, content: str | None, *, only: Collection[str] = ()
    ) -> None:
        """Add the app's reaction to a discussion or a comment in one, as the only one of these."""
        wanted = _graphql_name(content or "")
        found = mapping((await self._api.graphql(address.room, _REACTED, id=node)).get("node"))
        groups = [mapping(group) for group in found.get("reactionGroups") or ()]
        own = {clean(group.get("content")) for group in groups if group.get("viewerHasReacted") is True}
        old = own.intersection(map(_graphql_name, only)) - {wanted}
        changes = [("Remove", one) for one in sorted(old)] + [("Add", wanted)] * (wanted not in own | {""})
        for verb, one in changes:
            query = _REACT % (verb, verb.lower())
            await self._api.graphql(address.room, query, input={"subjectId": node, "content": one})

    async def _parent(self, address: Address) -> str:
        """Return the comment to reply to: a reply's own parent, because replies have no replies."""
        node = address.extras.get("reply_to", "")
        if not node:
            return ""
        found = mapping((await self._api.graphql(address.room, _PARENT, id=node)).get("node"))
        return clean(mapping(found.get("replyTo")).get("id")) or node

    @staticmethod
    def _discussion(address: Address) -> str:
        node = address.extras.get("discussion", "")
        if not node:
            raise Rejected("the address of a discussion lacks its node id: mention the bot there again")
        return node


def _graphql_name(content: str) -> str:
    return {"+1": "THUMBS_UP", "-1": "THUMBS_DOWN"}.get(content, content.upper())

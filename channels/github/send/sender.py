"""Send to GitHub: comments, edits and reactions.

Each comment ends with its delivery's key in an HTML comment, which GitHub does not show. `find` looks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from channels.errors import Rejected, ThreadUndeliverable, Undeliverable
from channels.github.api import Api, Bot
from channels.github.send import markup
from channels.github.send.discussions import Discussions
from channels.github.threads import Thread, parse_thread
from channels.inbox.errors import require_id
from channels.inbox.text import clean, identifier, mapping
from channels.message import Address, Reply, SentMessage, StatusReaction
from channels.port import Sender

STATUSES = {StatusReaction.SEEN: "eyes", StatusReaction.DONE: "rocket", StatusReaction.FAILED: "confused"}
SKEW = timedelta(minutes=2)
"""What the local clock and GitHub's may differ by."""

_REPO = "/repos/{owner}/{repo}"
_LISTS = {"comment": "issues", "review": "pulls"}
"""The kinds of comments, and the lists that they belong to."""

_COMMENTS = {kind: f"{_REPO}/{place}/comments/{{id}}" for kind, place in _LISTS.items()}
_KINDS = {**_COMMENTS, "issue": f"{_REPO}/issues/{{id}}", "node": ""}


class GitHubSender(Sender):
    """The sending half of a GitHub App."""

    def __init__(self, api: Api, *, bot: Bot) -> None:
        self._api = api
        self._bot = bot
        self._discussions = Discussions(api)

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Comment in the thread of the address."""
        thread = parse_thread(address)
        if thread.place == "discussion":
            return await self._discussions.add(address, _body(reply))
        return await self._comment(address, thread, _body(reply))

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Replace the text of one of the bot's comments."""
        (kind, number), body = _parse_id(platform_id), _body(reply)
        if kind == "node":
            await self._discussions.update(address, number, body)
        elif kind in _COMMENTS:
            await self._api.call("PATCH", _COMMENTS[kind], {"body": body}, room=address.room, id=number)
        else:
            raise Rejected(f"{platform_id} is not a comment")
        return SentMessage(platform_id=platform_id)

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set the app's reaction to an issue, a pull request or a comment."""
        await self._react(address, platform_id, reaction and STATUSES[reaction], STATUSES.values())

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction of the app, beside the status reaction."""
        await self._react(address, platform_id, emoji, ())

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Return the app's comment that holds the key, or None; raises Unreachable if there are too many."""
        thread = parse_thread(address)
        if thread.place == "discussion":
            kind, rows = "node", self._discussions.recent(address)
        else:
            kind, path = _comments_of(thread)
            query = (since.astimezone(UTC) - SKEW).strftime("?per_page=100&since=%Y-%m-%dT%H:%M:%SZ")
            rows = self._api.rows(path + query, room=address.room, number=thread.number)
        async for row in rows:
            if self._is_own(row) and _mark(key) in clean(row.get("body")):
                return SentMessage(platform_id=f"{kind}/{identifier(row.get('id'))}")
        return None

    async def _comment(self, address: Address, thread: Thread, body: str) -> SentMessage:
        """Comment in a thread; one that is gone is distinguished from a lost repository."""
        kind, path = _comments_of(thread)
        path = f"{path}/{{root}}/replies" if thread.root else path
        place = {"room": address.room, "number": thread.number, "root": thread.root}
        try:
            made = mapping(await self._api.call("POST", path, {"body": body}, **place))
        except Undeliverable as error:
            await self._api.call("GET", _REPO, room=address.room)  # Undeliverable without the repository
            if thread.root or isinstance(error, ThreadUndeliverable):
                raise ThreadUndeliverable(f"{error}: what began the thread is gone") from error
            raise Rejected(f"{error}: the thread is gone, the repository is not") from error
        return SentMessage(platform_id=f"{kind}/{require_id(made.get('id'), f'POST {path}')}")

    async def _react(self, address: Address, message: str, wanted: str | None, only: Collection[str]) -> None:
        """Add a reaction (repeating it changes nothing), as the only one of these."""
        kind, number = _parse_id(message)
        if kind == "node":
            await self._discussions.react(address, number, wanted, only=only)
            return
        path, place = f"{_KINDS[kind]}/reactions", {"room": address.room, "id": number}
        rows = [row async for row in self._api.rows(f"{path}?per_page=100", **place)] if only else []
        for row in filter(self._is_own, rows):
            if row.get("content") in only and row.get("content") != wanted:
                await self._api.call("DELETE", f"{path}/{identifier(row.get('id'))}", **place)
        if wanted:
            await self._api.call("POST", path, {"content": wanted}, **place)

    def _is_own(self, row: Mapping[str, Any]) -> bool:
        return row.get("viewerDidAuthor") is True or mapping(row.get("user")).get("login") == self._bot.login


def _comments_of(thread: Thread) -> tuple[str, str]:
    """Return the kind of the comments in a thread, and the path of their list."""
    kind = "review" if thread.place == "review" else "comment"
    return kind, f"{_REPO}/{_LISTS[kind]}/{{number}}/comments"


def _parse_id(platform_id: str) -> tuple[str, str]:
    kind, _, number = platform_id.partition("/")
    if kind not in _KINDS or not number:
        raise Rejected(f"{platform_id!r} is not the id of a message on GitHub")
    return kind, number


def _mark(key: str) -> str:
    return f"<!-- dovecote {key} -->"


def _body(reply: Reply) -> str:
    return f"{markup.render(clean(reply.text))}\n\n{_mark(reply.key)}"

"""Send to GitHub: comments, edits and reactions.

Each comment ends with its delivery's key in an HTML comment, which GitHub does not show. `find` looks for it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from channels.errors import Ambiguous, Rejected, Undeliverable, Unreachable
from channels.github.api import Api, Bot
from channels.github.send import markup
from channels.github.send.discussions import Discussions
from channels.github.threads import Place, Thread, parse_thread
from channels.inbox.sender import InboxSender
from channels.inbox.text import clean, identifier, mapping
from channels.message import Address, Reply, SentMessage, StatusReaction

STATUSES = {StatusReaction.SEEN: "eyes", StatusReaction.DONE: "rocket", StatusReaction.FAILED: "confused"}
SKEW = timedelta(minutes=2)
"""What the local clock and GitHub's may differ by."""

MAX_PAGES = 10
_REPO = "/repos/{owner}/{repo}"
_COMMENTS = {"comment": f"{_REPO}/issues/comments/{{id}}", "review": f"{_REPO}/pulls/comments/{{id}}"}
_KINDS = {**_COMMENTS, "issue": f"{_REPO}/issues/{{id}}", "node": ""}


class GitHubSender(InboxSender):
    """The sending half of a GitHub App."""

    def __init__(self, api: Api, *, bot: Bot) -> None:
        self._api = api
        self._bot = bot
        self._discussions = Discussions(api)

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Comment in the thread of the address."""
        thread = parse_thread(address) if address.thread is not None or "/" in address.room else None
        body = _body(reply)
        if thread is not None and thread.place is Place.DISCUSSION:
            return await self._discussions.add(address, body)
        is_review = thread is not None and thread.place is Place.REVIEW
        path = "/pulls/{number}/comments/{root}/replies" if is_review else "/issues/{number}/comments"
        made = await self._call_thread(address, "POST", path, thread, {"body": body})
        if not isinstance(mapping(made).get("id"), int):
            raise Ambiguous(f"POST {path}: the response names no comment")
        return SentMessage(platform_id=f"{'review' if is_review else 'comment'}/{made['id']}")

    async def edit(self, address: Address, platform_id: str, reply: Reply) -> SentMessage:
        """Replace the text of one of the bot's comments."""
        kind, number = _parse_id(platform_id)
        if kind == "node":
            await self._discussions.update(address, number, _body(reply))
        elif kind in _COMMENTS:
            await self._api.in_room(address.room, "PATCH", _COMMENTS[kind], {"body": _body(reply)}, id=number)
        else:
            raise Rejected(f"{platform_id} is not a comment")
        return SentMessage(platform_id=platform_id)

    async def react(self, address: Address, platform_id: str, reaction: StatusReaction | None) -> None:
        """Set the app's reaction to an issue, a pull request or a comment."""
        kind, number = _parse_id(platform_id)
        wanted = STATUSES[reaction] if reaction is not None else None
        if kind == "node":
            await self._discussions.react(address, number, wanted, only=STATUSES.values())
            return
        path, room = f"{_KINDS[kind]}/reactions", address.room
        found, _ = await self._api.in_room(room, "GET", f"{path}?per_page=100", id=number)
        own = [row for row in map(mapping, found or ()) if self._is_own(row)]
        for row in own:
            if row.get("content") in STATUSES.values() and row.get("content") != wanted:
                which = identifier(row.get("id"))
                await self._api.in_room(room, "DELETE", f"{path}/{{reaction}}", id=number, reaction=which)
        if wanted and wanted not in [row.get("content") for row in own]:
            await self._api.in_room(room, "POST", path, {"content": wanted}, id=number)

    async def add_reaction(self, address: Address, platform_id: str, emoji: str) -> None:
        """Add a reaction of the app, beside the status reaction."""
        kind, number = _parse_id(platform_id)
        if kind == "node":
            await self._discussions.react(address, number, emoji)
        else:
            path = f"{_KINDS[kind]}/reactions"
            await self._api.in_room(address.room, "POST", path, {"content": emoji}, id=number)

    async def find(self, address: Address, key: str, *, since: datetime) -> SentMessage | None:
        """Return the app's comment that holds the key, or None; raises Unreachable if there are too many."""
        thread, mark = parse_thread(address), _mark(key)
        if thread.place is Place.DISCUSSION:
            rows = await self._discussions.recent(address)
            return next((_sent("node", row) for row in rows if mark in clean(row.get("body"))), None)
        kind, path = ("review", "pulls") if thread.place is Place.REVIEW else ("comment", "issues")
        after = (since.astimezone(UTC) - SKEW).strftime("%Y-%m-%dT%H:%M:%SZ")
        url = f"{_REPO}/{path}/{{number}}/comments?per_page=100&since={after}"
        for _ in range(MAX_PAGES):
            rows, following = await self._api.in_room(address.room, "GET", url, number=thread.number)
            for row in map(mapping, rows or ()):
                if self._is_own(row) and mark in clean(row.get("body")):
                    return _sent(kind, row)
            if following is None:
                return None
            url = following
        raise Unreachable(f"GET {path}: too many comments since then to search")

    def _is_own(self, row: Any) -> bool:
        return mapping(row.get("user")).get("login") == self._bot.login

    async def _call_thread(
        self, address: Address, method: str, path: str, thread: Thread | None, data: Any
    ) -> Any:
        """Make a call about a thread; a thread that is gone is distinguished from a lost repository."""
        number, root = (thread.number, thread.root) if thread else ("", "")
        try:
            made, _ = await self._api.in_room(
                address.room, method, f"{_REPO}{path}", data, number=number, root=root
            )
        except Undeliverable as error:
            await self._api.in_room(address.room, "GET", _REPO)  # Undeliverable without the repository
            raise Rejected(f"{error}: the thread is gone, the repository is not") from error
        return made


def _parse_id(platform_id: str) -> tuple[str, str]:
    kind, _, number = platform_id.partition("/")
    if kind not in _KINDS or not number:
        raise Rejected(f"{platform_id!r} is not the id of a message on GitHub")
    return kind, number


def _sent(kind: str, row: Any) -> SentMessage:
    return SentMessage(platform_id=f"{kind}/{identifier(row.get('id'))}")


def _mark(key: str) -> str:
    return f"<!-- dovecote {key} -->"


def _body(reply: Reply) -> str:
    return f"{markup.render(clean(reply.text))}\n\n{_mark(reply.key)}"

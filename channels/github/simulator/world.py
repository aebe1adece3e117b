"""The repository of a simulated GitHub: threads, comments, reactions and people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOM, SLUG, APP_ID, INSTALLATION = "octo/loft", "dovecote", 4242, 77001
MAX_BODY = 65536
ADA = {"login": "ada", "id": 1001, "type": "User"}
CODE = {
    "path": "loft.py",
    "line": 3,
    "original_line": 3,
    "side": "RIGHT",
    "subject_type": "line",
    "diff_hunk": "@@ -1,2 +1,3 @@\n import dove\n \n+loft = dove.Loft(size=12)",
}
"""The line of code that all review comments are about."""

BOT = {"login": f"{SLUG}[bot]", "id": 99004242, "type": "Bot"}


def now() -> str:
    """Return the time as GitHub writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True, kw_only=True)
class Entry:
    """An issue, a pull request, a discussion, or a comment in one; `kind` names which."""

    kind: str
    id: int
    number: int
    body: str
    user: dict[str, Any]
    title: str = ""
    parent: int | None = None
    review: int | None = None
    locked: bool = False
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)
    reactions: dict[int, tuple[str, dict[str, Any]]] = field(default_factory=dict)

    @property
    def node_id(self) -> str:
        """The GraphQL id."""
        return f"{self.kind.upper()}_{self.id}"

    def json(self) -> dict[str, Any]:
        """Return what the API and the events say about it."""
        title = {"title": self.title, "number": self.number, "locked": self.locked} if self.title else {}
        review: dict[str, Any] = {}
        if self.kind == "review":
            review = {"submitted_at": self.created_at, "state": "commented"}
        if self.review is not None:
            review = {"pull_request_review_id": self.review}
        parent = "parent_id" if self.kind == "discussion_comment" else "in_reply_to_id"
        return {
            "id": self.id,
            "node_id": self.node_id,
            "body": self.body,
            "user": self.user,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            **title,
            **review,
            **(CODE if self.kind == "review_comment" else {}),
            **({parent: self.parent} if self.parent is not None else {}),
        }


class World:
    """One repository with an issue (1), a pull request (2) and a discussion (3)."""

    def __init__(self) -> None:
        self.ids = count(1_000_001)
        self.entries: dict[int, Entry] = {}
        self.room = ROOM
        self.former_rooms: set[str] = set()
        self.installed = True
        self.suspended = False
        self.deleted: set[int] = set()
        """Numbers of issues that were deleted, of which GitHub says so to those who may read the others."""
        self.archived = False
        self.permissions = {
            "metadata": "read",
            "issues": "write",
            "pull_requests": "write",
            "discussions": "write",
        }
        for number, kind in enumerate(("issue", "pull_request", "discussion"), 1):
            self.add(
                kind,
                number,
                "It is so.",
                user={"login": "bob", "id": 1002, "type": "User"},
                title=f"A {kind}",
            )

    def add(self, kind: str, number: int, body: str, *, user: dict[str, Any] = ADA, **others: Any) -> Entry:
        """Add an entry."""
        entry = Entry(kind=kind, id=next(self.ids), number=number, body=body, user=user, **others)
        self.entries[entry.id] = entry
        return entry

    def thread(self, number: int) -> Entry | None:
        """Return the issue, pull request or discussion of a number."""
        return next((one for one in self.entries.values() if one.title and one.number == number), None)

    def comments(self, kind: str, number: int | None = None) -> list[Entry]:
        """Return the comments of a kind, in a thread or in all."""
        found = [one for one in self.entries.values() if one.kind == kind and not one.title]
        return [one for one in found if number in (None, one.number)]

    def by_node(self, node: object) -> Entry | None:
        """Return the entry with a GraphQL id."""
        return next((one for one in self.entries.values() if one.node_id == node), None)


def body_text(body: str) -> str:
    """Return a comment as people read it, without markup and HTML comments."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(body)
    return "\n".join(_texts(tokens)).strip()


def _texts(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type in {"fence", "code_block"}:
            yield token.content.removesuffix("\n")
        elif token.type == "inline":
            yield "".join(_inline(child) for child in token.children or ())


def _inline(token: Token) -> str:
    return (
        "\n"
        if token.type in {"softbreak", "hardbreak"}
        else ""
        if token.type == "html_inline"
        else token.content
    )

"""Threads and messages on GitHub as the text ids that addresses and messages hold; pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from channels.errors import Rejected
from channels.message import Address

EVENTS = (
    "issues",
    "issue_comment",
    "pull_request",
    "pull_request_review",
    "pull_request_review_comment",
    "discussion",
    "discussion_comment",
)
"""The events that bring text."""

REACTIONS = {
    "👍": "+1",
    "👎": "-1",
    "😄": "laugh",
    "🎉": "hooray",
    "😕": "confused",
    "❤️": "heart",
    "🚀": "rocket",
    "👀": "eyes",
}
"""GitHub's names of the emoji that it has."""

ESCAPES = {"<": "&lt;", "@": "@&#8203;"}
"""What replaces the characters that would begin HTML, or mention a person."""


class Place(StrEnum):
    """Where a thread is; an issue and a pull request share numbers, comments and reactions."""

    ISSUE = "issue"
    REVIEW = "review"
    DISCUSSION = "discussion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """A conversation: `12`, `12/review/345` (its first comment) or `discussions/7[/COMMENT]`."""

    place: Place
    number: str
    root: str = ""

    @property
    def id(self) -> str:
        """The thread of an address."""
        match self.place:
            case Place.ISSUE:
                return self.number
            case Place.REVIEW:
                return f"{self.number}/review/{self.root}"
            case _:
                return f"discussions/{self.number}{'/' if self.root else ''}{self.root}"


def parse_thread(address: Address) -> Thread:
    """Return the thread of an address; raises Rejected if it names none."""
    match (address.thread or "").split("/"):
        case [number] if number.isdecimal():
            return Thread(place=Place.ISSUE, number=number)
        case [number, "review", root] if number.isdecimal() and root.isdecimal():
            return Thread(place=Place.REVIEW, number=number, root=root)
        case ["discussions", number, *root] if number.isdecimal():
            return Thread(place=Place.DISCUSSION, number=number, root="".join(root))
    raise Rejected(f"thread {address.thread!r} is not a GitHub thread: use an issue's number, such as 12")


def split_room(room: str) -> dict[str, str]:
    """Return the owner and the repository of a room, for a URL."""
    owner, _, repo = room.partition("/")
    return {"owner": owner, "repo": repo}


def measure(text: str) -> int:
    """Return the length of a text as it is sent, with escapes."""
    return len(text) + sum(text.count(mark) * (len(safe) - 1) for mark, safe in ESCAPES.items())

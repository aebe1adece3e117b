"""Threads and messages on GitHub as the text ids that addresses and messages hold; pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from channels.errors import Rejected
from channels.inbox.emoji import emoji_named
from channels.message import Address

REACTIONS = emoji_named("+1 -1 laugh hooray confused heart rocket eyes")
"""GitHub's names of the emoji that it has."""

ESCAPES = {"<": "&lt;", "@": "@&#8203;", "&": "&amp;"}
"""What replaces the characters that would begin HTML, mention a person, or begin an entity for `@`."""


SUFFIX = r"\[bot\]"
"""A pattern of what may follow the app's name in a mention."""

Place = Literal["issue", "review", "discussion"]
"""Where a thread is; an issue and a pull request share numbers, comments and reactions."""


class Subject(NamedTuple):
    """What an event is about.

    `field` of its payload holds the text, and `kind` begins the message's id. A comment in a thread of its
    own names the thread's first comment in the field `above`.
    """

    field: str
    place: Place
    kind: str
    above: str = ""


SUBJECTS = {
    "issues": Subject("issue", "issue", "issue"),
    "issue_comment": Subject("comment", "issue", "comment"),
    "pull_request": Subject("pull_request", "issue", "issue"),
    "pull_request_review": Subject("review", "issue", "node"),
    "pull_request_review_comment": Subject("comment", "review", "review", "in_reply_to_id"),
    "discussion": Subject("discussion", "discussion", "node"),
    "discussion_comment": Subject("comment", "discussion", "node", "parent_id"),
}
"""The events that bring text."""


class Thread(NamedTuple):
    """A conversation: `12`, `12/review/345` (its first comment) or `discussions/7[/COMMENT]`."""

    place: Place
    number: str
    root: str = ""

    @property
    def id(self) -> str:
        """The thread of an address."""
        if self.place == "discussion":
            return "/".join(filter(None, ("discussions", self.number, self.root)))
        return f"{self.number}/review/{self.root}" if self.root else self.number


def parse_thread(address: Address) -> Thread:
    """Return the thread of an address; raises Rejected if it names none."""
    match (address.thread or "").split("/"):
        case [""] if "/" not in address.room:  # no repository: GitHub's answer is that there is none
            return Thread("issue", "0")
        case [number] if number.isdecimal():
            return Thread("issue", number)
        case [number, "review", root] if number.isdecimal() and root.isdecimal():
            return Thread("review", number, root)
        case ["discussions", number, *root] if number.isdecimal():
            return Thread("discussion", number, "".join(root))
    raise Rejected(f"thread {address.thread!r} is not a GitHub thread: use an issue's number, such as 12")


def thread_above(address: Address) -> Address | None:
    """Return the pull request or the discussion in which the address's thread is; None for one of these."""
    thread = parse_thread(address)
    extras = {name: value for name, value in address.extras.items() if name != "reply_to"}
    above = "issue" if thread.place == "review" else thread.place
    return replace(address, thread=Thread(above, thread.number).id, extras=extras) if thread.root else None


def split_room(room: str) -> dict[str, str]:
    """Return the owner and the repository of a room, for a URL."""
    owner, _, repo = room.partition("/")
    return {"owner": owner, "repo": repo}


def measure(text: str) -> int:
    """Return the length of a text as it is sent, with escapes."""
    return len(text) + sum(text.count(mark) * (len(safe) - 1) for mark, safe in ESCAPES.items())

"""A review on GitHub: the agent gets each comment once, with the summary or by itself, in any order."""

from __future__ import annotations

from typing import Any

import pytest

from channels.github.api import Bot
from channels.github.receive.codec import decode
from channels.github.receive.reviews import LINE_COMMENTS
from channels.github.simulator import events
from channels.github.simulator.world import World
from channels.message import Message
from delivery.database.engine import Database
from gateway.store.turns.turns import Turn
from ingress_harness import IngressHarness, open_ingress_harness

PLAIN, MENTIONING = "Use a name.", "@dovecote shorten this"


class Review:
    """A review of pull request 2 with two comments, of which one mentions the bot."""

    def __init__(self, harness: IngressHarness) -> None:
        self._harness = harness
        self._channel = harness.channel_context.record.id
        self._world = World()
        made = self._world.add("review", 2, "@dovecote fix these")
        self._comments = [
            self._world.add("review_comment", 2, text, review=made.id) for text in (PLAIN, MENTIONING)
        ]
        self._summary = made

    async def receive(self, *names: str) -> None:
        """Receive `summary` and `comments`, in this order."""
        for name in names:
            found = [self._summary] if name == "summary" else self._comments
            for number, entry in enumerate(found):
                action = "submitted" if name == "summary" else "created"
                payload = events.payload_of(self._world, entry, action)
                if name == "summary":
                    payload[LINE_COMMENTS] = [one.json() for one in self._comments]
                kind = "pull_request_review" if name == "summary" else "pull_request_review_comment"
                await self._accept(kind, f"{name}-{number}", payload)

    async def ask(self, comment: int | None = None) -> Turn:
        """Ask the bot something on the pull request, or in the thread of a comment; return the turn."""
        address = self._harness.address(self._world.room, self._thread(comment))
        await self._harness.send_message("and now?", address=address, mentions_bot=True)
        return (await self.list_turns(comment))[-1]

    async def list_turns(self, comment: int | None = None) -> list[Turn]:
        """Return the open turns on the pull request, or in the thread of a comment."""
        return await self._harness.list_open_turns(self._world.room, self._thread(comment))

    def _thread(self, comment: int | None) -> str:
        return "2" if comment is None else f"2/review/{self._comments[comment].id}"

    async def _accept(self, event: str, delivery: str, payload: dict[str, Any]) -> None:
        raw = {"event": event, "delivery": delivery, "payload": payload}
        update = decode(raw, channel=self._channel, bot=Bot(slug="dovecote"))
        assert isinstance(update, Message)
        await self._harness.receive(update)


def texts(turn: Turn) -> str:
    """Return all that a turn got: its message and the earlier ones."""
    return "\n".join([turn.input, *(one["text"] for one in (turn.context or {}).get("earlier", ()))])


@pytest.mark.parametrize("order", [("summary", "comments"), ("comments", "summary")])
async def test_each_comment_of_a_review_reaches_one_turn(database: Database, order: tuple[str, ...]) -> None:
    """The summary has the others; one that mentions the bot starts a turn in its thread."""
    review = Review(await open_ingress_harness(database))
    await review.receive(*order, "comments")
    (summary,) = await review.list_turns()
    assert texts(summary).count(PLAIN) == 1
    assert "shorten this" not in texts(summary)
    (mention,) = await review.list_turns(1)
    assert mention.input.startswith("shorten this")
    assert "Use a name" not in texts(await review.ask())


async def test_a_comment_of_a_review_is_known_in_its_own_thread(database: Database) -> None:
    """A person who asks below it asks another conversation, which has not seen the summary."""
    review = Review(await open_ingress_harness(database))
    await review.receive("summary", "comments")
    assert texts(await review.ask(0)).count(PLAIN) == 1

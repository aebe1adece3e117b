"""Lists of conversations on both databases: titles, order and pages."""

from __future__ import annotations

import pytest

from delivery.database.engine import Database
from delivery.events.event import Event, EventType
from gateway.conversations import titles
from gateway.store.conversations import conversations, listing
from gateway.store.conversations.listing import ConversationFilter, ConversationView
from ingress_harness import IngressHarness, attachment, open_ingress_harness

ALL = ConversationFilter()


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """An update handler that admits everybody."""
    return await open_ingress_harness(database)


async def list_active(
    harness: IngressHarness, *, after: ConversationView | None = None, limit: int = 10
) -> list[ConversationView]:
    """Return a page of the harness's conversations, last active first."""
    cursor = (after.active_at, after.id) if after is not None else None
    async with harness.database.read() as connection:
        return await listing.list_by_activity(connection, harness.account, ALL, after=cursor, limit=limit)


async def list_titles(harness: IngressHarness) -> list[str | None]:
    """Return the titles of the harness's conversations, last active first."""
    return [view.conversation.title for view in await list_active(harness)]


async def test_the_first_message_is_the_title_until_a_person_chooses_one(harness: IngressHarness) -> None:
    """Later messages change nothing; without a chosen title the first message counts again."""
    await harness.send_message("Plan the\ntrip")
    await harness.send_message("second")
    talk = await harness.get_conversation()
    assert talk.title == "Plan the trip"
    async with harness.database.begin() as connection:
        assert await titles.rename(connection, talk.id, "Holidays") == "Holidays"
    await harness.send_message("third")
    assert (await harness.get_conversation()).title == "Holidays"
    async with harness.database.begin() as connection:
        assert await titles.rename(connection, talk.id, None) == "Plan the trip"


async def test_a_command_shows_and_changes_the_title(harness: IngressHarness) -> None:
    """`/title` names the conversation, `/title TEXT` renames it, and neither is a message."""
    await harness.send_message("hello")
    await harness.send_command("title", "Our trip")
    await harness.send_command("title")
    assert (await harness.get_conversation()).title == "Our trip"
    assert harness.replies == [
        "This conversation is now called: Our trip",
        "This conversation is called: Our trip",
    ]


async def test_a_message_of_a_file_alone_is_titled_by_the_file(harness: IngressHarness) -> None:
    """The name of the first file stands for a missing text."""
    await harness.send_message("", attachments=(attachment("plan.pdf"),))
    assert (await harness.get_conversation()).title == "plan.pdf"


async def test_conversations_are_listed_by_their_last_activity(harness: IngressHarness) -> None:
    """A message or an event of a turn moves a conversation to the top; the end of a delivery does not."""
    for room in ("a", "b", "c"):
        await harness.send_message(f"hello {room}", address=harness.address(room))
    assert await list_titles(harness) == ["hello c", "hello b", "hello a"]
    first = (await harness.get_conversation("a")).id
    second = (await harness.get_conversation("b")).id
    async with harness.transactions.begin("test") as tx:
        tx.emit(Event.now(EventType.TURN_STARTED, first, {}))
    async with harness.transactions.begin("test") as tx:
        tx.emit(Event.now(EventType.DELIVERY_SUCCEEDED, second, {}))
    assert await list_titles(harness) == ["hello a", "hello c", "hello b"]


async def test_pages_reach_every_conversation_once(harness: IngressHarness) -> None:
    """Pages by activity and by creation together contain each conversation exactly once."""
    for number in range(7):
        await harness.send_message("hello", address=harness.address(f"room {number}"))
    found: list[str] = []
    page = await list_active(harness, limit=3)
    while page:
        found += [view.id for view in page]
        page = await list_active(harness, after=page[-1], limit=3)
    async with harness.database.read() as connection:
        created = await listing.list_by_creation(connection, harness.account, ALL, after=None, limit=10)
        wanted = ConversationFilter(channel=created[0].conversation.channel, room="room 3")
        one_room = await listing.list_by_creation(connection, harness.account, wanted, after=None, limit=10)
        last = await conversations.get_by_id(connection, found[-1])
    assert sorted(found) == sorted(view.id for view in created)
    assert len(found) == len(set(found)) == 7
    assert len(one_room) == 1
    assert last is not None

"""Lists of conversations on both databases: titles, order and pages."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from channels.message import Author
from delivery.database.engine import Database
from delivery.events.event import Event, EventType
from gateway.accounts.author_names import read_named_previews, read_names_in
from gateway.conversations import titles
from gateway.store import tables
from gateway.store.conversations import conversations, handover, listing
from gateway.store.conversations.listing import ConversationFilter, ConversationState, ConversationView
from gateway.store.conversations.previews import PREVIEW_LENGTH, read_previews
from gateway.store.turn_state import TurnState
from gateway.store.turns import turns
from ingress_harness import ANN, IngressHarness, attachment, open_ingress_harness

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
    """The name of the first file replaces a missing text."""
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


async def list_found(harness: IngressHarness, wanted: ConversationFilter) -> list[str | None]:
    """Return the titles of the conversations that a filter finds."""
    async with harness.database.read() as connection:
        found = await listing.list_by_activity(connection, harness.account, wanted, after=None, limit=10)
    return [view.conversation.title for view in found]


async def test_a_list_is_searched_and_filtered(harness: IngressHarness) -> None:
    """Text is part of a title or a room and is no pattern; states, platform and agent narrow the list."""
    for room in ("kitchen", "cellar"):
        await harness.send_message(f"100% of the {room}", address=harness.address(room))
    talk = await harness.get_conversation("cellar")
    assert await list_found(harness, ConversationFilter(text="CELLAR")) == ["100% of the cellar"]
    assert len(await list_found(harness, ConversationFilter(text="0%"))) == 2
    assert await list_found(harness, ConversationFilter(text="0%c")) == []
    assert len(await list_found(harness, ConversationFilter(agent=talk.agent))) == 2
    assert await list_found(harness, ConversationFilter(agent="agt_other")) == []
    assert await list_found(harness, ConversationFilter(kind="no-such-platform")) == []
    running = ConversationFilter(state=ConversationState.RUNNING)
    assert len(await list_found(harness, running)) == 2
    async with harness.database.begin() as connection:
        await handover.start(connection, talk.id, by="key_1")
        for turn in await turns.list_open(connection, talk.id):
            await connection.execute(
                update(tables.turns).where(tables.turns.c.id == turn.id).values(state=TurnState.FAILED)
            )
    assert await list_found(harness, ConversationFilter(state=ConversationState.HUMAN)) == [talk.title]
    assert await list_found(harness, ConversationFilter(state=ConversationState.FAILED)) == [talk.title]
    assert len(await list_found(harness, running)) == 1
    assert await list_found(harness, ConversationFilter(state=ConversationState.WAITING)) == []


async def test_a_preview_has_the_last_message_and_the_people(harness: IngressHarness) -> None:
    """Each conversation shows its own end, at most the start of a long text, and each author once."""
    await harness.send_message("first", address=harness.address("a"))
    await harness.send_message("x" * 500, address=harness.address("a"))
    await harness.send_message("other", address=harness.address("b"))
    ids = [(await harness.get_conversation(room)).id for room in ("a", "b")]
    async with harness.database.read() as connection:
        found = await read_previews(connection, ids)
        assert await read_previews(connection, []) == {}
    long, short = (found[one] for one in ids)
    assert long.last is not None
    assert short.last is not None
    assert long.last.text == "x" * PREVIEW_LENGTH
    assert (short.last.role, short.last.text) == ("user", "other")
    assert len(long.people) == len(short.people) == 1
    assert ConversationState.RUNNING in long.states


async def test_people_of_a_chat_are_shown_by_name(harness: IngressHarness) -> None:
    """The name is that under which a person was first seen; a person without a name is shown by id."""
    nameless = Author(id="4711", name="")
    await harness.send_message("hello", by=ANN)
    await harness.send_message("hello too", by=nameless)
    talk = await harness.get_conversation()
    async with harness.database.read() as connection:
        view = await listing.get(connection, harness.account, talk.id)
        assert view is not None
        previews = await read_named_previews(connection, harness.account, [view])
        names = await read_names_in(connection, talk, [ANN.id, nameless.id, "key_1", ""])
    assert sorted(previews[talk.id].people) == sorted([ANN.id, nameless.id])
    assert previews[talk.id].names == names == {ANN.id: ANN.name}
    said = [one for one in await harness.list_events() if one.type is EventType.MESSAGE_RECEIVED]
    assert [one.data.get("author_name") for one in said] == [ANN.name, None]

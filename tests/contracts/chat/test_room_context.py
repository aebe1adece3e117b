"""What a room said before a message reaches its turn once, within limits, on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from channels.message import Address, Attachment, Author, MessageDeleted, QuotedMessage
from channels.settings import RoomSettings
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from gateway.conversations.message_frame import frame_message
from gateway.conversations.room_context import CUT, MAX_TEXT_BYTES
from gateway.store.accounts.deletion import delete_conversation
from gateway.store.conversations import conversations, messages, room_messages
from gateway.store.conversations.room_messages import MAX_ROWS
from gateway.store.turn_state import QueueMode
from gateway.store.turns import turns
from gateway.store.turns.turns import Turn
from ingress_harness import ANN, BOB, IngressHarness, in_group, open_ingress_harness

CAT = Author(id="9", name="Cat")
MONITOR = Author(id="5", name="Monitor", is_bot=True)
SMALL: dict[str, Any] = {"context_messages": 3}


async def say(harness: IngressHarness, text: str, **more: Any) -> str:
    """Say something in the group that is not for the bot."""
    return await harness.send_message(text, **in_group(**more))


async def ask(harness: IngressHarness, text: str, **more: Any) -> Turn:
    """Ask the bot something in the group and return the turn."""
    await harness.send_message(text, **in_group(mentions_bot=True, **more))
    return (await harness.list_open_turns())[-1]


def earlier(turn: Turn) -> list[str]:
    """Return the texts of the earlier messages that a turn got."""
    return [one["text"] for one in (turn.context or {}).get("earlier", ())]


async def test_what_was_said_between_two_mentions_reaches_the_turn_once(database: Database) -> None:
    """Messages that do not address the bot are the context of the next one that does, and of no other."""
    harness = await open_ingress_harness(database)
    await say(harness, "I want tea", by=BOB)
    await say(harness, "and I coffee", by=CAT)
    first = await ask(harness, "order it")
    await say(harness, "no sugar", by=BOB)
    second = await ask(harness, "anything else")
    third = await ask(harness, "and now")
    assert earlier(first) == ["I want tea", "and I coffee"]
    assert first.context is not None
    assert (first.context["earlier"][0]["name"], first.context["earlier"][0]["id"]) == ("Bob", "8")
    assert earlier(second) == ["no sugar"]
    assert third.context is None
    framed = frame_message(first.id, first.origin, first.input, first.context)
    assert framed.index("I want tea") < framed.index("and I coffee") < framed.index("order it")


async def test_the_quoted_message_reaches_the_turn(database: Database) -> None:
    """A reply brings the message that it replies to, in direct chats too."""
    harness = await open_ingress_harness(database)
    quoted = QuotedMessage(author=BOB, text="the blue one", platform_id="77")
    turn = await ask(harness, "buy this", quoted=quoted)
    await harness.send_message("and this", address=harness.address("direct"), quoted=quoted)
    (direct,) = await harness.list_open_turns("direct")
    for one in (turn, direct):
        assert one.context is not None
        assert one.context["quoted"] == {"name": "Bob", "id": "8", "message": "77", "text": "the blue one"}


async def test_the_files_of_the_quoted_message_reach_the_turn(database: Database) -> None:
    """They follow the message's own files, unless the room has no context. One of another chat has no id."""
    harness = await open_ingress_harness(database)
    own, other = (Attachment(name=f"{one}.pdf", media_type="text/plain", size=1, ref=one) for one in "ab")
    quoted = QuotedMessage(author=BOB, text="", platform_id="77", attachments=(other,))
    turn = await ask(harness, "compare them", attachments=(own,), quoted=quoted)
    off = await ask(harness, "and now", quoted=quoted, context={"context_messages": 0})
    foreign = await ask(harness, "and this", quoted=replace(quoted, author=Author(id=""), platform_id=""))
    async with database.read() as connection:
        found = [await messages.list_attachments(connection, one.id) for one in (turn, off, foreign)]
    assert [[file["ref"] for file in files] for files in found] == [["a", "b"], [], ["b"]]
    assert (turn.context or {})["quoted"]["text"] == "[file: b.pdf]"


async def test_the_files_of_a_thread_reach_its_next_turn_once(database: Database) -> None:
    """Those of the message that opened it, and of later ones; a file of the room is named only."""
    harness = await open_ingress_harness(database)
    a, b, c, d = (Attachment(name=f"{one}.pdf", media_type="text/plain", size=1, ref=one) for one in "abcd")
    thread = harness.address(thread="77")
    quoted = QuotedMessage(author=CAT, text="", platform_id="78", attachments=(c,))
    await say(harness, "in the room", by=BOB, attachments=(a,))
    await say(harness, "", by=BOB, address=thread, platform_id="77", attachments=(b,))
    await say(harness, "and this", by=CAT, address=thread, platform_id="78", attachments=(c,))
    asked: dict[str, Any] = {"mentions_bot": True, "address": thread, "platform_id": "79", "quoted": quoted}
    await harness.send_message("compare", **in_group(**asked, attachments=(d,)))
    await harness.send_message("again", **in_group(mentions_bot=True, address=thread, platform_id="80"))
    last = await ask(harness, "what is in the room")
    found = [*await _open_turns(harness, thread), last]
    async with database.read() as connection:
        files = [await messages.list_attachments(connection, one.id) for one in found]
    given = [[(file["ref"], "earlier" in file) for file in of_turn] for of_turn in files]
    assert given == [[("d", False), ("b", True), ("c", False)], [], []]


@pytest.mark.parametrize(
    "messages", [MAX_ROWS + 20, pytest.param(10_000, marks=pytest.mark.exhaustive)], ids=["some", "10000"]
)
async def test_a_flood_between_two_mentions_is_limited(database: Database, messages: int) -> None:
    """The newest messages within the numbers are used, and no more than `MAX_ROWS` are kept."""
    harness = await open_ingress_harness(database)
    await say(harness, "x" * 10_000)
    for number in range(messages):
        await say(harness, f"message {number}", by=BOB)
    async with database.read() as connection:
        kept = await room_messages.count(connection, harness.address().destination)
    assert kept == MAX_ROWS
    turn = await ask(harness, "well", context=SMALL)
    assert earlier(turn) == [f"message {number}" for number in range(messages - 3, messages)]


async def test_long_texts_are_cut(database: Database) -> None:
    """Single texts and all together have limits in bytes."""
    harness = await open_ingress_harness(database)
    await say(harness, "ä" * 10_000, by=BOB)
    (text,) = earlier(await ask(harness, "one"))
    assert len(text.encode()) <= MAX_TEXT_BYTES
    assert text.endswith(CUT)
    for _ in range(5):
        await say(harness, "y" * 300, by=BOB)
    turn = await ask(harness, "two", context={"context_bytes": 900})
    assert 0 < sum(len(text) for text in earlier(turn)) <= 900


async def test_a_room_can_switch_the_context_off(database: Database) -> None:
    """With 0 messages nothing is kept and nothing quoted; a room's own number comes first."""
    harness = await open_ingress_harness(database)
    off: dict[str, Any] = {"rooms": {"room": RoomSettings(context_messages=0)}}
    await say(harness, "secret", context=off)
    quoted = QuotedMessage(author=BOB, text="hidden", platform_id="1")
    assert (await ask(harness, "well", context=off, quoted=quoted)).context is None
    assert (await ask(harness, "well")).context is None


async def test_unknown_senders_start_no_context(database: Database) -> None:
    """No message is kept of a room without allowed users, and none of bots."""
    harness = await open_ingress_harness(database)
    pairing: dict[str, Any] = {"allow": ("7", "pairing")}
    await say(harness, "hello", by=BOB, context=pairing)
    await say(harness, "beep", by=Author(id="5", name="CI", is_bot=True))
    assert (await ask(harness, "one", context=pairing)).context is None
    await say(harness, "still here", by=BOB, context=pairing)
    assert earlier(await ask(harness, "two", context=pairing)) == ["still here"]


async def test_edits_reach_the_context(database: Database) -> None:
    """A kept message has its new text, and a turn that came after the first text gets the change."""
    harness = await open_ingress_harness(database)
    said = await say(harness, "at nien", by=BOB)
    await say(harness, "at nine", by=BOB, key="e1", platform_id=said, edited=True)
    await say(harness, "never", by=CAT, key="e2", platform_id=said, edited=True)
    assert earlier(await ask(harness, "when?")) == ["at nine"]
    await say(harness, "at ten", by=BOB, key="e3", platform_id=said, edited=True)
    changed = await ask(harness, "and now?")
    assert changed.context is not None
    (edit,) = changed.context["earlier"]
    assert (edit["kind"], edit["message"], edit["text"]) == ("edited", said, "at ten")
    assert "<edited-" in frame_message(changed.id, changed.origin, "and now?", changed.context)


async def test_threads_get_their_own_messages(database: Database) -> None:
    """A thread gets its first message and its replies; a message that opens one gets the room's."""
    harness = await open_ingress_harness(database)
    thread = Address(channel=harness.address().channel, room="room", thread="t1")
    other = Address(channel=harness.address().channel, room="room", thread="t2")
    await say(harness, "the plan", address=thread, platform_id="t1", by=BOB)
    await say(harness, "elsewhere", address=other, platform_id="r9", by=BOB)
    await say(harness, "I agree", address=thread, platform_id="r1", by=CAT)
    await harness.send_message("do it", **in_group(mentions_bot=True, address=thread, platform_id="r2"))
    new = Address(channel=thread.channel, room="room", thread="t3")
    await harness.send_message("sum up", **in_group(mentions_bot=True, address=new, platform_id="t3"))
    found = {one.input: earlier(one) for one in await _open_turns(harness, thread, new)}
    assert found == {"do it": ["the plan", "I agree"], "sum up": ["the plan"]}


async def test_a_thread_below_another_bot_gets_its_message(database: Database) -> None:
    """The turn gets its text as last changed and its files, once; the room and other threads get nothing."""
    harness = await open_ingress_harness(database)
    file = Attachment(name="graph.png", media_type="image/png", size=1, ref="g")
    alert: dict[str, Any] = {"by": MONITOR, "platform_id": "77", "context": {"groups": "always"}}
    await say(harness, "disk filling", **alert, attachments=(file,))
    await say(harness, "disk full", **alert, key="edit", edited=True)
    await say(harness, "in a thread", by=MONITOR, address=harness.address(thread="77"))
    assert (await ask(harness, "what is new here")).context is None
    await harness.send_message("look", **in_group(mentions_bot=True, address=harness.address(thread="77")))
    await harness.send_message("again", **in_group(mentions_bot=True, address=harness.address(thread="77")))
    first, again = await _open_turns(harness, harness.address(thread="77"))
    async with database.read() as connection:
        files = await messages.list_attachments(connection, first.id)
    (alert_shown,) = (first.context or {})["earlier"]
    assert (alert_shown["bot"], alert_shown["id"], alert_shown["text"]) == ("true", "5", "disk full")
    assert ([one["ref"] for one in files], again.context) == (["g"], None)


async def test_messages_of_bots_displace_none_of_people(database: Database) -> None:
    """A room keeps as many messages of bots as of people, and each kind takes the place of its own."""
    harness = await open_ingress_harness(database)
    await say(harness, "keep this", by=BOB)
    for number in range(MAX_ROWS + 2):
        await say(harness, f"alert {number}", by=MONITOR)
    async with database.read() as connection:
        assert await room_messages.count(connection, harness.address().destination) == MAX_ROWS + 1
    assert earlier(await ask(harness, "well")) == ["keep this"]


async def test_messages_of_other_bots_need_a_person_in_the_room(database: Database) -> None:
    """They are kept once the room is known to have a person who may use the bot."""
    harness = await open_ingress_harness(database)
    pairing: dict[str, Any] = {"allow": ("7", "pairing")}
    thread = harness.address(thread="77")
    await say(harness, "early", by=MONITOR, platform_id="77", context=pairing)
    await say(harness, "hello", by=ANN, context=pairing)
    await say(harness, "late", by=MONITOR, platform_id="78", context=pairing)
    for one in (thread, harness.address(thread="78")):
        await harness.send_message("look", **in_group(mentions_bot=True, address=one))
    found = await _open_turns(harness, thread, harness.address(thread="78"))
    assert [earlier(one) for one in found] == [[], ["late"]]


async def test_what_a_thread_is_about_reaches_its_first_turn(database: Database) -> None:
    """However much was said since; once, in place of what was kept, and again in a new conversation."""
    harness = await open_ingress_harness(database)
    thread = harness.address(thread="12")
    root = QuotedMessage(author=MONITOR, text="The loft is full", platform_id="issue/12")
    below: dict[str, Any] = {"address": thread, "root": root}
    await say(harness, "The loft", by=BOB, address=thread, platform_id="issue/12")
    for number in range(4):
        await say(harness, f"+{number}", by=BOB, **below)
    for _ in range(2):
        await harness.send_message("look", **in_group(mentions_bot=True, **below), context=SMALL)
    first, second = await _open_turns(harness, thread)
    assert (earlier(first), second.context) == (["The loft is full", "+1", "+2", "+3"], None)
    assert (first.context or {})["earlier"][0] == {
        "kind": "root",
        "name": "Monitor",
        "id": "5",
        "bot": "true",
        "message": "issue/12",
        "text": "The loft is full",
    }
    framed = frame_message(first.id, first.origin, first.input, first.context)
    assert framed.index("<root-") < framed.index("<earlier-") < framed.index("<message-")
    await harness.send_command("new", address=thread)
    await harness.send_message("look", **in_group(mentions_bot=True, **below))
    assert earlier((await _open_turns(harness, thread))[0]) == ["The loft is full"]


async def test_another_bots_report_below_a_root_reaches_the_next_turn(database: Database) -> None:
    """Where all is said in threads, such as on GitHub, people refer to what bots said there."""
    harness = await open_ingress_harness(database)
    root = QuotedMessage(author=ANN, text="Enlarge the loft", platform_id="issue/12")
    below: dict[str, Any] = {"address": harness.address(thread="12"), "root": root}
    await say(harness, "hello", by=BOB, **below)
    await say(harness, "3 tests failed", by=MONITOR, **below)
    await harness.send_message("mend them", **in_group(mentions_bot=True, **below))
    (turn,) = await _open_turns(harness, below["address"])
    assert earlier(turn) == ["Enlarge the loft", "hello", "3 tests failed"]


async def test_a_conversation_that_began_with_the_root_does_not_get_it_again(database: Database) -> None:
    """The first turn answered it, or the room has no context."""
    harness = await open_ingress_harness(database)
    thread, other = harness.address(thread="12"), harness.address(thread="13")
    roots = [QuotedMessage(author=ANN, text="full", platform_id=f"issue/{one}") for one in (12, 13)]
    opened: dict[str, Any] = {"address": thread, "platform_id": "issue/12", "mentions_bot": True}
    await harness.send_message("full", **in_group(**opened))
    await harness.send_message("and", **in_group(mentions_bot=True, address=thread, root=roots[0]))
    off: dict[str, Any] = {"context": {"context_messages": 0}}
    await harness.send_message("hm", **in_group(mentions_bot=True, address=other, root=roots[1]), **off)
    assert [one.context for one in await _open_turns(harness, thread, other)] == [None, None, None]


async def test_a_thread_gets_what_was_said_in_threads_inside_of_it(database: Database) -> None:
    """So does a message that begins such a thread; a later one there gets what its own thread said."""
    harness = await open_ingress_harness(database)
    whole, inner, other, next_one = (harness.address(thread=one) for one in ("7", "7/1", "7/2", "77/1"))
    for number, place in enumerate((whole, inner, other, next_one)):
        await say(harness, f"said {number}", by=BOB, address=place)
    asked: dict[str, Any] = in_group(mentions_bot=True)
    await harness.send_message("in the whole", **asked, address=whole)
    await harness.send_message("begins", **asked, address=harness.address(thread="7/3"), above="7")
    await harness.send_message("below", **asked, address=inner)
    found = await _open_turns(harness, whole, harness.address(thread="7/3"), inner)
    everything = ["said 0", "said 1", "said 2"]
    assert [earlier(one) for one in found] == [everything, everything, ["said 1"]]
    await harness.send_command("new", address=whole)
    await harness.send_message("again", **asked, address=whole)
    assert earlier((await _open_turns(harness, whole))[0]) == []


async def test_merged_messages_have_both_contexts(database: Database) -> None:
    """A message that joins a waiting turn adds what was said between the two."""
    harness = await open_ingress_harness(database)
    await harness.send_command("queue", QueueMode.COLLECT)
    await ask(harness, "working")
    await say(harness, "first", by=BOB)
    await ask(harness, "a")
    await say(harness, "second", by=BOB)
    turn = await ask(harness, "b")
    assert turn.input == "a\n\nb"
    assert earlier(turn) == ["first", "second"]


async def test_new_conversations_and_deletions_forget_the_room(database: Database) -> None:
    """`/new` and the deletion of a conversation delete what is kept of their thread and room."""
    harness = await open_ingress_harness(database)
    await ask(harness, "one")
    await say(harness, "old", by=BOB)
    await harness.send_command("new")
    fresh = await ask(harness, "two")
    assert fresh.context is None
    await say(harness, "more", by=ANN)
    async with database.begin() as connection:
        await delete_conversation(connection, harness.account, fresh.conversation)
        assert not await room_messages.is_known(connection, harness.address().destination)


async def test_old_messages_are_deleted(database: Database) -> None:
    """The retention task deletes messages by their age."""
    harness = await open_ingress_harness(database)
    await say(harness, "old", by=BOB)
    async with database.begin() as connection:
        assert await room_messages.delete_before(connection, before=utc_now() - timedelta(hours=1)) == 0
        assert await room_messages.delete_before(connection, before=utc_now() + timedelta(hours=1)) == 1


async def _open_turns(harness: IngressHarness, *addresses: Address) -> list[Turn]:
    found: list[Turn] = []
    async with harness.database.read() as connection:
        for address in addresses:
            conversation = await conversations.get_by_address(connection, harness.account, address.key)
            assert conversation is not None
            found += await turns.list_open(connection, conversation.id)
    return found


async def delete(harness: IngressHarness, message: str) -> None:
    """Delete a message in the room."""
    await harness.receive(MessageDeleted(key=f"d{message}", address=harness.address(), platform_id=message))


async def test_deleted_messages_leave_the_context(database: Database) -> None:
    """A kept message is forgotten, and the next turn after one that had it reports the deletion."""
    harness = await open_ingress_harness(database)
    gone = await say(harness, "a secret", by=BOB)
    kept = await say(harness, "no secret", by=BOB)
    await delete(harness, gone)
    assert earlier(await ask(harness, "one")) == ["no secret"]
    await delete(harness, kept)
    turn = await ask(harness, "two")
    assert turn.context is not None
    (deleted,) = turn.context["earlier"]
    assert (deleted["kind"], deleted["message"], deleted["id"], deleted["text"]) == ("deleted", kept, "8", "")


async def test_a_deleted_message_is_not_answered_or_is_known_as_deleted(database: Database) -> None:
    """A waiting turn is cancelled or loses the message; the turn after a started one reports the deletion."""
    harness = await open_ingress_harness(database)
    await harness.send_command("queue", QueueMode.COLLECT)
    first = await harness.send_message("first", **in_group(mentions_bot=True))
    await harness.start_first_turn()
    second = await harness.send_message("second", **in_group(mentions_bot=True))
    third = await harness.send_message("third", **in_group(mentions_bot=True))
    await delete(harness, second)
    assert [turn.input for turn in await harness.list_open_turns()] == ["first", "third"]
    await delete(harness, third)
    await delete(harness, first)
    _running, waiting = await harness.list_open_turns()
    assert waiting.cancel
    last = await ask(harness, "fourth")
    assert last.context is not None
    assert [(one["kind"], one["message"]) for one in last.context["earlier"]] == [("deleted", first)]
    deleted = [event.data for event in await harness.list_events() if event.data.get("deleted")]
    assert [data["text"] for data in deleted] == ["", "", ""]

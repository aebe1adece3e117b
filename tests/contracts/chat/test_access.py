"""M9: every kind of update passes one admission check, which identifies users by immutable ids alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy import update as sql_update
from structlog.testing import capture_logs

from channels.message import (
    Address,
    Author,
    ButtonPress,
    Command,
    Message,
    Reaction,
    RoomKind,
    RoomMigrated,
    RoomReopened,
    RoomsRenamed,
    Update,
)
from delivery.database.clock import utc_now
from delivery.database.engine import Database
from delivery.database.tables import deliveries, routes
from delivery.deliveries.destinations import get_state, mark_dead
from gateway.ingress.access import AdmissionResult, authorize, pairing_subject
from gateway.memory.visibility import chat_room_key
from gateway.store.accounts import records
from gateway.store.conversations import pairings
from gateway.store.conversations.memories import Memory, MemoryScope, insert_memory
from gateway.store.tables import conversations
from ingress_harness import IngressHarness, open_ingress_harness

NOW = datetime(2026, 1, 2, tzinfo=UTC)
PERSON, OWN = "7", "4242"

ADMITTED, UNKNOWN_SENDER, IGNORED = (
    AdmissionResult.ADMITTED,
    AdmissionResult.UNKNOWN_SENDER,
    AdmissionResult.IGNORED,
)


def updates(address: Address, author: Author, room: RoomKind) -> list[Update]:
    """Return one update of every kind that a person can cause."""
    return [
        Message(key="1", address=address, author=author, text="hi", sent_at=NOW, room=room),
        Message(key="2", address=address, author=author, text="hi", sent_at=NOW, room=room, edited=True),
        Command(key="3", address=address, author=author, name="stop", rest="", sent_at=NOW, room=room),
        ButtonPress(key="4", address=address, author=author, data="approve:apr_1", token="t", room=room),
        Reaction(key="5", address=address, author=author, emoji="👍", added=True, platform_id="1", room=room),
    ]


CASES = [
    ("a listed id", ("7",), PERSON, RoomKind.DIRECT, ADMITTED),
    ("a listed id in a group", ("7",), PERSON, RoomKind.GROUP, ADMITTED),
    ("anyone", ("*",), PERSON, RoomKind.GROUP, ADMITTED),
    ("an id that only looks alike", ("77", "Ann"), PERSON, RoomKind.DIRECT, IGNORED),
    ("who was paired here", ("pairing",), PERSON, RoomKind.DIRECT, ADMITTED),
    ("who was paired privately, in a group", ("pairing",), PERSON, RoomKind.GROUP, UNKNOWN_SENDER),
    ("a stranger", ("pairing",), "9", RoomKind.DIRECT, UNKNOWN_SENDER),
    ("a stranger where nobody pairs", ("7",), "9", RoomKind.DIRECT, IGNORED),
    ("somebody without an id", ("*",), "", RoomKind.DIRECT, IGNORED),
    ("ourselves", ("*",), OWN, RoomKind.GROUP, IGNORED),
    ("ourselves, listed", (OWN,), OWN, RoomKind.DIRECT, IGNORED),
]


@pytest.fixture
async def harness(database: Database) -> IngressHarness:
    """An update handler whose channel admits one user, in private."""
    harness = await open_ingress_harness(database)
    async with database.begin() as connection:
        code, _new = await pairings.issue_code(connection, harness.address("room"), PERSON, name="Ann")
        await pairings.pair(connection, harness.channel_context.record.id, code)
    return harness


async def test_every_kind_of_update_is_judged_alike(harness: IngressHarness) -> None:
    """A user who may write may edit, command, press and react, and no other may; bots never."""
    wrong = []
    async with harness.database.read() as connection:
        for what, allow, person, room, expected in CASES:
            context = replace(harness.channel_context, allow=allow, bot_user_id=OWN)
            for is_bot in (False, True):
                author = Author(id=person, name="7", is_bot=is_bot)
                for update in updates(harness.address("room"), author, room):
                    said = await authorize(connection, update, context)
                    if said is not (IGNORED if is_bot else expected):
                        wrong.append((what, type(update).__name__, is_bot, said))
    assert wrong == []


@pytest.mark.parametrize("extras", [{"team": "T1"}, {"team": "T1", "enterprise": "E1"}])
async def test_a_person_of_another_slack_workspace_is_another_one(
    harness: IngressHarness, extras: dict[str, str]
) -> None:
    """Slack's ids are unique in a workspace or organisation; a pairing and a list may name it."""
    own = replace(harness.address("room"), extras=extras)
    other = replace(harness.address("room"), extras={"team": "T2"})
    subject = pairing_subject(Author(id="8"), RoomKind.DIRECT, own)
    async with harness.database.begin() as connection:
        code, _new = await pairings.issue_code(connection, own, subject, name="Bo")
        await pairings.pair(connection, harness.channel_context.record.id, code)
        for allow, person in ((("pairing",), "8"), (("T1:9", "pairing"), "9")):
            context, author = replace(harness.channel_context, allow=allow), Author(id=person)
            admitted = {
                address.extras["team"]: {
                    await authorize(connection, update, context)
                    for update in updates(address, author, RoomKind.DIRECT)
                }
                for address in (own, other)
            }
            assert admitted == {"T1": {ADMITTED}, "T2": {UNKNOWN_SENDER}}


async def test_a_pairing_from_before_workspaces_were_noted_stays(harness: IngressHarness) -> None:
    """It names the person alone."""
    address = replace(harness.address("room"), extras={"team": "T1"})
    context = replace(harness.channel_context, allow=("pairing",))
    async with harness.database.read() as connection:
        for update in updates(address, Author(id=PERSON), RoomKind.DIRECT):
            assert await authorize(connection, update, context) is ADMITTED


async def test_what_is_reported_of_a_room_needs_no_user(harness: IngressHarness) -> None:
    """The platform itself reports it: there is no user to check."""
    moved = RoomMigrated(key="6", old=harness.address("room"), new=harness.address("new"))
    opened = RoomReopened(key="7", address=harness.address("room"))
    async with harness.database.read() as connection:
        for update in (moved, opened):
            assert await authorize(connection, update, replace(harness.channel_context, allow=())) is ADMITTED


async def test_a_room_that_is_reported_as_open_again_is_so_each_time(harness: IngressHarness) -> None:
    """Discord numbers its events from 1 in each session, so that a later report can have an earlier key."""
    address, account = harness.address("room"), harness.channel_context.record.account
    for _ in range(2):
        async with harness.database.begin() as connection:
            await mark_dead(connection, address.destination, account=account, why="it is locked")
        await harness.receive(RoomReopened(key="bot:room:changed:5", address=address))
        async with harness.database.read() as connection:
            assert (await get_state(connection, address.destination)).dead_reason is None


@pytest.mark.parametrize("author", [Author(id="9"), Author(id="7", is_bot=True)])
async def test_who_is_not_let_in_changes_nothing(harness: IngressHarness, author: Author) -> None:
    """Updates of unknown senders and bots open no conversation and queue nothing."""
    for update in updates(harness.address("room"), author, RoomKind.DIRECT):
        await harness.receive(update, allow=("7",))
    assert await harness.list_events() == []
    assert await harness.list_open_turns() == []
    assert await harness.list_delivery_bodies() == []


async def test_a_room_moves_with_its_threads(harness: IngressHarness) -> None:
    """A renamed repository has a conversation for each issue; what waits is sent to the new name."""
    old = [harness.address("octo/loft", thread) for thread in ("1", "2")]
    other = harness.address("octo/loft-2", "1")
    for address in (*old, other):
        await harness.send_message("hello", address=address)
        await harness.send_command("status", address=address, token="")
    before = await list_conversations(harness)
    await harness.send_message("already renamed", address=harness.address("octo/nest", "2"))
    moved = RoomMigrated(key="9", old=harness.address("octo/loft"), new=harness.address("octo/nest"))
    await harness.receive(moved)
    after = await list_conversations(harness)
    new = [harness.address("octo/nest", thread) for thread in ("1", "2")]
    assert after[new[0].key] == before[old[0].key]
    assert after[new[1].key] not in before.values()
    assert {old[0].key, old[1].key}.isdisjoint(after)
    assert after[other.key] == before[other.key]
    async with harness.database.read() as connection:
        targets = set((await connection.execute(select(deliveries.c.target))).scalars())
        routed = set((await connection.execute(select(routes.c.target))).scalars())
    assert targets == routed == {address.encode() for address in (*new, other)}


async def test_the_rooms_of_a_renamed_owner_move_together(harness: IngressHarness) -> None:
    """Each repository of the owner, its settings too; one of another owner stays."""
    channel = harness.channel_context.record
    rooms = {"octo/loft": {"groups": "always"}, "octopus/loft": {}}
    config = {**channel.config, "settings": {**channel.config["settings"], "rooms": rooms}}
    async with harness.database.begin() as connection:
        await records.update_record(connection, replace(channel, config=config))
    old = [harness.address(room, "1") for room in ("octo/loft", "octo/nest", "octopus/loft")]
    for address in old:
        await harness.send_message("hello", address=address)
    before = await list_conversations(harness)
    await harness.receive(RoomsRenamed(key="9", channel=channel.id, old="octo/", new="hexa/"))
    after = await list_conversations(harness)
    new = [harness.address(room, "1") for room in ("hexa/loft", "hexa/nest", "octopus/loft")]
    assert [after.get(address.key) for address in new] == [before[address.key] for address in old]
    async with harness.database.read() as connection:
        stored = await records.get_by_id(connection, channel.id)
    assert stored is not None
    assert set(stored.config["settings"]["rooms"]) == {"hexa/loft", "octopus/loft"}


async def test_a_thread_moves_alone(harness: IngressHarness) -> None:
    """A transferred issue has another repository and number; what waits for it follows, and nothing else."""
    old, stays = (harness.address("octo/loft", thread) for thread in ("1", "12"))
    for address in (old, stays):
        await harness.send_message("hello", address=address)
        await harness.send_command("status", address=address, token="")
    before = await list_conversations(harness)
    new = harness.address("octo/nest", "7")
    await harness.receive(RoomMigrated(key="9", old=old, new=new, keeps_messages=False))
    after = await list_conversations(harness)
    assert after == {new.key: before[old.key], stays.key: before[stays.key]}
    async with harness.database.read() as connection:
        targets = set((await connection.execute(select(deliveries.c.target))).scalars())
    assert targets == {new.encode(), stays.encode()}


async def test_a_room_moves_with_its_notes_and_its_people(harness: IngressHarness) -> None:
    """`/memory` lists the notes of a group under its new id, and who is paired there stays so."""
    old, new = harness.address("-100"), harness.address("-100200")
    member, other_room = pairing_of("8", old), pairing_of("8", harness.address("1-100"))
    await harness.send_message("hello", address=old)
    async with harness.database.begin() as connection:
        for paired in (member, other_room):
            code, _new = await pairings.issue_code(connection, old, paired, name="Bo")
            await pairings.pair(connection, harness.channel_context.record.id, code)
        await pairings.issue_code(connection, new, pairing_of("8", new), name="Bo")
        await insert_memory(connection, room_note(harness, old), "peas")
    await harness.receive(RoomMigrated(key="9", old=old, new=new))
    await harness.send_command("memory", address=new, token="")
    assert any("the doves eat peas" in body for body in await harness.list_delivery_bodies())
    record = harness.channel_context.record.id
    async with harness.database.read() as connection:
        assert await pairings.is_paired(connection, record, pairing_of("8", new))
        assert not await pairings.is_paired(connection, record, member)
        assert await pairings.is_paired(connection, record, other_room)


async def test_a_number_of_a_group_that_moved_names_another_message(harness: IngressHarness) -> None:
    """A supergroup gives its messages new numbers, so an edit there changes no message of the old group."""
    group: dict[str, Any] = {"room": RoomKind.GROUP}
    await harness.send_message("clean up", platform_id="5", mentions_bot=True, **group)
    await harness.send_message("for people", platform_id="6", **group)
    moved = harness.address("moved")
    await harness.receive(RoomMigrated(key="9", old=harness.address(), new=moved, keeps_messages=False))
    for number in ("5", "6"):
        await harness.send_message("lunch?", address=moved, platform_id=number, edited=True, **group)
    (turn,) = await harness.list_open_turns("moved")
    assert turn.input == "clean up"
    await harness.send_message("what is it", address=moved, mentions_bot=True, **group)
    (*_, last) = await harness.list_open_turns("moved")
    assert [one["text"] for one in (last.context or {})["earlier"]] == ["for people"]


@pytest.mark.parametrize(("managed", "room"), [(False, "-100200"), (True, "-100")])
async def test_a_room_moves_with_its_settings(harness: IngressHarness, managed: bool, room: str) -> None:
    """They get the new id, unless the configuration file declares the channel; the log names it then."""
    channel = harness.channel_context.record
    settings = {**channel.config["settings"], "rooms": {"-100": {"groups": "always"}, "-200": {}}}
    config = {**channel.config, "settings": settings}
    async with harness.database.begin() as connection:
        await records.update_record(connection, replace(channel, config=config, managed=managed))
    moved = RoomMigrated(key="9", old=harness.address("-100"), new=harness.address("-100200"))
    with capture_logs() as logs:
        await harness.receive(moved)
    async with harness.database.read() as connection:
        stored = await records.get_by_id(connection, channel.id)
    assert stored is not None
    assert stored.config["settings"]["rooms"] == {room: {"groups": "always"}, "-200": {}}
    assert any(line["event"] == "ingress.room_settings_outdated" for line in logs) is managed


@pytest.mark.parametrize(("state", "is_due"), [("retrying", True), ("parked", False)])
async def test_a_message_ends_the_waits_of_its_room(
    harness: IngressHarness, state: str, is_due: bool
) -> None:
    """What waits for a permission is tried at once; what is parked holds nothing up, and keeps its time."""
    await harness.send_command("status", token="")
    later = utc_now() + timedelta(minutes=15)
    async with harness.database.begin() as connection:
        await connection.execute(sql_update(deliveries).values(state=state, next_at=later))
    await harness.send_message("hello", address=harness.address("other"))
    assert (await next_attempts(harness))[0] == later
    await harness.send_message("hello")
    assert ((await next_attempts(harness))[0] <= utc_now()) is is_due


async def next_attempts(harness: IngressHarness) -> list[datetime]:
    """Return when the deliveries are due."""
    async with harness.database.read() as connection:
        return list((await connection.execute(select(deliveries.c.next_at))).scalars())


def pairing_of(person: str, room: Address) -> str:
    """Return the subject of a person's pairing in a room."""
    return pairing_subject(Author(id=person), RoomKind.GROUP, room)


def room_note(harness: IngressHarness, room: Address) -> Memory:
    """Return a note about a room."""
    return Memory(
        id="mem_1",
        account=harness.channel_context.record.account,
        scope=MemoryScope.ROOM,
        subject=chat_room_key(room),
        text="the doves eat peas",
        created_by="7",
        created_at=NOW,
        updated_at=NOW,
    )


async def list_conversations(harness: IngressHarness) -> dict[str, str]:
    """Return the open conversations by their addresses."""
    async with harness.database.read() as connection:
        rows = await connection.execute(select(conversations.c.address_key, conversations.c.id))
    return {key: number for key, number in rows if key is not None}

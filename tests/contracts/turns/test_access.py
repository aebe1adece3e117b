"""M9: every kind of update passes one gate, which knows people by their immutable ids alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from channels.message import Address, Author, Command, Message, Moved, Press, Reaction, Room, Update
from delivery.database.engine import Database
from gateway.ingress.access import Admission, authorize
from gateway.store.conversations import pairings
from ingress_harness import Stage, open_stage

NOW = datetime(2026, 1, 2, tzinfo=UTC)
PERSON, OWN = "7", "4242"

LET_IN, STRANGER, IGNORED = Admission.ADMITTED, Admission.STRANGER, Admission.IGNORED


def updates(address: Address, author: Author, room: Room) -> list[Update]:
    """Return one update of every kind that a person can cause."""
    return [
        Message(key="1", address=address, author=author, text="hi", sent_at=NOW, room=room),
        Message(key="2", address=address, author=author, text="hi", sent_at=NOW, room=room, edited=True),
        Command(key="3", address=address, author=author, name="stop", rest="", sent_at=NOW, room=room),
        Press(key="4", address=address, author=author, data="approve:apr_1", token="t", room=room),
        Reaction(key="5", address=address, author=author, emoji="👍", added=True, platform_id="1", room=room),
    ]


CASES = [
    ("a listed id", ("7",), PERSON, Room.DIRECT, LET_IN),
    ("a listed id in a group", ("7",), PERSON, Room.GROUP, LET_IN),
    ("anyone", ("*",), PERSON, Room.GROUP, LET_IN),
    ("an id that only looks alike", ("77", "Ann"), PERSON, Room.DIRECT, IGNORED),
    ("who was paired here", ("pairing",), PERSON, Room.DIRECT, LET_IN),
    ("who was paired privately, in a group", ("pairing",), PERSON, Room.GROUP, STRANGER),
    ("a stranger", ("pairing",), "9", Room.DIRECT, STRANGER),
    ("a stranger where nobody pairs", ("7",), "9", Room.DIRECT, IGNORED),
    ("somebody without an id", ("*",), "", Room.DIRECT, IGNORED),
    ("ourselves", ("*",), OWN, Room.GROUP, IGNORED),
    ("ourselves, listed", (OWN,), OWN, Room.DIRECT, IGNORED),
]


@pytest.fixture
async def stage(database: Database) -> Stage:
    """A reception whose channel has let one person in, in private."""
    stage = await open_stage(database)
    async with database.begin() as connection:
        code, _new = await pairings.offer_code(connection, stage.address("room"), PERSON, name="Ann")
        await pairings.pair(connection, stage.desk.record.id, code)
    return stage


async def test_every_kind_of_update_is_judged_alike(stage: Stage) -> None:
    """Who may speak may edit, command, press and react, and nobody else may; bots never, nor ourselves."""
    wrong = []
    async with stage.database.read() as connection:
        for what, allow, person, room, expected in CASES:
            desk = replace(stage.desk, allow=allow, own=OWN)
            for is_bot in (False, True):
                author = Author(id=person, name="7", is_bot=is_bot)
                for update in updates(stage.address("room"), author, room):
                    said = await authorize(connection, update, desk)
                    if said is not (IGNORED if is_bot else expected):
                        wrong.append((what, type(update).__name__, is_bot, said))
    assert wrong == []


async def test_that_a_room_moved_is_nobodys_word(stage: Stage) -> None:
    """The platform says so itself: there is no person to judge."""
    moved = Moved(key="6", old=stage.address("room"), new=stage.address("new"))
    async with stage.database.read() as connection:
        assert await authorize(connection, moved, replace(stage.desk, allow=())) is LET_IN


@pytest.mark.parametrize("author", [Author(id="9"), Author(id="7", is_bot=True)])
async def test_who_is_not_let_in_changes_nothing(stage: Stage, author: Author) -> None:
    """A stranger's or a bot's updates of every kind open no conversation and queue nothing."""
    for update in updates(stage.address("room"), author, Room.DIRECT):
        await stage.bring(update, allow=("7",))
    assert await stage.told() == []
    assert await stage.line() == []
    assert await stage.owed() == []

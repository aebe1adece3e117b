"""GitHub: repositories, owners and threads that move, and the comments of reviews."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channels.errors import ThreadUndeliverable
from channels.github import plugin
from channels.github.simulator import Simulator, events, simulate
from channels.github.simulator.world import ROOM
from channels.message import Address, Message, RoomMigrated, RoomsRenamed
from channels.port import Connection, WebhookRequest
from channels.testing.connections import CHANNEL, UpdateRecorder, open_connection, receiving
from channels.testing.sending import make_reply

ISSUE = Address(channel=CHANNEL, room=ROOM, thread="1")


@pytest.fixture
async def platform() -> AsyncIterator[Simulator]:
    """Run a simulated GitHub."""
    async with simulate() as simulator:
        yield simulator


@pytest.fixture
async def app(platform: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that polls."""
    async with open_connection(plugin, platform.settings()) as connection:
        yield connection


async def test_a_renamed_repository_keeps_its_conversations(platform: Simulator, app: Connection) -> None:
    """The event moves the room, and an address with the old name still works."""
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await platform.rename("attic")
        (update,) = await recorder.wait(1)
    assert isinstance(update, RoomMigrated)
    assert (update.old.room, update.new.room) == (ROOM, "octo/attic")
    await app.sender.send(ISSUE, make_reply("still here"))
    assert [one.text for one in platform.messages()] == ["still here"]


async def test_a_renamed_owner_keeps_its_conversations(platform: Simulator, app: Connection) -> None:
    """All repositories of an account move when its login changes; the old names still work."""
    recorder = UpdateRecorder()
    async with receiving(app, recorder):
        await platform.rename_owner("hexa")
        (update,) = await recorder.wait(1)
    assert isinstance(update, RoomsRenamed)
    assert (update.old, update.new, update.channel) == ("octo/", "hexa/", CHANNEL)
    await app.sender.send(ISSUE, make_reply("still here"))
    assert [one.text for one in platform.messages()] == ["still here"]


@pytest.mark.parametrize(("number", "prefix"), [(1, ""), (3, "discussions/")])
async def test_a_transferred_thread_moves_alone(
    platform: Simulator, app: Connection, number: int, prefix: str
) -> None:
    """Its conversation goes on in the other repository, under the number that it has there."""
    recorder, thread = UpdateRecorder(), platform.world.thread(number)
    async with receiving(app, recorder):
        await platform.transfer(number, "octo/nest", 7)
        (update,) = await recorder.wait(1)
    assert isinstance(update, RoomMigrated)
    assert (update.old.room, update.old.thread) == (ROOM, f"{prefix}{number}")
    assert (update.new.room, update.new.thread) == ("octo/nest", f"{prefix}7")
    assert thread is not None
    extras = {"discussion": f"{thread.node_id}_NEW"} if prefix else {}
    assert (update.new.extras, update.keeps_messages) == (extras, False)


@pytest.mark.parametrize("kind", ["issue_comment", "discussion_comment"])
async def test_what_is_for_a_deleted_thread_is_refused_with_it(
    platform: Simulator, app: Connection, kind: str
) -> None:
    """GitHub says that it was deleted, so its answers are no dead letters; those of a wrong number are."""
    recorder, number = UpdateRecorder(), 1 if kind == "issue_comment" else 3
    async with receiving(app, recorder):
        await platform.comment(kind, number, "@dovecote hello")
        (question,) = await recorder.wait(1)
        await platform.delete(number)
    assert isinstance(question, Message)
    place = plugin.limits.public_place(question.address) or question.address
    for address in {question.address.key: question.address, place.key: place}.values():
        with pytest.raises(ThreadUndeliverable):
            await app.sender.send(address, make_reply("too late"))


@pytest.mark.parametrize("mode", ["webhook", "polling"])
async def test_a_summary_brings_the_comments_of_its_review(platform: Simulator, mode: str) -> None:
    """GitHub sends them in events of their own; those have no summary, and the place of each is named."""
    recorder = UpdateRecorder()
    settings = platform.settings(mode=mode, webhook_secret=platform.secret, groups="mention")
    async with open_connection(plugin, settings) as app, receiving(app, recorder):
        await recorder.wait_until_receiving()
        await platform.review(2, "@dovecote fix these", "Use a name.", "Too long.")
        for one in platform.api.deliveries if mode == "webhook" else ():
            body = events.encode(one.payload)
            headers = events.headers_of(platform.secret, one.event, one.guid, body)
            answer = await app.receiver.receive(WebhookRequest(headers=headers, body=body), recorder.accept)
            assert answer.status == 200
        summary, *_ = await recorder.wait(3)
    assert isinstance(summary, Message)
    code = "Code: loft.py\n@@ -1,2 +1,3 @@\n import dove\n \n+loft = dove.Loft(size=12)"
    assert summary.text == f"fix these\n\n{code}\nUse a name.\n\n{code}\nToo long."


async def test_a_summary_whose_comments_cannot_be_read_says_so(platform: Simulator, app: Connection) -> None:
    """It is received without them, and one that is not for the bot costs no call."""
    recorder = UpdateRecorder()
    mention = platform.settings(groups="mention")
    async with open_connection(plugin, mention) as other, receiving(other, recorder):
        calls = platform.counts["other"]
        await platform.review(2, "Not you.")
        await recorder.wait(1)
        assert platform.counts["other"] == calls
        platform.fail("other", 502, {"message": "Server Error"})
        await platform.review(2, "@dovecote fix these", "Use a name.")
        _, summary, *_ = await recorder.wait(3)
    assert isinstance(summary, Message)
    assert summary.text == "fix these\n\n[the comments on lines of this review could not be read]"

"""Forum posts: the title is part of the question, and only posts hold messages; boosted servers take more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from channels.discord import plugin
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.discord.simulator.world import MEDIA
from channels.errors import Rejected, ThreadUndeliverable
from channels.message import Address, File, Message, Reply
from channels.testing.connections import UpdateRecorder, open_connection, receiving

FORUM, ROOM, GUILD = 5005, 4004, 900_000_000_000_000_001
TITLE = "How do I feed a pigeon?"
MIB = 1024 * 1024
PLACE = Address(channel="chn_contract", room=str(ROOM), extras={"guild": str(GUILD)})


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with a media channel and a text channel."""
    async with simulate() as simulator:
        await simulator.server_channel(ROOM)
        await simulator.server_channel(FORUM, kind=MEDIA)
        yield simulator


@pytest.mark.parametrize(
    ("text", "read"), [("<@{bot}>", TITLE), ("<@{bot}> With what?", f"{TITLE}\n\nWith what?")]
)
async def test_the_title_of_a_post_is_part_of_its_first_message(
    simulator: Simulator, text: str, read: str
) -> None:
    """People ask in the title; later messages of the post, and threads elsewhere, have none."""
    recorder, bot = UpdateRecorder(), simulator.world.bot["id"]
    async with (
        open_connection(plugin, simulator.settings()) as connection,
        receiving(connection, recorder),
    ):
        post = await simulator.forum_post(FORUM, text.format(bot=bot), title=TITLE)
        await simulator.say(post, f"<@{bot}> and now?")
        thread = await simulator.thread(ROOM, title="pigeons")
        await simulator.say(thread, "in a thread")
        await recorder.wait(3)
    messages = [one for one in recorder.updates if isinstance(one, Message)]
    assert [one.text for one in messages] == [read, "and now?", "in a thread"]
    assert messages[0].mentions_bot
    assert (messages[0].address.room, messages[0].address.thread) == (str(FORUM), str(post))


async def test_a_forum_itself_holds_no_messages(simulator: Simulator) -> None:
    """A message needs a title there, so it is undeliverable; the posts of the forum get theirs."""
    async with open_connection(plugin, simulator.settings()) as connection:
        with pytest.raises(ThreadUndeliverable):
            await connection.sender.send(replace(PLACE, room=str(FORUM)), Reply(text="hello", key="1"))


@pytest.mark.parametrize(("tier", "accepted"), [(0, 10), (1, 10), (2, 50), (3, 100)])
async def test_a_boosted_server_accepts_larger_files(simulator: Simulator, tier: int, accepted: int) -> None:
    """A larger file is refused before it is sent, with both sizes."""
    simulator.world.guilds[str(GUILD)]["premium_tier"] = tier
    content = bytes(accepted * MIB)
    larger = File(name="b", media_type="x/y", content=content + b"x")
    async with open_connection(plugin, simulator.settings()) as connection:
        await connection.sender.upload(PLACE, File(name="a", media_type="x/y", content=content), key="1")
        with pytest.raises(Rejected, match=f"at most {accepted * MIB / 1_000_000:.3g} MB"):
            await connection.sender.upload(PLACE, larger, key="2")
    assert [len(post.raw["attachments"]) for post in simulator.messages()] == [1]

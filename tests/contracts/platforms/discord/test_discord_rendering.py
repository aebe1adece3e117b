"""Messages of Discord's adapter: no mentions, within limits and permissions, each sent once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientResponse
from discord import RateLimited as RateLimitedByDiscord
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.commonmark.markup import split
from channels.discord import commands, permissions, plugin, text
from channels.discord.errors import translate_error
from channels.discord.rest import MAX_BUCKET_SECONDS, RefusingBucket
from channels.discord.send import markup, rendering
from channels.discord.send.sender import nonce
from channels.discord.simulator import Simulator
from channels.discord.simulator.run import simulate
from channels.errors import NotPermitted, RateLimited, Rejected, Undeliverable
from channels.inbox.commands import DESCRIPTIONS
from channels.inbox.text import clean
from channels.message import Address, Button, ButtonPress, Command, File, Reply, StatusReaction
from channels.port import Connection
from channels.testing.connections import UpdateRecorder, open_connection, receiving

CHAT, GUILD = 4004, "900000000000000001"
ROOM = Address(channel="chn_contract", room=str(CHAT), extras={"guild": GUILD})
FILE = File(name="a.txt", media_type="text/plain", content=b"abc", caption="@everyone look")
SUPPRESS_EMBEDS = 4
GUIDE = Path(__file__).parents[4] / "docs" / "guide" / "channels" / "discord.md"


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Discord with one channel of a server."""
    async with simulate() as simulator:
        await simulator.server_channel(CHAT)
        yield simulator


@pytest.fixture
async def discord(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection."""
    async with open_connection(plugin, simulator.settings()) as connection:
        yield connection


def make_reply(text: str, key: str = "dlv_1.0", **others: Any) -> Reply:
    """Return a reply."""
    return Reply(text=text, key=key, **others)


def message_objects(body: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a body that contains text."""
    if isinstance(body, dict):
        if "content" in body:
            yield body
        for inner in body.values():
            yield from message_objects(inner)


async def test_no_person_is_ever_notified(simulator: Simulator, discord: Connection) -> None:
    """Every send, edit, file, answer and notice forbids mentions and link previews."""
    channel, recorder = discord.sender, UpdateRecorder()
    async with receiving(discord, recorder):
        await simulator.wait_until(lambda: simulator.sessions.identified == 1)
        sent = await channel.send(ROOM, make_reply("@everyone <@7>", buttons=(Button(label="Y", data="y"),)))
        await channel.edit(ROOM, sent.platform_id, make_reply("@here"))
        await channel.upload(ROOM, FILE, key="k")
        await simulator.fail(400, code=50035, name="create", message="Invalid Form Body: content")
        await channel.send(ROOM, make_reply("@everyone plain", key="p"))
        await simulator.press(CHAT, sent.platform_id, "y")
        for name, words in (("ask", "hm?"), ("status", ""), ("jobs", "")):
            await simulator.command(CHAT, name, words)
        _, foreign = simulator.create_interaction(CHAT, {"type": 2, "data": {"name": "weather"}})
        await simulator.push("INTERACTION_CREATE", foreign)
        await simulator.say(CHAT, "a sign")
        await recorder.wait(5)
    await channel.send(ROOM, make_reply("@everyone in its place", key="a"))
    for update in recorder.updates:
        if isinstance(update, ButtonPress | Command):
            await channel.reply_privately(update, "@everyone noted")
    (late,) = [one for one in recorder.updates if isinstance(one, Command) and one.name == "jobs"]
    simulator.world.interactions.clear()
    await channel.reply_privately(late, "@everyone late")
    said = [(name, body) for name, _, fields in simulator.calls for body in message_objects(fields)]
    assert {name for name, _ in said} == {"create", "edit", "fill", "follow_up", "callback"}
    assert [body["allowed_mentions"] for _, body in said] == [{"parse": []}] * len(said)
    assert all(body["flags"] & SUPPRESS_EMBEDS for _, body in said)


async def test_length_is_counted_as_discord_counts_it(simulator: Simulator, discord: Connection) -> None:
    """2000 code points are one message, in any script, and no longer message is sent."""
    assert plugin.limits.measure("\N{GRINNING FACE}" * 2000) == plugin.limits.text
    await discord.sender.send(ROOM, make_reply("\N{GRINNING FACE}" * 2000))
    for number, part in enumerate(split("word \N{GRINNING FACE} " * 1500, plugin.limits.text)):
        await discord.sender.send(ROOM, make_reply(part, key=str(number)))
    assert max(len(post.text) for post in simulator.messages()) <= 2000
    assert sum(post.text.count("word") for post in simulator.messages()) == 1500


async def test_a_missing_permission_is_named(simulator: Simulator, discord: Connection) -> None:
    """The operator reads which permission is missing and what to do, for each kind of call."""
    channel, thread = discord.sender, await simulator.thread(CHAT)
    inside = Address(channel="chn_contract", room=str(CHAT), thread=str(thread), extras={"guild": GUILD})
    number = await simulator.say(CHAT, "hello")
    calls: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("Send Messages", lambda: channel.send(ROOM, make_reply("x"))),
        ("Send Messages in Threads", lambda: channel.send(inside, make_reply("x"))),
        ("Attach Files", lambda: channel.upload(ROOM, FILE, key="k")),
        ("Add Reactions", lambda: channel.react(ROOM, number, StatusReaction.SEEN)),
        ("Read Message History", lambda: channel.send(ROOM, make_reply("x", reply_to=number))),
        ("View Channels", lambda: channel.send(ROOM, make_reply("x"))),
    ]
    for permission, call in calls:
        await simulator.deny(CHAT, permission)
        with pytest.raises(NotPermitted, match=permission) as caught:
            await call()
        assert (caught.value.permission, caught.value.remedy) == (permission, "operator")
        assert "grant it" in str(caught.value) or "see the channel" in str(caught.value)
        await simulator.allow(CHAT)
    await channel.send(ROOM, make_reply("now it goes"))


async def test_a_hidden_channel_is_distinguished_from_a_lost_server(
    simulator: Simulator, discord: Connection
) -> None:
    """Discord answers both alike: only a bot that was thrown out gives the channel up."""
    await simulator.deny(CHAT, "View Channels")
    with pytest.raises(NotPermitted, match="View Channels"):
        await discord.sender.send(ROOM, make_reply("x"))
    await simulator.kick(CHAT)
    with pytest.raises(Undeliverable, match="not in this server"):
        await discord.sender.send(ROOM, make_reply("x"))


async def test_an_empty_bucket_is_not_called(simulator: Simulator, discord: Connection) -> None:
    """After a channel's stated limit the next call is refused locally, and other channels go on."""
    await simulator.server_channel(5005)
    await simulator.limit("create", 2, 30.0)
    for number in range(2):
        await discord.sender.send(ROOM, make_reply("x", key=str(number)))
    with pytest.raises(RateLimited) as caught:
        await discord.sender.send(ROOM, make_reply("x", key="2"))
    assert (caught.value.scope, 25 < caught.value.retry_after <= 30) == ("room", True)
    await discord.sender.send(Address(channel="chn_contract", room="5005"), make_reply("y", key="3"))
    await discord.sender.edit(ROOM, simulator.messages()[0].id, make_reply("z"))
    assert simulator.server.limits.refused == 0


async def test_the_whole_bots_limit_concerns_the_account(simulator: Simulator, discord: Connection) -> None:
    """A global limit is reported as global, with its time."""
    await simulator.limit("*", 1, 30.0)
    await discord.sender.send(ROOM, make_reply("x"))
    with pytest.raises(RateLimited) as caught:
        await discord.sender.send(ROOM, make_reply("y", key="2"))
    assert (caught.value.scope, caught.value.retry_after > 25) == ("account", True)


@pytest.mark.parametrize("scope", ["user", "shared", "global"])
def test_the_scope_of_a_limit_is_discords(scope: str) -> None:
    """Only a global limit stops the other channels."""
    body = json.dumps({"message": "slow down", "retry_after": 1.5, "global": scope == "global"}).encode()
    error = translate_error(429, {"X-RateLimit-Scope": scope}, body, name="send")
    assert isinstance(error, RateLimited)
    assert (error.retry_after, error.scope) == (1.5, "account" if scope == "global" else "room")


async def test_an_empty_bucket_fills_again() -> None:
    """A call is refused with the rest of the stated time, and goes on when it is over."""
    bucket = RefusingBucket()
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset-After": "60"}
    bucket.update(cast("ClientResponse", SimpleNamespace(headers=headers)))
    with pytest.raises(RateLimitedByDiscord):
        await bucket.acquire()
    bucket.update(
        cast("ClientResponse", SimpleNamespace(headers={**headers, "X-RateLimit-Reset-After": "0.001"}))
    )
    while True:  # until the bucket's millisecond is over
        with suppress(RateLimitedByDiscord):
            await bucket.acquire()
            return
        await asyncio.sleep(0)


HEADERS = st.dictionaries(
    st.sampled_from(["X-RateLimit-Bucket", "X-RateLimit-Remaining", "X-RateLimit-Reset-After"]),
    st.text(max_size=8) | st.sampled_from(["0", "-1", "nan", "inf", "1e9", "5"]),
)


@settings(deadline=None)
@given(HEADERS)
async def test_no_header_stops_a_channel_for_long(headers: dict[str, str]) -> None:
    """Whatever a server states about its buckets, a call waits ten minutes at most."""
    bucket = RefusingBucket()
    bucket.update(cast("ClientResponse", SimpleNamespace(headers=headers)))
    wait = 0.0
    try:
        await bucket.acquire()
    except RateLimitedByDiscord as error:
        wait = error.retry_after
    assert 0 <= wait <= MAX_BUCKET_SECONDS


async def test_a_repeated_upload_is_one_message(simulator: Simulator, discord: Connection) -> None:
    """Files have a nonce too; a file that is too large is not started."""
    sent = [await discord.sender.upload(ROOM, FILE, key="dlv_9.file") for _ in range(2)]
    assert sent[0] == sent[1]
    assert len(simulator.messages()) == 1
    large = File(name="b", media_type="x/y", content=bytes(10 * 1024 * 1024 + 1))
    with pytest.raises(Rejected, match=r"at most 10\.5 MB"):
        await discord.sender.upload(ROOM, large, key="k")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Bericht März (1).txt", "Bericht März (1).txt"),
        ('a"b\\c\r\nX: y.txt', "abcX: y.txt"),
        ("\ud800.txt", "\ufffd.txt"),
        ("\n", "file"),
    ],
)
async def test_a_file_keeps_its_name(
    simulator: Simulator, discord: Connection, name: str, shown: str
) -> None:
    """Names are shown as they are, but for what would break the form they are sent in."""
    await discord.sender.upload(ROOM, replace(FILE, name=name), key="k")
    (post,) = simulator.messages()
    assert [(one["filename"], one["size"]) for one in post.raw["attachments"]] == [(shown, 3)]


@pytest.mark.parametrize(
    ("url", "is_fetched"),
    [
        ("https://cdn.discordapp.com.example.org/a", False),
        ("https://cdn.discordapp.com@127.0.0.1/a", False),
        ("http://cdn.discordapp.com/a", False),
        ("https://cdn.discordapp.com:8443/a", False),
        ("http://127.0.0.1:9/a", False),
        ("//cdn.discordapp.com/a", False),
        ("not an address", False),
        ("{api}/cdn/attachments/1/2/x", True),
    ],
)
async def test_files_are_fetched_from_discord_alone(simulator: Simulator, url: str, is_fetched: bool) -> None:
    """Only Discord's own hosts and the configured one are called; no other host sees a request."""
    place = simulator.world.channel(CHAT)
    simulator.world.files["attachments/1/2/x"] = b"here"
    stray = {"id": "5", "filename": "x", "url": url.format(api=simulator.url)}
    message = simulator.world.post(place, simulator.world.person(7), "", attachments=[stray])
    settings = simulator.settings(cdn_url="https://cdn.discordapp.com")
    async with open_connection(plugin, settings) as connection:
        fetched = connection.sender.download(f"{CHAT}/{message['id']}/5")
        if is_fetched:
            assert b"".join([chunk async for chunk in fetched]) == b"here"
            return
        with pytest.raises(Rejected, match="not on Discord's file hosts"):
            await anext(fetched)


async def test_a_file_that_is_too_large_is_not_begun(simulator: Simulator, discord: Connection) -> None:
    """Its size is known before the first byte is asked for."""
    place = simulator.world.channel(CHAT)
    large = {"id": "5", "filename": "x", "size": 200 << 20, "url": f"{simulator.url}/cdn/x"}
    message = simulator.world.post(place, simulator.world.person(7), "", attachments=[large])
    with pytest.raises(Rejected, match="more than"):
        await anext(discord.sender.download(f"{CHAT}/{message['id']}/5"))


@settings(deadline=None)
@given(
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=64),
    st.text(max_size=200),
)
def test_a_button_keeps_its_words_and_what_it_asks(words: str, prompt: str) -> None:
    """Whatever the words and the prompt, the words come back whole and the prompt as far as there is room."""
    custom = rendering.custom_id(Button(label="x", data=words, prompt=prompt))
    assert len(custom) <= 100
    assert text.parse_custom_id(custom)[0] == words
    assert clean(prompt).startswith(text.parse_custom_id(custom)[1])
    assert bool(text.parse_custom_id(custom)[1]) == bool(prompt)


@settings(deadline=None)
@given(st.text(max_size=64))
def test_a_nonce_fits_and_is_the_keys_own(key: str) -> None:
    """At most 25 characters, the same for the same key."""
    assert 0 < len(nonce(key)) <= 25
    assert nonce(key) == nonce(key)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("stop", ("stop", "")),
        ("Stop!", ("stop", "")),
        ("stop using tabs", None),
        ("help me with this", None),
        ("new idea", None),
        ("jobs", ("jobs", "")),
        ("jobs logs job_1", ("jobs", "logs job_1")),
        ("approve apr_1", ("approve", "apr_1")),
        ("deny apr_1 too risky\nreally", ("deny", "apr_1 too risky\nreally")),
        ("deny everything", None),
        ("queue steer", ("queue", "steer")),
        ("queue up behind me", None),
        ("start", None),
    ],
)
def test_words_after_a_mention_are_an_order_in_its_form_only(
    text: str, order: tuple[str, str] | None
) -> None:
    """`@bot stop` stops; a sentence that begins with such a word is for the agent."""
    assert commands.parse_words(text) == order


def test_with_a_slash_whatever_follows_belongs_to_the_order() -> None:
    """Words that are none of ours stay text."""
    assert commands.parse_slash("/deny  everything now") == ("deny", "everything now")
    assert commands.parse_slash("/start") == ("start", "")
    assert commands.parse_slash("/etc/passwd is there") is None
    assert commands.parse_slash("/weather") is None


def test_registered_commands_are_compared_as_discord_gives_them_back() -> None:
    """Ids, defaults and missing empty lists make no difference; another description does."""
    given_back = [
        {key: value for key, value in one.items() if value != []} | {"id": "1", "nsfw": False, "version": "2"}
        for one in commands.definitions()
    ]
    assert commands.merge_commands(given_back) is None
    changed = [{**given_back[0], "description": "else"}, *given_back[1:]]
    assert [one["name"] for one in commands.merge_commands(changed) or []] == ["ask", *DESCRIPTIONS]
    anywhere = [{**one, "contexts": [0, 1, 2]} for one in given_back]
    assert commands.merge_commands(anywhere) is not None
    assert commands.merge_commands(None) is not None
    retired = commands.merge_commands([*given_back, {"name": "dovecote"}, {"name": "weather"}]) or []
    assert [one["name"] for one in retired] == ["ask", *DESCRIPTIONS, "weather"]
    assert commands.merge_commands([{"name": 5}, "x"]) is not None


def test_the_guide_names_the_permissions_that_are_asked_for() -> None:
    """The number in the invitation is the sum of the named permissions, and each is explained."""
    text = GUIDE.read_text()
    assert re.findall(r"permissions=(\d+)", text) == [str(permissions.WANTED)]
    for name, bit in permissions.BITS.items():
        assert f"{name} ({bit})" in text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("#### a # #", "**a #**"),
        ("#### a#", "**a#**"),
        ("#### a \t## \t", "**a**"),
        ("##### ##", "**##**"),
        ("#### #", "**#**"),
        ("#### a" + " " * 50 + "b", "**a" + " " * 50 + "b**"),
    ],
)
def test_the_end_of_a_small_heading(line: str, shown: str) -> None:
    """The `#` behind a space that close a heading are not shown, and other ones are."""
    assert markup.render(line) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("make || echo failed || exit 1", r"make \|\| echo failed \|\| exit 1"),
        ("- `a || b` or a || b || c", r"- `a || b` or a \|\| b \|\| c"),
        ("```\na || b || c\n```", "```\na || b || c\n```"),
        ("| a || b |\n|---|---|---|", "```\n| a || b |\n|---|---|---|\n```"),
    ],
)
def test_nothing_is_hidden_as_a_spoiler(text: str, shown: str) -> None:
    """Discord hides what is between two `||` until it is pressed; CommonMark has no such marks."""
    assert markup.render(text) == shown


def test_rendering_is_linear() -> None:
    """Hostile text costs no more than its length."""
    for unit in ("| a ", "[", "![", "```\n", "#### a\n", "|-\n|"):
        assert len(markup.render(unit * 20_000)) >= len(unit) * 20_000 - 20_000

"""What Slack alone has: v0 signatures, mentions told twice, slash commands, sockets that are refreshed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from channel_rigs import Ear, opened, receiving
from channels.errors import NotPermitted, RateLimited, Rejected, Unauthorized, Undeliverable
from channels.message import Address, Button, Command, File, Message, Moved, Press, Reply, Room
from channels.port import Connection, Incoming
from channels.slack import plugin
from channels.slack.errors import translate
from channels.slack.simulator import Simulator, simulate
from channels.slack.simulator.outgoing import signed
from channels.slack.verifier import is_signed

SECRET = "simulated-signing-secret"
ROOM = Address(channel="chn_contract", room="C0ROOM")
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
NOW = 1767225600.0


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Slack with one channel."""
    async with simulate() as simulator:
        simulator.world.room("C0ROOM")
        yield simulator


@pytest.fixture
async def slack(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection by Socket Mode."""
    async with opened(plugin, simulator.settings()) as connection:
        yield connection


@pytest.fixture
async def posted_to(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that is posted to."""
    async with opened(plugin, simulator.settings(mode="http", signing_secret=SECRET)) as connection:
        yield connection


def a_reply(text: str, **others: Any) -> Reply:
    """Return a reply."""
    return Reply(text=text, key="dlv_1.0", **others)


def a_post(body: bytes, content_type: str = JSON, **others: Any) -> Incoming:
    """Return a signed post."""
    return Incoming(headers=signed(SECRET, body, content_type, **others), body=body)


def texts(ear: Ear) -> list[str]:
    """Return what was said."""
    return [update.text for update in ear.updates if isinstance(update, Message)]


@pytest.mark.parametrize(
    ("age", "fresh"), [(0, True), (299, True), (-299, True), (301, False), (-301, False)]
)
def test_a_signature_is_good_for_five_minutes(age: int, fresh: bool) -> None:
    """An old post is not taken again, and one from the future neither."""
    headers = signed(SECRET, b"body", JSON, now=NOW - age)
    assert is_signed(SECRET, headers, b"body", now=NOW) is fresh


def test_slacks_own_example_verifies() -> None:
    """The example of Slack's page on verifying requests has this signature."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    assert is_signed("8f742231b10e8888abcd99yyyzzz85a5", headers, body, now=1531420618)


def test_no_flipped_bit_verifies() -> None:
    """Any other bit in body, signature or time makes another request of it."""
    headers = signed(SECRET, b"body", JSON, now=NOW)
    assert is_signed(SECRET, headers, b"body", now=NOW)
    for place in range(4 * 8):
        flipped = bytearray(b"body")
        flipped[place // 8] ^= 1 << place % 8
        assert not is_signed(SECRET, headers, bytes(flipped), now=NOW)
    shown = headers["x-slack-signature"]
    for place, bit in ((place, bit) for place in range(len(shown)) for bit in range(7)):
        other = shown[:place] + chr(ord(shown[place]) ^ 1 << bit) + shown[place + 1 :]
        assert not is_signed(SECRET, {**headers, "x-slack-signature": other}, b"body", now=NOW)
    moved = {**headers, "x-slack-request-timestamp": str(int(NOW) + 1)}
    assert not is_signed(SECRET, moved, b"body", now=NOW)


@given(st.text(), st.text() | st.sampled_from(["9" * 5000, "\u0661", "-1", "1e9", "nan", " 1"]), st.binary())
def test_garbage_is_never_signed_and_never_raises(shown: str, stamp: str, body: bytes) -> None:
    """Whatever stands in the headers, the verifier says no."""
    headers = {"x-slack-signature": shown, "x-slack-request-timestamp": stamp}
    assert not is_signed(SECRET, headers, body, now=NOW)


@pytest.mark.parametrize("secret", ["", "  ", None, "short"])
def test_http_mode_without_a_signing_secret_is_refused(secret: str | None) -> None:
    """No setting leaves the door open, and the token is not told."""
    given: dict[str, Any] = {"bot_token": "xoxb-canary", "mode": "http", "signing_secret": secret}
    with pytest.raises(ValidationError) as caught:
        plugin.settings(**given)
    assert "xoxb-canary" not in str(caught.value)


def test_socket_mode_needs_the_apps_token() -> None:
    """The bot's token alone opens no socket."""
    given: dict[str, Any] = {"bot_token": "xoxb-1"}
    with pytest.raises(ValidationError):
        plugin.settings(**given)


async def test_the_challenge_is_answered_when_signed(posted_to: Connection) -> None:
    """Slack's check of the address gets its challenge back; an unsigned one gets 401."""
    body = json.dumps({"type": "url_verification", "challenge": "3eZbrw", "token": "x"}).encode()
    answer = await posted_to.inbox.receive(a_post(body), Ear().accept)
    assert (answer.status, json.loads(answer.body)) == (200, {"challenge": "3eZbrw"})
    stale = a_post(body, now=time.time() - 400)
    assert (await posted_to.inbox.receive(stale, Ear().accept)).status == 401


@pytest.mark.parametrize("body", [b"payload=%7B", b"payload=[1]", b"\xff=1", b"", b"a=1"])
async def test_a_garbled_form_is_400(posted_to: Connection, body: bytes) -> None:
    """Garbage behind a good signature is told apart from a forgery."""
    assert (await posted_to.inbox.receive(a_post(body, FORM), Ear().accept)).status == 400


async def test_a_mention_told_twice_is_one_message(simulator: Simulator, slack: Connection) -> None:
    """Message and app_mention have one key, so that the store takes one of them."""
    ear = Ear()
    async with receiving(slack, ear):
        await simulator.say("C0ROOM", "<@U0BOT> run the tests")
        one, two = await ear.wait(2)
    assert one == two
    assert isinstance(one, Message)
    assert (one.text, one.mentions_bot, one.room) == ("run the tests", True, Room.GROUP)


async def test_retries_of_a_post_have_one_key(simulator: Simulator, posted_to: Connection) -> None:
    """A post that could not be stored is answered 503; Slack repeats it, and it is the same message."""
    ear = Ear(refusals=2)

    async def take(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        incoming = Incoming(headers=headers, body=await request.read())
        answer = await posted_to.inbox.receive(incoming, ear.accept)
        return web.Response(status=answer.status, body=answer.body)

    application = web.Application()
    application.router.add_post("/", take)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        simulator.request_url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        await simulator.say("C0ROOM", "hello")
        assert (simulator.statuses[0], texts(ear)) == ([503, 503], [])
        await simulator.advance(60)
        await ear.wait(1)
        await simulator.slash("C0ROOM", "status")
        sent = await posted_to.channel.send(ROOM, a_reply("May I?", buttons=(Button(label="A", data="a"),)))
        await simulator.press("C0ROOM", sent.platform_id, "a")
    finally:
        await runner.cleanup()
    assert simulator.statuses[0] == [503, 503, 200]
    assert texts(ear) == ["hello"]
    assert [update.name for update in ear.updates if isinstance(update, Command)] == ["status"]
    assert [update.data for update in ear.updates if isinstance(update, Press)] == ["a"]


async def test_a_slash_command_comes_as_a_command(simulator: Simulator, slack: Connection) -> None:
    """`/dovecote status` is a command, other words are a question, and nothing at all asks for help."""
    ear = Ear()
    async with receiving(slack, ear):
        for text in ("Jobs  logs job_1", "what now?", ""):
            await simulator.slash("C0ROOM", text)
        await ear.wait(3)
    orders = [(update.name, update.rest) for update in ear.updates if isinstance(update, Command)]
    assert (orders, texts(ear)) == ([("jobs", "logs job_1"), ("help", "")], ["what now?"])
    assert len({update.key for update in ear.updates}) == 3


async def test_a_command_is_answered_at_its_own_address(simulator: Simulator, slack: Connection) -> None:
    """The person alone sees it, even where the bot is no member; when that address has ended, whispered."""
    ear = Ear()
    async with receiving(slack, ear):
        await simulator.slash("C0ROOM", "status", user="U0BOB")
        (command,) = await ear.wait(1)
    assert isinstance(command, Command)
    await slack.channel.answer(command, "all well <!here>")
    await simulator.advance(1801)
    await slack.channel.answer(command, "still well")
    said = [(notice["user"], notice["text"]) for notice in simulator.world.notices]
    assert said == [("U0BOB", "all well &lt;!here&gt;"), ("U0BOB", "still well")]
    assert [method for method, _ in simulator.calls][-2:] == ["response_url", "chat.postEphemeral"]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("<@U0BOT> stop", ("stop", "")),
        ("<@U0BOT>, Queue steer", ("queue", "steer")),
        ("<@U0BOT> deny apr_1 too wide", ("deny", "apr_1 too wide")),
        ("<@U0BOT> /status", ("status", "")),
        ("<@U0BOT> stop the press", None),
        ("<@U0BOT> help me with the tests", None),
        ("stop", None),
        ("/stop", None),
    ],
)
async def test_the_vocabulary_after_a_mention_is_a_command(
    simulator: Simulator, slack: Connection, text: str, order: tuple[str, str] | None
) -> None:
    """`@bot stop` in a thread orders; the same words in a sentence, or to nobody, are a message."""
    ear = Ear()
    async with receiving(slack, ear):
        await simulator.say("C0ROOM", text, thread="1767225600.000001")
        (update, *_) = await ear.wait(1)
    assert (isinstance(update, Command) and (update.name, update.rest)) == (order or False)
    assert not isinstance(update, Moved)
    assert update.address.thread == "1767225600.000001"


async def test_a_posted_slash_command_with_odd_fields_is_taken(posted_to: Connection) -> None:
    """A form without what we need is understood as such: taken, and ignored."""
    body = urlencode({"command": "/dovecote", "text": "status"}).encode()
    ear = Ear()
    assert (await posted_to.inbox.receive(a_post(body, FORM), ear.accept)).status == 200
    assert ear.updates == []


async def test_a_refreshed_socket_loses_nothing(simulator: Simulator, slack: Connection) -> None:
    """Slack asks for a new connection now and then; what comes meanwhile arrives, in order."""
    ear = Ear()
    async with receiving(slack, ear):
        await simulator.say("C0ROOM", "one")
        await ear.wait(1)
        await simulator.sockets.refresh("refresh_requested")
        await simulator.say("C0ROOM", "two")
        await ear.wait(2)
    assert list(dict.fromkeys(texts(ear))) == ["one", "two"]
    assert simulator.sockets.connected == 2


async def test_socket_mode_switched_off_needs_the_operator(simulator: Simulator, slack: Connection) -> None:
    """Trying on would not switch it on."""
    ear = Ear()
    task = asyncio.create_task(slack.inbox.run(ear.accept, receiving=ear.states.append))
    await simulator.say("C0ROOM", "one")
    await ear.wait(1)
    await simulator.sockets.refresh("link_disabled")
    with pytest.raises(Unauthorized):
        await task


async def test_an_envelope_is_acknowledged_after_it_is_stored(
    simulator: Simulator, slack: Connection
) -> None:
    """While `accept` has not returned, Slack still has the envelope."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def accept(_: object) -> None:
        entered.set()
        await leave.wait()

    task = asyncio.create_task(slack.inbox.run(accept, receiving=lambda _: None))
    await simulator.say("C0ROOM", "one")
    await entered.wait()
    assert simulator.sockets.acknowledged == []
    assert len(simulator.sockets.waiting) == 1
    task.cancel()
    await asyncio.wait({task})


async def test_an_edit_is_another_event_of_the_message(simulator: Simulator, slack: Connection) -> None:
    """What a person changes later comes as edited, with a key of its own."""
    ear = Ear()
    async with receiving(slack, ear):
        ts = await simulator.say("C0ROOM", "one")
        await simulator.edit("C0ROOM", ts, "two")
        first, second = await ear.wait(2)
    assert isinstance(first, Message)
    assert isinstance(second, Message)
    assert (second.text, second.edited, second.platform_id) == ("two", True, first.platform_id)
    assert first.key != second.key


@pytest.mark.parametrize(
    "text",
    ["<!channel> hi", "<@U0ADA>", "[x](<!channel>)", "`<!here>`", "**<!everyone>**", "&lt;!channel&gt;"],
)
async def test_nothing_we_say_notifies_anybody(simulator: Simulator, slack: Connection, text: str) -> None:
    """Model text cannot mention a person or a channel, with buttons or without."""
    for buttons in ((), (Button(label="Yes", data="y"),)):
        await slack.channel.send(ROOM, a_reply(text, buttons=buttons))
    assert not [post.notified for post in simulator.messages() if post.notified]
    assert "<!" not in json.dumps([post.raw for post in simulator.messages()])


async def test_a_send_carries_the_deliverys_key(simulator: Simulator, slack: Connection) -> None:
    """Whether an ambiguous send happened can be read in the room's history."""
    await slack.channel.send(ROOM, a_reply("hello"))
    (post,) = simulator.messages()
    assert post.raw["metadata"]["event_payload"] == {"delivery_id": "dlv_1.0"}


async def test_a_long_question_with_buttons_fits_slacks_sections(
    simulator: Simulator, slack: Connection
) -> None:
    """A section takes 3000 characters; a longer text has several."""
    text = "\n\n".join("<&> word " * 50 for _ in range(5))
    await slack.channel.send(ROOM, a_reply(text, buttons=(Button(label="x" * 100, data="y"),)))
    (post,) = simulator.messages()
    assert post.text.count("word") == 250


async def test_an_edit_takes_the_buttons_away(simulator: Simulator, slack: Connection) -> None:
    """Once it is decided there is nothing left to press."""
    sent = await slack.channel.send(ROOM, a_reply("May I?", buttons=(Button(label="Yes", data="y"),)))
    await slack.channel.edit(ROOM, sent.platform_id, a_reply("Approved by Ada"))
    (post,) = simulator.messages()
    assert (post.text, post.buttons) == ("Approved by Ada", [])


async def test_a_file_goes_to_its_thread(simulator: Simulator, slack: Connection) -> None:
    """Upload is three steps; the last one names room and thread."""
    thread = Address(channel="chn_contract", room="C0ROOM", thread="1767225600.000001")
    file = File(name="r.txt", media_type="text/plain", content=b"result", caption="<!here>")
    sent = await slack.channel.upload(thread, file, key="dlv_2.0")
    (post,) = simulator.messages()
    assert (post.thread, post.text, post.notified) == (thread.thread, "<!here>", [])
    assert simulator.world.contents[sent.platform_id] == b"result"


@pytest.mark.parametrize("ref", ["http://127.0.0.2:9/x", "https://example.org/x", "http://a@127.0.0.1/x"])
async def test_the_token_goes_to_slack_only(slack: Connection, ref: str) -> None:
    """A file's address at another host is refused before anything is sent."""
    with pytest.raises(Rejected):
        [chunk async for chunk in slack.channel.download(ref)]


async def test_a_press_is_answered_to_its_person(simulator: Simulator, slack: Connection) -> None:
    """Nobody else sees the notice."""
    sent = await slack.channel.send(ROOM, a_reply("May I?", buttons=(Button(label="Yes", data="y"),)))
    ear = Ear()
    async with receiving(slack, ear):
        await simulator.press("C0ROOM", sent.platform_id, "y", user="U0BOB")
        async with asyncio.timeout(20):
            while not [update for update in ear.updates if isinstance(update, Press)]:
                await ear.wait(len(ear.updates) + 1)
    (press,) = [update for update in ear.updates if isinstance(update, Press)]
    await slack.channel.answer(press, "noted <!here>")
    assert simulator.world.notices == [{"room": "C0ROOM", "user": "U0BOB", "text": "noted &lt;!here&gt;"}]
    assert [method for method, _ in simulator.calls][-1] == "response_url"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("ratelimited", RateLimited),
        ("channel_not_found", Undeliverable),
        ("is_archived", Undeliverable),
        ("not_in_channel", NotPermitted),
        ("restricted_action", NotPermitted),
        ("messages_tab_disabled", NotPermitted),
        ("account_inactive", Unauthorized),
        ("invalid_auth", Unauthorized),
        ("token_revoked", Unauthorized),
        ("missing_scope", NotPermitted),
        ("msg_too_long", Rejected),
        ("never_heard_of", Rejected),
    ],
)
def test_slacks_errors_have_a_meaning(word: str, kind: type[Exception]) -> None:
    """Each refusal is one of ours, and an unknown one gives up."""
    assert type(translate(word, method="chat.postMessage")) is kind


def test_a_missing_permission_names_itself_and_what_to_do() -> None:
    """The operator reads which scope, and where to grant it."""
    error = translate("missing_scope", method="files.info", needed="files:read")
    assert isinstance(error, NotPermitted)
    assert error.permission == "files:read"
    assert "install the app again" in str(error)


@pytest.mark.parametrize(
    ("method", "word", "scope"),
    [
        ("chat.postMessage", "ratelimited", "room"),
        ("chat.postMessage", "message_limit_exceeded", "account"),
        ("files.completeUploadExternal", "ratelimited", "account"),
    ],
)
def test_a_rate_limit_holds_what_it_concerns(method: str, word: str, scope: str) -> None:
    """A limit of one method in one channel holds that room, one of the workspace everything."""
    error = translate(word, method=method, retry_after=7)
    assert isinstance(error, RateLimited)
    assert (error.scope, error.retry_after) == (scope, 7)

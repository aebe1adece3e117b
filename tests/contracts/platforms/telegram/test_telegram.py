"""What Telegram alone has: conflicts of pollers, registered webhooks, supergroups, bad single updates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from channels.errors import Ambiguous, ConnectedElsewhere, RateLimited, Rejected, Unauthorized, Undeliverable
from channels.message import Address, Button, File, Message, Reply, RoomMigrated
from channels.port import Accept, Connection, WebhookRequest, WebhookResponse
from channels.telegram import plugin
from channels.telegram.simulator import Simulator, simulate
from channels.testing.connections import UpdateRecorder, open_connection, receiving

SECRET = "webhook-secret_1"
ROOM = Address(channel="chn_contract", room="7")


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """Return a simulated Telegram in which person 7 has a private chat with the bot."""
    async with simulate() as simulator:
        simulator.world.room(7)
        yield simulator


@pytest.fixture
async def telegram(simulator: Simulator) -> AsyncIterator[Connection]:
    """Return a connection that polls."""
    async with open_connection(plugin, simulator.settings(poll_seconds=5)) as connection:
        yield connection


def make_reply(text: str, **others: Any) -> Reply:
    """Return a reply."""
    return Reply(text=text, key="dlv_1.0", **others)


async def test_a_second_poller_is_a_conflict(simulator: Simulator) -> None:
    """Two gateways with one token find out, and an operator has to choose."""
    async with (
        open_connection(plugin, simulator.settings(conflict_seconds=0)) as one,
        open_connection(plugin, simulator.settings(conflict_seconds=30)) as two,
        receiving(two, UpdateRecorder()),
    ):
        with pytest.raises(ConnectedElsewhere) as caught:
            async with asyncio.timeout(20):
                await one.receiver.run(UpdateRecorder().accept, receiving=lambda *_: None)
    assert caught.value.remedy == "operator"


async def test_a_hand_over_between_pollers_is_no_conflict(simulator: Simulator) -> None:
    """The new poller waits while the old one dies, and gets the messages."""
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(poll_seconds=5)) as old,
        open_connection(plugin, simulator.settings(poll_seconds=5)) as new,
        receiving(new, recorder),
    ):
        async with receiving(old, UpdateRecorder()):
            await simulator.wait_until(lambda: sum(call == "getUpdates" for call, _ in simulator.calls) > 4)
        await simulator.say(7, "still there?")
        await recorder.wait(1)
    assert recorder.states[-1] is True


async def test_updates_arrive_after_their_numbers_begin_again(
    simulator: Simulator, telegram: Connection
) -> None:
    """After a week without updates Telegram may continue with lower numbers; each arrives once."""
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.say(7, "before the quiet week")
        await recorder.wait(1)
        await simulator.wait_until(lambda: not simulator.world.updates)
        simulator.world.restart_updates(5_000_000)
        for number, text in enumerate(("after it", "and again"), start=2):
            await simulator.say(7, text)
            await recorder.wait(number)
        await simulator.wait_until(lambda: not simulator.world.updates)
    texts = [update.text for update in recorder.updates if isinstance(update, Message)]
    assert texts == ["before the quiet week", "after it", "and again"]


async def test_a_webhook_left_behind_is_removed(simulator: Simulator, telegram: Connection) -> None:
    """A bot that was posted to before can poll."""
    await simulator.updates.set_webhook("http://127.0.0.1:9/", "")
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.say(7, "hello")
        await recorder.wait(1)
    assert simulator.updates.info()["url"] == ""


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"message": None},
        {"message": {"message_id": "many", "chat": []}},
        {"callback_query": {"id": 1}},
        {"message": {"message_id": 1, "chat": {"id": 7}, "date": 10**30, "from": {"id": 7}, "text": "x"}},
        {"unheard_of": {"a": [1]}},
    ],
)
async def test_a_bad_update_does_not_stop_the_poll(
    simulator: Simulator, telegram: Connection, update: dict[str, Any]
) -> None:
    """Updates around one that makes no sense arrive all the same, and it is not asked for again."""
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.say(7, "before")
        await simulator.push(update)
        await simulator.say(7, "after")
        updates = await recorder.wait(2)
        await simulator.wait_until(lambda: not simulator.world.updates)
    assert [update.text for update in updates if isinstance(update, Message)] == ["before", "after"]


async def test_a_wait_of_the_poll_is_honoured(simulator: Simulator, telegram: Connection) -> None:
    """A 429 to a poll is waited out, then updates come."""
    await simulator.fail(429, method="getUpdates", retry_after=1)
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.say(7, "hello")
        await recorder.wait(1)
    assert recorder.states[:2] == [False, True]


async def test_a_server_that_never_waits_is_polled_with_pauses(simulator: Simulator) -> None:
    """Without long polls the bot works too, and does not flood the server."""
    recorder = UpdateRecorder()
    async with (
        open_connection(plugin, simulator.settings(poll_seconds=0)) as connection,
        receiving(connection, recorder),
    ):
        await simulator.wait_until(lambda: sum(name == "getUpdates" for name, _ in simulator.calls) >= 3)
        await simulator.say(7, "hello")
        await recorder.wait(1)
    assert isinstance(recorder.updates[0], Message)


@asynccontextmanager
async def serve_webhook(
    connection: Connection, accept: Accept
) -> AsyncIterator[tuple[str, list[WebhookResponse]]]:
    """Serve the connection's webhook; yield its address and the answers so far."""
    answers: list[WebhookResponse] = []

    async def inbound(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        answer = await connection.receiver.receive(
            WebhookRequest(headers=headers, body=await request.read()), accept
        )
        answers.append(answer)
        return web.Response(status=answer.status, body=answer.body)

    application = web.Application()
    application.router.add_post("/inbound", inbound)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/inbound", answers
    finally:
        await runner.cleanup()


async def test_a_webhook_is_registered_and_posted_to_until_it_accepts(simulator: Simulator) -> None:
    """Telegram repeats updates that could not be stored; none is lost and the order is kept."""
    recorder = UpdateRecorder(refusals=2)
    settings = simulator.settings(mode="webhook", webhook_secret=SECRET)
    async with (
        open_connection(plugin, settings) as waiting,
        serve_webhook(waiting, recorder.accept) as (url, answers),
        open_connection(plugin, {**settings, "webhook_url": url}) as connection,
        receiving(connection, recorder),
    ):
        for number in range(5):
            await simulator.say(7, str(number))
        updates = await recorder.wait(5)
        await simulator.wait_until(lambda: not simulator.world.updates)
    assert [update.text for update in updates if isinstance(update, Message)] == ["0", "1", "2", "3", "4"]
    assert [answer.status for answer in answers] == [503, 503, 200, 200, 200, 200, 200]
    assert recorder.states == [True]
    assert ("setWebhook", SECRET) in [(name, given.get("secret_token")) for name, given in simulator.calls]


@pytest.mark.parametrize("changed", ["url", "kinds", "secret"])
async def test_a_webhook_that_another_program_changed_is_registered_again(
    simulator: Simulator, changed: str
) -> None:
    """It is checked now and then; messages sent in the meantime arrive, and presses of buttons do again."""
    recorder = UpdateRecorder()
    settings = simulator.settings(mode="webhook", webhook_secret=SECRET, webhook_check_seconds=0.05)
    async with (
        open_connection(plugin, settings) as waiting,
        serve_webhook(waiting, recorder.accept) as (url, _),
        open_connection(plugin, {**settings, "webhook_url": url}) as connection,
        receiving(connection, recorder),
    ):
        await recorder.wait_until_receiving()
        kinds = simulator.world.kinds
        if changed == "kinds":
            simulator.world.kinds = ["message"]
        else:
            await simulator.updates.set_webhook("" if changed == "url" else url, "another")
        await simulator.say(7, "is anybody there?")
        await recorder.wait(1)
        await simulator.wait_until(lambda: simulator.world.kinds == kinds and recorder.states[-1])
    reason = "401" if changed == "secret" else "the webhook was removed or changed by another program"
    assert any(reason in one for one in recorder.reasons)


async def test_failed_posts_are_reported(simulator: Simulator) -> None:
    """Telegram's reason for failed posts is reported; when posts work again the channel receives."""
    recorder = UpdateRecorder(refusals=10**9)
    settings = simulator.settings(mode="webhook", webhook_secret=SECRET, webhook_check_seconds=0.05)
    async with (
        open_connection(plugin, settings) as waiting,
        serve_webhook(waiting, recorder.accept) as (url, _),
        open_connection(plugin, {**settings, "webhook_url": url}) as connection,
        receiving(connection, recorder),
    ):
        await simulator.say(7, "hello")
        await simulator.wait_until(lambda: recorder.states[-1:] == [False])
        assert "503" in recorder.reasons[-1]
        recorder.refusals = 0
        await simulator.wait_until(lambda: recorder.states[-1])
        assert [update.text for update in recorder.updates if isinstance(update, Message)] == ["hello"]


async def test_an_inbox_waiting_for_posts_stops_within_a_second(simulator: Simulator) -> None:
    """In webhook mode there is nothing to wait for."""
    settings = simulator.settings(mode="webhook", webhook_secret=SECRET, webhook_url="http://127.0.0.1:9/")
    recorder = UpdateRecorder()
    async with open_connection(plugin, settings) as connection:
        task = asyncio.create_task(connection.receiver.run(recorder.accept, receiving=recorder.record_status))
        await simulator.wait_until(lambda: bool(simulator.updates.info()["url"]))
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=1)
    assert done == {task}


async def test_a_webhook_telegram_refuses_needs_the_operator(simulator: Simulator) -> None:
    """Telegram posts to https only, and refuses other URLs when the webhook is set."""
    settings = simulator.settings(mode="webhook", webhook_secret=SECRET, webhook_url="http://gateway.test/")
    async with open_connection(plugin, settings) as connection:
        with pytest.raises(Unauthorized, match="HTTPS"):
            await connection.receiver.run(UpdateRecorder().accept, receiving=lambda *_: None)


async def test_a_group_that_became_a_supergroup_is_followed(
    simulator: Simulator, telegram: Connection
) -> None:
    """The room's new id is reported, and a message to the old one arrives in the new one."""
    await simulator.group(-42)
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        new = await simulator.migrate(-42)
        updates = await recorder.wait(2)
    assert {(update.old.room, update.new.room) for update in updates if isinstance(update, RoomMigrated)} == {
        ("-42", str(new))
    }
    await telegram.sender.send(Address(channel="chn_contract", room="-42"), make_reply("moved with you"))
    assert [post.text for post in simulator.messages(new)] == ["moved with you"]


async def test_no_message_of_a_supergroup_is_taken_for_one_of_its_group(
    simulator: Simulator, telegram: Connection
) -> None:
    """Its messages have numbers of their own: a change of an old one changes none, and a reply is to none."""
    await simulator.group(-42)
    old, sender = Address(channel="chn_contract", room="-42"), telegram.sender
    await simulator.say(-42, "hello")
    shown = await sender.send(old, make_reply("half"))
    new = await simulator.migrate(-42)
    await sender.send(replace(old, room=str(new)), make_reply("of the supergroup"))
    assert [(post.id, post.text) for post in simulator.messages(new)] == [(2, "of the supergroup")]
    assert shown.platform_id == "2"
    for change in (
        sender.edit(old, shown.platform_id, make_reply("whole")),
        sender.delete(old, shown.platform_id),
        sender.add_reaction(old, shown.platform_id, "👍"),
    ):
        with pytest.raises(Undeliverable, match="upgraded"):
            await change
    await sender.send(old, make_reply("whole", reply_to=shown.platform_id))
    first, last = simulator.messages(new)
    assert (first.text, last.text, last.raw.get("reply_to_message")) == ("of the supergroup", "whole", None)


async def test_one_room_over_its_rate_leaves_the_others_alone(
    simulator: Simulator, telegram: Connection
) -> None:
    """The wait Telegram asks for concerns the room that was too fast."""
    simulator.world.room(8)
    await simulator.limit(room_per_second=1)
    await telegram.sender.send(ROOM, make_reply("first"))
    with pytest.raises(RateLimited) as caught:
        await telegram.sender.send(ROOM, make_reply("second"))
    await telegram.sender.send(Address(channel="chn_contract", room="8"), make_reply("elsewhere"))
    assert caught.value.retry_after == 1


async def test_a_topic_that_is_gone_is_undeliverable(simulator: Simulator, telegram: Connection) -> None:
    """A reply never falls from a deleted topic into the room."""
    with pytest.raises(Undeliverable):
        await telegram.sender.send(Address(channel="chn_contract", room="7", thread="99"), make_reply("x"))
    assert simulator.messages() == []


async def test_a_reply_to_a_deleted_message_is_sent_all_the_same(
    simulator: Simulator, telegram: Connection
) -> None:
    """What is answered may be gone; the answer counts."""
    await telegram.sender.send(ROOM, make_reply("x", reply_to="4711"))
    assert [post.text for post in simulator.messages()] == ["x"]


async def test_text_too_long_for_a_message_is_rejected(telegram: Connection) -> None:
    """The adapter neither cuts nor splits."""
    with pytest.raises(Rejected):
        await telegram.sender.send(ROOM, make_reply("x" * 4097))


async def test_editing_takes_buttons_away(simulator: Simulator, telegram: Connection) -> None:
    """A decided question offers no choice any more."""
    sent = await telegram.sender.send(ROOM, make_reply("May I?", buttons=(Button(label="Yes", data="y"),)))
    await telegram.sender.edit(ROOM, sent.platform_id, make_reply("Approved"))
    (post,) = simulator.messages()
    assert (post.text, post.buttons, post.history) == ("Approved", [], ["May I?"])


async def test_editing_a_message_that_is_gone_is_rejected(telegram: Connection) -> None:
    """A deleted message cannot be edited, and no retry will help."""
    with pytest.raises(Rejected):
        await telegram.sender.edit(ROOM, "4711", make_reply("x"))


@pytest.mark.parametrize(
    ("content", "method"), [(b"\x89PNG and so on", "sendPhoto"), (b"not a picture", "sendDocument")]
)
async def test_a_picture_is_a_photo_where_telegram_takes_it(
    simulator: Simulator, telegram: Connection, content: bytes, method: str
) -> None:
    """A file that Telegram refuses as a photo is sent as a document."""
    file = File(name="plot.png", media_type="image/png", content=content, caption="a plot")
    await telegram.sender.upload(ROOM, file, key="dlv_1.1")
    assert simulator.calls[-1][0] == method
    assert (simulator.messages()[0].file, simulator.messages()[0].text) == (content, "a plot")


async def test_a_file_too_large_is_rejected_before_it_is_sent(
    simulator: Simulator, telegram: Connection
) -> None:
    """Fifty megabytes are the limit; more are not tried."""
    calls = len(simulator.calls)
    file = File(name="huge.bin", media_type="application/octet-stream", content=bytes(50_000_001))
    with pytest.raises(Rejected):
        await telegram.sender.upload(ROOM, file, key="dlv_1.1")
    assert len(simulator.calls) == calls


async def test_typing_is_shown_in_the_topic(simulator: Simulator, telegram: Connection) -> None:
    """The indicator appears where the answer will."""
    await simulator.group(-1_000_000_000_042, forum=True)
    topic = await simulator.topic(-1_000_000_000_042)
    await telegram.sender.typing(Address(channel="c", room="-1000000000042", thread=str(topic)))
    assert simulator.methods.actions == [(-1_000_000_000_042, topic, "typing")]


async def test_half_a_download_is_an_error(simulator: Simulator, telegram: Connection) -> None:
    """A file that stops in the middle is never accepted as complete."""
    recorder = UpdateRecorder()
    async with receiving(telegram, recorder):
        await simulator.send_file(7, b"x" * 100_000, name="a.bin")
        (update,) = await recorder.wait(1)
    assert isinstance(update, Message)
    await simulator.cut(method="file")
    with pytest.raises(Ambiguous):
        _ = [chunk async for chunk in telegram.sender.download(update.attachments[0].ref)]

"""What every installed channel promises about receiving: nothing lost, nothing forged, never stuck."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from channel_rigs import WEBHOOK_SECRET, ChannelRig, UpdateRecorder, open_connection, receiving
from channels.message import Message, Update
from channels.port import ChannelPlugin, Connection


async def test_own_messages_are_ignored(connection: Connection, rig: ChannelRig) -> None:
    """The bot never answers itself."""
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.echo("my own words")
        await rig.say("not mine")
        updates = await recorder.wait(1)
    assert [update.text for update in updates if isinstance(update, Message)] == ["not mine"]


async def test_the_same_update_twice_has_one_key(connection: Connection, rig: ChannelRig) -> None:
    """An update that could not be stored comes again, with the same key and after no later one."""
    recorder = UpdateRecorder(refusals=2)
    async with receiving(connection, recorder):
        await rig.say("first")
        await rig.say("second")
        updates = await recorder.wait(2)
    assert recorder.refused == 2
    assert [update.text for update in updates if isinstance(update, Message)] == ["first", "second"]
    assert len({update.key for update in updates}) == 2


async def test_what_was_accepted_is_not_delivered_again(
    plugin: ChannelPlugin, connection: Connection, rig: ChannelRig
) -> None:
    """A restarted inbox gets at most the updates whose acknowledgement was under way, with their keys."""
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.say("before")
        await recorder.wait(1)
        await rig.say("also before")
        await recorder.wait(2)
    async with open_connection(plugin, rig.settings()) as second, receiving(second, recorder):
        await rig.say("after")
        async with asyncio.timeout(20):
            while recorder.updates[-1] != _last_text(recorder, "after"):
                await recorder.wait(len(recorder.updates) + 1)
    assert len({update.key for update in recorder.updates}) == 3


def _last_text(recorder: UpdateRecorder, text: str) -> object:
    return next(
        (update for update in recorder.updates if isinstance(update, Message) and update.text == text), None
    )


async def test_a_connection_cut_mid_stream_reconnects_without_loss(
    connection: Connection, rig: ChannelRig
) -> None:
    """All messages around broken connections arrive, in order, and the receiver reports when it receives."""
    recorder = UpdateRecorder()
    async with receiving(connection, recorder):
        await rig.say("0")
        await recorder.wait(1)
        await rig.cut_receiving()
        for number in range(1, 10):
            await rig.say(str(number))
        updates = await recorder.wait(10)
    texts = [update.text for update in updates if isinstance(update, Message)]
    assert list(dict.fromkeys(texts)) == [str(number) for number in range(10)]
    assert recorder.states[0] is True
    assert recorder.states[-1] is True
    assert False in recorder.states
    assert recorder.reasons


async def test_the_inbox_stops_within_a_second(connection: Connection, rig: ChannelRig) -> None:
    """Cancelled while it waits for updates, the inbox is gone at once."""
    recorder = UpdateRecorder()
    task = asyncio.create_task(connection.receiver.run(recorder.accept, receiving=recorder.record_status))
    await rig.say("now it waits")
    await recorder.wait(1)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=1)
    assert done == {task}
    assert task.cancelled()


async def test_the_inbox_stops_even_when_a_cancellation_is_swallowed(
    connection: Connection, rig: ChannelRig
) -> None:
    """Code below `accept` may swallow a cancellation (Python 3.11); no further update is accepted then."""
    taken: list[Update] = []
    entered = asyncio.Event()

    async def accept(update: Update) -> None:
        taken.append(update)
        entered.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    for text in "abc":
        await rig.say(text)
    task = asyncio.create_task(connection.receiver.run(accept, receiving=lambda *_: None))
    async with asyncio.timeout(20):
        await entered.wait()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=1)
    assert (done, len(taken)) == ({task}, 1)


@pytest.mark.parametrize("secret", ["", " ", None])
def test_a_webhook_without_a_secret_is_refused(plugin: ChannelPlugin, secret: str | None) -> None:
    """No setting admits unsigned requests."""
    if plugin.name != "telegram":
        pytest.skip("signs with a key of another name")
    given = {"token": "1:a", "mode": "webhook", "webhook_secret": secret}
    with pytest.raises(ValidationError) as caught:
        plugin.settings.model_validate(given)
    assert "1:a" not in str(caught.value)


async def test_a_posted_update_is_answered_after_it_is_accepted(
    plugin: ChannelPlugin, rig: ChannelRig
) -> None:
    """2xx means stored: a failed store is a 503, which the platform repeats."""
    async with open_connection(plugin, rig.webhook_settings()) as connection:
        recorder = UpdateRecorder(refusals=1)
        request = rig.webhook_request(rig.update("posted"))
        statuses = [(await connection.receiver.receive(request, recorder.accept)).status for _ in range(2)]
    assert statuses == [503, 200]
    assert [update.text for update in recorder.updates if isinstance(update, Message)] == ["posted"]


BAD_SECRETS = [
    None,
    "",
    "wrong",
    WEBHOOK_SECRET[:-1],
    WEBHOOK_SECRET + "1",
    f"{WEBHOOK_SECRET}, {WEBHOOK_SECRET}",
    "ü\udcff",
]


@pytest.mark.parametrize("secret", BAD_SECRETS)
async def test_a_wrong_signature_is_401(plugin: ChannelPlugin, rig: ChannelRig, secret: str | None) -> None:
    """Unsigned, wrongly signed and doubly signed requests are not read."""
    recorder = UpdateRecorder()
    async with open_connection(plugin, rig.webhook_settings()) as connection:
        for body in (rig.update("x"), b"garbage"):
            assert (
                await connection.receiver.receive(rig.webhook_request(body, secret=secret), recorder.accept)
            ).status == 401
    assert recorder.updates == []


async def test_a_channel_that_polls_takes_no_posts(connection: Connection, rig: ChannelRig) -> None:
    """In polling mode even the right signature is refused."""
    assert (
        await connection.receiver.receive(rig.webhook_request(rig.update("x")), UpdateRecorder().accept)
    ).status == 401


_NAMES = (
    "update_id message edited_message callback_query from chat id text date entities message_id data photo "
    "type sender_chat is_topic_message message_thread_id user media_group_id caption "
    "message_reaction new_reaction old_reaction emoji"
)
_KEYS = st.sampled_from(_NAMES.split()) | st.text(max_size=8)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=25,
)
_BODIES = (
    st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()) | st.just(b"[" * 100_000)
)


async def test_no_body_is_answered_with_a_fault(plugin: ChannelPlugin, rig: ChannelRig) -> None:
    """Whatever is posted, the answer is 2xx, 400 or 401."""
    async with open_connection(plugin, rig.webhook_settings()) as connection:
        statuses: set[int] = set()

        @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
        @given(_BODIES, st.sampled_from([WEBHOOK_SECRET, WEBHOOK_SECRET, None, "wrong"]))
        def post(body: bytes, secret: str | None) -> None:
            request = rig.webhook_request(body, secret=secret)
            statuses.add(asyncio.run(connection.receiver.receive(request, _accept)).status)

        await asyncio.to_thread(post)
    assert statuses <= {200, 400, 401}


async def _accept(_: object) -> None:
    """Accept everything."""

"""What a channel promises about receiving: no update is lost, and the receiver always ends in time."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from channels.message import Message, Update
from channels.port import ChannelPlugin, Connection, WebhookRequest
from channels.testing.connections import UpdateRecorder, open_connection, receiving
from channels.testing.rig import ChannelRig


def _last_text(recorder: UpdateRecorder, text: str) -> object:
    return next(
        (update for update in recorder.updates if isinstance(update, Message) and update.text == text), None
    )


class ReceivingContract:
    """What a channel promises about receiving: no update is lost, and the receiver always ends in time."""

    async def test_own_messages_are_ignored(self, connection: Connection, rig: ChannelRig) -> None:
        """The bot does not receive its own messages."""
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.echo("my own words")
            await rig.say("not mine")
            updates = await recorder.wait(1)
        assert [update.text for update in updates if isinstance(update, Message)] == ["not mine"]

    async def test_the_same_update_twice_has_one_key(self, connection: Connection, rig: ChannelRig) -> None:
        """An update that could not be stored arrives again with the same key, before any later one."""
        recorder = UpdateRecorder(refusals=2)
        async with receiving(connection, recorder):
            await rig.say("first")
            await rig.say("second")
            updates = await recorder.wait(2)
        assert recorder.refused == 2
        assert [update.text for update in updates if isinstance(update, Message)] == ["first", "second"]
        assert len({update.key for update in updates}) == 2

    async def test_what_was_accepted_is_not_delivered_again(
        self, plugin: ChannelPlugin, connection: Connection, rig: ChannelRig
    ) -> None:
        """A restarted receiver gets only updates that were not acknowledged, with the same keys."""
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.say("before")
            await recorder.wait(1)
            await rig.say("also before")
            await recorder.wait(2)
        async with open_connection(plugin, rig.settings()) as second, receiving(second, recorder):
            await rig.say("after")
            async with asyncio.timeout(30):
                while recorder.updates[-1] != _last_text(recorder, "after"):
                    await recorder.wait(len(recorder.updates) + 1)
        assert len({update.key for update in recorder.updates}) == 3

    async def test_a_connection_cut_mid_stream_reconnects_without_loss(
        self, connection: Connection, rig: ChannelRig
    ) -> None:
        """All messages around broken connections arrive in order, and the receiver reports its status."""
        recorder = UpdateRecorder()
        async with receiving(connection, recorder):
            await rig.say("0")
            await recorder.wait(1)
            await rig.cut_receiving()
            for number in range(1, 10):
                await rig.say(str(number))
            updates = await recorder.wait(10)
            await recorder.wait_until_receiving()  # the last message may come before the last cut
        texts = [update.text for update in updates if isinstance(update, Message)]
        assert list(dict.fromkeys(texts)) == [str(number) for number in range(10)]
        assert recorder.states[0] is True
        assert False in recorder.states
        assert recorder.reasons

    async def test_the_receiver_stops_within_a_second(self, connection: Connection, rig: ChannelRig) -> None:
        """A receiver that is cancelled while it waits for updates ends within a second."""
        recorder = UpdateRecorder()
        task = asyncio.create_task(connection.receiver.run(recorder.accept, receiving=recorder.record_status))
        await rig.say("now it waits")
        await recorder.wait(1)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=1)
        assert done == {task}
        assert task.cancelled()

    async def test_the_receiver_stops_even_when_a_cancellation_is_swallowed(
        self, connection: Connection, rig: ChannelRig
    ) -> None:
        """The receiver ends, and accepts nothing more, when `accept` swallows the cancellation."""
        accepted: list[Update] = []
        entered = asyncio.Event()

        async def accept(update: Update) -> None:
            accepted.append(update)
            entered.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

        for text in "abc":
            await rig.say(text)
        task = asyncio.create_task(connection.receiver.run(accept, receiving=lambda *_: None))
        async with asyncio.timeout(30):
            await entered.wait()
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=1)
        assert (done, len(accepted)) == ({task}, 1)

    async def test_an_unsigned_request_is_401(self, connection: Connection) -> None:
        """A request without a signature is refused, also by a channel that cannot be posted to."""
        recorder = UpdateRecorder()
        request = WebhookRequest(headers={"content-type": "application/json"}, body=b"{}")
        assert (await connection.receiver.receive(request, recorder.accept)).status == 401
        assert recorder.updates == []

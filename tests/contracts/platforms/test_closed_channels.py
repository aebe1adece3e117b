"""A sender that outlives its channel raises errors of the port, whatever a library does when it is closed."""

from __future__ import annotations

import asyncio
from inspect import isfunction

import pytest

from channels.errors import Ambiguous, Unreachable
from channels.message import Address, Reply, SentMessage
from channels.port import Sender
from channels.supervision import ClosableSender

ADDRESS = Address(channel="chn_1", room="7")
REPLY = Reply(text="hello", key="dlv_1.0")
SENT = SentMessage(platform_id="1")


class GatedSender(Sender):
    """Sends when its gate opens, as a slow platform does."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, address: Address, reply: Reply) -> SentMessage:
        """Wait for the gate."""
        self.is_asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return SENT


def test_every_call_of_the_port_is_guarded() -> None:
    """A new method of the port cannot be forgotten."""
    promised = {name for name, one in vars(Sender).items() if isfunction(one) and not name.startswith("_")}
    assert promised <= vars(ClosableSender).keys()


async def _end_while_sending(gated: GatedSender) -> asyncio.Task[SentMessage]:
    """End a channel while a call is in progress, and return the call."""
    sender = ClosableSender(gated)
    sending = asyncio.create_task(sender.send(ADDRESS, REPLY))
    await gated.is_asked.wait()
    closing = asyncio.create_task(sender.close())
    closing.add_done_callback(lambda _: ended.append(sending.done()))
    ended: list[bool] = []
    asyncio.get_running_loop().call_soon(gated.gate.set)
    await closing
    assert ended == [True]
    with pytest.raises(Unreachable):
        await sender.send(ADDRESS, REPLY)
    return sending


async def test_the_end_waits_for_calls_in_progress() -> None:
    """A message that is on its way arrives, and its id is known."""
    assert await (await _end_while_sending(GatedSender())) == SENT


async def test_a_call_that_the_end_breaks_may_have_been_carried_out() -> None:
    """Callers never see the library's own error of a closed session."""
    gated = GatedSender()
    gated.error = RuntimeError("Session is closed")
    with pytest.raises(Ambiguous):
        await (await _end_while_sending(gated))


async def test_errors_of_an_open_channel_stay_what_they_are() -> None:
    """A defect of an adapter is not hidden as a channel's end."""
    gated = GatedSender()
    gated.error = RuntimeError("a defect")
    gated.gate.set()
    with pytest.raises(RuntimeError, match="a defect"):
        await ClosableSender(gated).send(ADDRESS, REPLY)
